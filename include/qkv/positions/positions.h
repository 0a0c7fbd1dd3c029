// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "qkv/tensor/tensor.h"

namespace qkv {

/// Sinusoidal positions (Vaswani et al. 2017) of `positions` [N] (i64 or i32) in y [N, width], any floating dtype and
/// strides: y[n, 2 i] = sin(p f_i), y[n, 2 i + 1] = cos(p f_i), f_i = base^(-2 i / width); an odd last column is a
/// sine. Phases in f64. With `halves` all sines come first, then all cosines, as BART's relatives store them.
struct SinusoidalOptions {
  double base = 10000;
  bool halves = false;
};
void sinusoidal_positions(const TensorView& positions, const SinusoidalOptions& options, const MutableTensorView& y);

/// ALiBi's slopes (Press et al. 2022) [heads]: 2^(-8 i / heads), i = 1 ... heads, where heads is a power of two n; else
/// those of the largest power of two below, then every second one of twice that power. As AttentionOptions::slopes
/// takes them; f64.
std::vector<double> alibi_slopes(int64_t heads);

}  // namespace qkv
