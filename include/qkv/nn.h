// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "qkv/kernels/activate.h"
#include "qkv/kernels/normalize.h"
#include "qkv/nn/block.h"
#include "qkv/nn/embedding.h"
#include "qkv/nn/feed_forward.h"
#include "qkv/nn/linear.h"
#include "qkv/nn/multi_head_attention.h"
#include "qkv/nn/stack.h"
#include "qkv/nn/visit.h"
#include "qkv/positions/positions.h"
#include "qkv/positions/rotary.h"
