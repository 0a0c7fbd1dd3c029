// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "qkv/attention/derivatives.h"

namespace qkv {

/// The arithmetic of an evaluation by the definition, row by row in plain loops.
enum class Arithmetic : uint8_t {
  reference,  ///< f64; of f64 inputs in long double, so that f64 itself has an error to compare with
  plain,      ///< the compute type (f32; f64 for f64), with the storage roundings that the semantics allow
};

/// Everything attention and its gradients give, row-major. Reference values are f64; plain values have the dtype that
/// the operation would store.
struct AttentionReference {
  Tensor out, lse;
  Tensor d_q, d_k, d_v, d_bias, d_slopes, d_table, d_sinks, d_scale;  ///< absent without d_out, or without their tensor
};

/// Evaluates the definition on the stored inputs. Same checks, shapes and errors as attention_forward. Costs
/// O(B H Tq Tk (D + Dv)) time in scalar code and, beyond the results, a converted copy of the keys and values of one
/// head per thread. d_out and d_lse may be absent; d_lse comes with d_out only.
AttentionReference attention_reference(const TensorView& q, const TensorView& k, const TensorView& v,
                                       const AttentionOptions& options, Arithmetic arithmetic,
                                       const TensorView& d_out = {}, const TensorView& d_lse = {});

/// What attention_jvp gives, row-major, in the types of AttentionReference.
struct AttentionJvpReference {
  Tensor t_out, t_lse;
};
AttentionJvpReference attention_jvp_reference(const TensorView& q, const TensorView& k, const TensorView& v,
                                              const AttentionOptions& options, Arithmetic arithmetic,
                                              const AttentionTangents& tangents);

/// What attention_second_order gives; those of bias, slopes, table and sinks are absent without their tensor.
struct AttentionSecondReference {
  Tensor g_q = {}, g_k = {}, g_v = {}, g_bias = {}, g_d_out = {};
  Tensor g_slopes = {}, g_table = {}, g_sinks = {}, g_d_lse = {};
};
AttentionSecondReference attention_second_reference(const TensorView& q, const TensorView& k, const TensorView& v,
                                                    const AttentionOptions& options, Arithmetic arithmetic,
                                                    const AttentionUpstream& upstream,
                                                    const AttentionCotangents& cotangents);

}  // namespace qkv
