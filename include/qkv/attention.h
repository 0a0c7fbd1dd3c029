// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "qkv/attention/accuracy.h"
#include "qkv/attention/attention.h"
#include "qkv/attention/derivatives.h"
#include "qkv/attention/key_value_cache.h"
#include "qkv/attention/options.h"
#include "qkv/attention/probe.h"
#include "qkv/attention/reference.h"
