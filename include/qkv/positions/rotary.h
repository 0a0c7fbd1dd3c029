// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "qkv/tensor/tensor.h"

namespace qkv {

// Rotary positions (Su et al. 2021): pair i of a query or key at position p is rotated by the angle p f_i, so that an
// inner product depends on the difference of positions alone.
//   (a, b) -> amplitude (a cos - b sin, a sin + b cos)       f_i = base^(-2 i / width), then scaled

/// Which elements form pair i of the `width` rotated ones.
enum class RotaryLayout : uint8_t {
  half_split,   ///< i and i + width / 2: Llama, GPT-NeoX, as transformers stores checkpoints
  interleaved,  ///< 2 i and 2 i + 1: GPT-J, the paper
};

/// How frequencies are changed for contexts longer than those trained on: rules whose result does not depend on the
/// length of the text.
struct RotaryScaling {
  enum class Kind : uint8_t {
    none,
    linear,    ///< f / factor
    llama3,    ///< long wavelengths divided by factor, short ones kept, between them interpolated
    yarn,      ///< Peng et al. 2023: the same by numbers of rotations, and an amplitude
    longrope,  ///< f_i / factors[i], and an amplitude
  };
  Kind kind = Kind::none;
  double factor = 1;
  double original_length = 0;             ///< llama3, yarn, longrope: positions trained on before scaling
  double low_frequency_factor = 1;        ///< llama3
  double high_frequency_factor = 4;       ///< llama3
  double beta_fast = 32, beta_slow = 1;   ///< yarn
  double mscale = 0, mscale_all_dim = 0;  ///< yarn: both nonzero give the amplitude as a ratio
  bool truncate = true;                   ///< yarn: bounds of the ramp are whole numbers
  std::vector<double> factors = {};       ///< longrope: [width / 2]
  double attention_factor = 0;            ///< yarn, longrope: the amplitude; 0: by the rule of the kind
};

struct RotaryOptions {
  int64_t width = 0;  ///< rotated elements of a head, from its first on: even; the others stay
  double base = 10000;
  RotaryLayout layout = RotaryLayout::half_split;
  RotaryScaling scaling = {};
};

/// [width / 2], radians a position, in f64. Throws Error naming the option that is wrong.
std::vector<double> rotary_frequencies(const RotaryOptions& options);
/// What rotated elements are multiplied with: 1 but for yarn and longrope.
double rotary_amplitude(const RotaryOptions& options);

/// Cosines and sines of some positions, amplitude included, made once for all layers: 2 x width / 2 numbers a position.
struct RotaryTable {
  Tensor cosines;  ///< [N, width / 2]
  Tensor sines;    ///< [N, width / 2]
  RotaryLayout layout = RotaryLayout::half_split;
  int64_t width = 0;
};

/// `positions` [N] i64 or i32, of magnitude at most 2^31. Phases are products in f64, rounded once after cosine and
/// sine to `dtype`: f32, or f64 for f64 activations.
RotaryTable rotary_table(const TensorView& positions, const RotaryOptions& options, DType dtype = DType::f32);

/// Rotates x [N, heads, D] in place, D >= width, row n by the table's row n; any strides, any floating dtype, f64 with
/// an f64 table. Throws Error naming what does not fit.
void rotary_forward(const MutableTensorView& x, const RotaryTable& table, int threads = 0);
/// The derivative: rotates by minus the angles, with the same amplitude.
void rotary_backward(const MutableTensorView& d_x, const RotaryTable& table, int threads = 0);

}  // namespace qkv
