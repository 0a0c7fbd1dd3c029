// SPDX-License-Identifier: Apache-2.0
#include "qkv/generate/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "qkv/support/error.h"
#include "qkv/support/random.h"

namespace qkv {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

void require_in(const char* name, double value, double most) {
  require(value >= 0 && value <= most, "sampling: ", name, ": expected a number from 0 to ", most, ", got ", value);
}

/// exp(logit - largest) of every token, 0 for those left out.
std::vector<double> weights_of(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  std::vector<double> weights(logits.size());
  for (size_t id = 0; id < logits.size(); ++id) weights[id] = std::exp(static_cast<double>(logits[id]) - largest);
  return weights;
}

}  // namespace

void check_sampling(const SamplingOptions& options) {
  require(options.temperature >= 0 && std::isfinite(options.temperature),
          "sampling: temperature: expected a number of at least 0, got ", options.temperature);
  require(options.top_k >= 0, "sampling: top_k: expected an integer of at least 0, got ", options.top_k);
  require_in("top_p", options.top_p, 1);
  require_in("min_p", options.min_p, 1);
}

void apply_temperature(double temperature, std::span<float> logits) {
  const auto divisor = static_cast<float>(temperature);
  for (float& logit : logits) {
    if (logit != kNever) logit /= divisor;
  }
}

void keep_top_k(int64_t k, std::span<float> logits) {
  if (k >= static_cast<int64_t>(logits.size())) return;
  std::vector<float> sorted(logits.begin(), logits.end());
  std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end(), std::greater<>());
  const float least = sorted[static_cast<size_t>(k - 1)];
  for (float& logit : logits) {
    if (logit < least) logit = kNever;
  }
}

void keep_top_p(double p, std::span<float> logits) {
  std::vector<uint32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return logits[a] < logits[b]; });
  const std::vector<double> weights = weights_of(logits);
  double total = 0;
  for (const uint32_t id : order) total += weights[id];
  double sum = 0;
  for (size_t n = 0; n + 1 < order.size(); ++n) {
    sum += weights[order[n]];
    if (sum / total > 1 - p) return;
    logits[order[n]] = kNever;
  }
}

void keep_min_p(double p, std::span<float> logits) {
  const std::vector<double> weights = weights_of(logits);  // of the most probable one 1
  for (size_t id = 0; id < logits.size(); ++id) {
    if (weights[id] < p) logits[id] = kNever;
  }
}

uint32_t most_likely(std::span<const float> logits) {
  size_t best = 0;
  for (size_t id = 0; id < logits.size(); ++id) {
    require(!std::isnan(logits[id]), "generate: the logit of token ", id, " is not a number");
    if (logits[id] > logits[best]) best = id;
  }
  require(!logits.empty() && logits[best] != kNever, "generate: no token is left to choose from");
  return static_cast<uint32_t>(best);
}

double uniform_draw(uint64_t seed, uint64_t sequence, uint64_t step) {
  const uint64_t bits = mix64(mix64(mix64(seed) ^ sequence) ^ step);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

uint32_t sample(const SamplingOptions& options, uint64_t sequence, uint64_t step, std::span<float> logits) {
  const uint32_t best = most_likely(logits);
  if (options.temperature == 0) return best;
  // An infinite logit leaves nothing to draw, and has no finite difference to the others.
  if (std::isinf(logits[best])) return best;
  apply_temperature(options.temperature, logits);
  // So small a temperature that logits overflow: the largest one is all there is.
  if (!std::isfinite(logits[best])) return best;
  if (options.top_k > 0) keep_top_k(options.top_k, logits);
  if (options.top_p < 1) keep_top_p(options.top_p, logits);
  if (options.min_p > 0) keep_min_p(options.min_p, logits);
  const std::vector<double> weights = weights_of(logits);
  const double wanted =
      uniform_draw(options.seed, sequence, step) * std::accumulate(weights.begin(), weights.end(), 0.0);
  double sum = 0;
  size_t last = best;
  for (size_t id = 0; id < weights.size(); ++id) {
    if (weights[id] == 0) continue;
    sum += weights[id];
    last = id;
    if (sum > wanted) break;
  }
  return static_cast<uint32_t>(last);
}

}  // namespace qkv
