// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

namespace qkv {

/// How a token is chosen from one row of logits.
struct SamplingOptions {
  double temperature = 0;  ///< 0: the largest logit, of equal ones the lowest id; the filters then change nothing
  int64_t top_k = 0;       ///< 0: all
  double top_p = 1;        ///< in [0, 1]; 1: all
  double min_p = 0;        ///< in [0, 1]; 0: all
  uint64_t seed = 0;
};

/// Throws Error that names an option outside its range.
void check_sampling(const SamplingOptions& options);

// The filters, with the rules of Transformers' warpers: what is left out becomes -inf, at least one token stays. They
// act in this order. Probabilities are softmaxes of the row, in f64.

/// Divides by the temperature, which is positive, in f32.
void apply_temperature(double temperature, std::span<float> logits);
/// Leaves out what is below the k-th largest logit; those equal to it stay. k > 0.
void keep_top_k(int64_t k, std::span<float> logits);
/// Leaves out tokens from the least probable one on while their sum is at most 1 - p; the last one stays. Of equal
/// tokens lower ids go first.
void keep_top_p(double p, std::span<float> logits);
/// Leaves out tokens that are less probable than p times the most probable one.
void keep_min_p(double p, std::span<float> logits);

/// The largest logit's id, of equal ones the lowest. Throws Error when a logit is NaN or all are -inf.
uint32_t most_likely(std::span<const float> logits);

/// A uniform number in [0, 1), a pure function of its arguments: the draw of step `step` of sequence `sequence`.
double uniform_draw(uint64_t seed, uint64_t sequence, uint64_t step);

/// Chooses a token; `logits` is overwritten. The choice is a function of the row, the options, the sequence's number
/// and the step: of u = uniform_draw(seed, sequence, step), it is the lowest id with a cumulative probability, in order
/// of ids, above u. Throws as most_likely.
uint32_t sample(const SamplingOptions& options, uint64_t sequence, uint64_t step, std::span<float> logits);

}  // namespace qkv
