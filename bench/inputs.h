// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "case.h"
#include "qkv/attention/derivatives.h"
#include "qkv/attention/key_value_cache.h"

namespace qkv::bench {

/// A tensor and the view of it with the axes of the operation.
struct Placed {
  Tensor storage;
  MutableTensorView view;  ///< [B, H, T, D] with the strides of the layout, or [T, H, D] when packed
};

/// The tensors of a case, filled from a fixed seed. Options hold views of them, so an object stays where it is made.
struct Inputs {
  explicit Inputs(const Case& which);
  Inputs(const Inputs&) = delete;
  Inputs& operator=(const Inputs&) = delete;

  Case spec;
  Placed q, k, v, d_out;  ///< read
  Placed out, lse;        ///< written
  Placed d_q, d_k, d_v;   ///< written by a backward
  Placed t_q, t_k, t_v;   ///< read: tangents, or cotangents
  Placed t_out;           ///< written by forward mode and second order
  Tensor bias, slopes, table, sinks;
  Tensor d_bias, d_slopes, d_table, d_sinks, d_scale;
  Tensor mask, block_mask, key_lengths, query_lengths, query_segment, key_segment, query_starts, key_starts;
  std::unique_ptr<KeyValueCache> cache;  ///< of k and v, in a cached case
  AttentionOptions options;              ///< all but threads
  AttentionGradients gradients;

  bool has_directions() const;  ///< some mode takes them along tangents or cotangents
  bool has_gradients() const;   ///< some mode takes derivatives
};

/// Row-major integers of a tensor of lengths, starts or ids.
const int64_t* integers(const Tensor& tensor);

}  // namespace qkv::bench
