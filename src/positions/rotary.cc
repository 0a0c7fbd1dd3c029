// SPDX-License-Identifier: Apache-2.0
//
// Rotary frequencies with their scalings, tables of cosines and sines, and their application. Everything about phases
// is f64: at position 2^31 a phase of frequency 1 is off by 2^-22, where f32 would know only its multiple of 256.
#include "qkv/positions/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/layer_kernels.h"
#include "kernels/layer_rows.h"
#include "positions/integer_positions.h"
#include "qkv/support/error.h"

namespace qkv {
namespace {

using Kind = RotaryScaling::Kind;

void check_positive(double value, const char* name) {
  require(std::isfinite(value) && value > 0, "rotary: ", name, " should be a positive number, got ", value);
}

void check_options(const RotaryOptions& options) {
  const RotaryScaling& scaling = options.scaling;
  require(options.width >= 0 && options.width % 2 == 0, "rotary: width should be even, got ", options.width);
  check_positive(options.base, "base");
  if (scaling.kind == Kind::none) return;
  if (scaling.kind != Kind::longrope) check_positive(scaling.factor, "factor");
  if (scaling.kind == Kind::llama3 || scaling.kind == Kind::yarn) {
    check_positive(scaling.original_length, "original_length");
  }
  if (scaling.kind == Kind::llama3) {
    check_positive(scaling.low_frequency_factor, "low_frequency_factor");
    require(scaling.high_frequency_factor > scaling.low_frequency_factor,
            "rotary: high_frequency_factor should exceed low_frequency_factor ", scaling.low_frequency_factor, ", got ",
            scaling.high_frequency_factor);
  }
  if (scaling.kind == Kind::yarn) {
    require(options.base != 1, "rotary: base 1 has no wavelengths to scale by yarn");
    check_positive(scaling.beta_fast, "beta_fast");
    check_positive(scaling.beta_slow, "beta_slow");
  }
  if (scaling.kind == Kind::longrope) {
    require(static_cast<int64_t>(scaling.factors.size()) == options.width / 2, "rotary: longrope needs ",
            options.width / 2, " factors for width ", options.width, ", got ", scaling.factors.size());
    for (const double factor : scaling.factors) check_positive(factor, "a factor of longrope");
  }
  require(std::isfinite(scaling.attention_factor) && scaling.attention_factor >= 0,
          "rotary: attention_factor should be a positive number, or 0 for the rule, got ", scaling.attention_factor);
}

/// Llama 3: wavelengths beyond original_length / low are stretched by the factor, those below original_length / high
/// are kept, between them the frequency is interpolated.
double llama3_frequency(double frequency, const RotaryScaling& scaling) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < scaling.original_length / scaling.high_frequency_factor) return frequency;
  if (wavelength > scaling.original_length / scaling.low_frequency_factor) return frequency / scaling.factor;
  const double smooth = (scaling.original_length / wavelength - scaling.low_frequency_factor) /
                        (scaling.high_frequency_factor - scaling.low_frequency_factor);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

/// The pair whose wavelength makes this many rotations within the original length (Peng et al. 2023, section 3.2).
double yarn_pair(double rotations, const RotaryOptions& options) {
  return static_cast<double>(options.width) *
         std::log(options.scaling.original_length / (rotations * 2 * std::numbers::pi)) / (2 * std::log(options.base));
}

void scale_by_yarn(std::vector<double>& frequencies, const RotaryOptions& options) {
  const RotaryScaling& scaling = options.scaling;
  double low = yarn_pair(scaling.beta_fast, options);
  double high = yarn_pair(scaling.beta_slow, options);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(options.width - 1));
  if (low == high) high += 0.001;  // as published: no division by zero
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double stretched = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / scaling.factor * stretched + frequencies[i] * (1 - stretched);
  }
}

double yarn_magnitude(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1; }

/// Element stride of the pairs' first and second elements, and where the second ones begin.
struct PairLayout {
  int64_t stride;
  int64_t second;
};
PairLayout pairs_of(const RotaryTable& table, int64_t stride) {
  if (table.layout == RotaryLayout::half_split) return {stride, table.width / 2 * stride};
  return {2 * stride, stride};
}

template <class T>
void rotate(const MutableTensorView& x, const RotaryTable& table, bool backward, int threads) {
  const PairLayout layout = pairs_of(table, x.stride(2));
  const int64_t pairs = table.width / 2, heads = x.size(1);
  const T* cosines = static_cast<const T*>(table.cosines.view().data());
  const T* sines = static_cast<const T*>(table.sines.view().data());
  const int64_t rows = std::max<int64_t>(1, kLayerItem / std::max<int64_t>(1, heads * table.width));
  const int used = x.size(0) * heads * table.width < 2 * kLayerItem ? 1 : threads;
  for_each_rows(x, rows * heads, used, [&](int64_t first, int64_t count, int64_t, int) {
    StoredRows a = rows_part(x, first, count);
    a.column_stride = layout.stride;
    a.columns = pairs;
    StoredRows b = a;
    b.data = static_cast<const char*>(a.data) + layout.second * size_of(x.dtype());
    const int64_t n = first / heads;
    kernels().layers<T>().rotate({a, b, cosines + n * pairs, sines + n * pairs, backward});
  });
}

void check_and_rotate(const MutableTensorView& x, const RotaryTable& table, bool backward, int threads) {
  const LayerCheck check("rotary", "x", x);
  require(x.rank() == 3, "rotary: x should be [rows, heads, width], got ", x.shape());
  require(x.size(2) >= table.width, "rotary: heads have width ", x.size(2), ", the table rotates ", table.width);
  require(table.cosines && table.cosines.shape() == table.sines.shape() &&
              table.cosines.dtype() == table.sines.dtype() && table.cosines.shape() == Dims{x.size(0), table.width / 2},
          "rotary: x has ", x.size(0), " rows, the table is ", table.cosines.shape(), " for width ", table.width);
  const bool is_wide = x.dtype() == DType::f64;
  require(table.cosines.dtype() == (is_wide ? DType::f64 : DType::f32), "rotary: the table is ",
          name(table.cosines.dtype()), ", x is ", name(x.dtype()), ": f64 goes with f64 only");
  check.threads(threads);
  check.output("x", x, {});
  if (x.elements() == 0 || table.width == 0) return;
  if (is_wide) {
    rotate<double>(x, table, backward, threads);
  } else {
    rotate<float>(x, table, backward, threads);
  }
}

}  // namespace

std::vector<double> rotary_frequencies(const RotaryOptions& options) {
  check_options(options);
  std::vector<double> frequencies(static_cast<size_t>(options.width / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = std::pow(options.base, -2 * static_cast<double>(i) / static_cast<double>(options.width));
  }
  const RotaryScaling& scaling = options.scaling;
  switch (scaling.kind) {
    case Kind::none: break;
    case Kind::linear:
      for (double& f : frequencies) f /= scaling.factor;
      break;
    case Kind::llama3:
      for (double& f : frequencies) f = llama3_frequency(f, scaling);
      break;
    case Kind::yarn: scale_by_yarn(frequencies, options); break;
    case Kind::longrope:
      for (size_t i = 0; i < frequencies.size(); ++i) frequencies[i] /= scaling.factors[i];
      break;
  }
  return frequencies;
}

double rotary_amplitude(const RotaryOptions& options) {
  check_options(options);
  const RotaryScaling& scaling = options.scaling;
  if (scaling.kind != Kind::yarn && scaling.kind != Kind::longrope) return 1;
  if (scaling.attention_factor != 0) return scaling.attention_factor;
  if (scaling.kind == Kind::longrope) {
    check_positive(scaling.factor, "factor");
    if (scaling.factor <= 1) return 1;
    require(scaling.original_length > 1, "rotary: original_length should exceed 1, got ", scaling.original_length);
    return std::sqrt(1 + std::log(scaling.factor) / std::log(scaling.original_length));
  }
  if (scaling.mscale != 0 && scaling.mscale_all_dim != 0) {
    return yarn_magnitude(scaling.factor, scaling.mscale) / yarn_magnitude(scaling.factor, scaling.mscale_all_dim);
  }
  return yarn_magnitude(scaling.factor, 1);
}

RotaryTable rotary_table(const TensorView& positions, const RotaryOptions& options, DType dtype) {
  const std::vector<double> frequencies = rotary_frequencies(options);
  const double amplitude = rotary_amplitude(options);
  require(dtype == DType::f32 || dtype == DType::f64, "rotary: a table is f32 or f64, got ", name(dtype));
  const std::vector<int64_t> values = integer_positions(positions, "rotary");
  const int64_t pairs = options.width / 2;
  RotaryTable table;
  table.layout = options.layout;
  table.width = options.width;
  const Dims shape = {static_cast<int64_t>(values.size()), pairs};
  table.cosines = Tensor(dtype, shape);
  table.sines = Tensor(dtype, shape);
  const MutableTensorView cosines = table.cosines.mutable_view(), sines = table.sines.mutable_view();
  for (size_t n = 0; n < values.size(); ++n) {
    for (int64_t i = 0; i < pairs; ++i) {
      const double phase = static_cast<double>(values[n]) * frequencies[static_cast<size_t>(i)];
      const int64_t at = static_cast<int64_t>(n) * pairs + i;
      store_from_double(dtype, cosines.at(at), amplitude * std::cos(phase));
      store_from_double(dtype, sines.at(at), amplitude * std::sin(phase));
    }
  }
  return table;
}

void rotary_forward(const MutableTensorView& x, const RotaryTable& table, int threads) {
  check_and_rotate(x, table, false, threads);
}

void rotary_backward(const MutableTensorView& d_x, const RotaryTable& table, int threads) {
  check_and_rotate(d_x, table, true, threads);
}

}  // namespace qkv
