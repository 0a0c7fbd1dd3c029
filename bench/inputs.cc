// SPDX-License-Identifier: Apache-2.0
#include "inputs.h"

#include <algorithm>
#include <cmath>

#include "fill.h"
#include "qkv/support/checked.h"

namespace qkv::bench {
namespace {

/// [B, H, T, width] in the layout of the case; [T, H, width] when packed. Every page is touched.
Placed place(const Case& spec, int64_t heads, int64_t rows, int64_t width) {
  const int64_t B = spec.B, H = heads, T = rows, W = width;
  Dims shape, strides;
  if (spec.packed > 0) {
    shape = {T, H, W};
    strides = contiguous_strides(shape);
  } else {
    shape = {B, H, T, W};
    switch (spec.layout) {
      case Layout::contiguous: strides = {H * T * W, T * W, W, 1}; break;
      case Layout::token_major: strides = {T * H * W, W, H * W, 1}; break;
      case Layout::transposed: strides = {H * T * W, T * W, 1, T}; break;
    }
  }
  Placed placed;
  placed.storage = Tensor(spec.dtype, {element_count(shape)});
  const MutableTensorView flat = placed.storage.mutable_view();
  fill_zero(flat);
  placed.view = MutableTensorView(spec.dtype, flat.data(), shape, strides);
  return placed;
}

/// The shape of a bias or a mask with the named axes full.
Dims masked_shape(const Case& spec, const std::string& axes) {
  const Dims full = {spec.B, spec.H, spec.Tq, spec.Tk};
  Dims shape = full;
  for (int a = 0; a < 4; ++a) shape[a] = axes[static_cast<size_t>(a)] == '1' ? 1 : full[a];
  return shape;
}

int64_t* writable_integers(Tensor& tensor) { return static_cast<int64_t*>(tensor.mutable_view().data()); }

/// Lengths that fall evenly from the whole to the given share of it.
Tensor lengths(int64_t B, int64_t whole, double shortest) {
  Tensor result(DType::i64, {B});
  for (int64_t b = 0; b < B; ++b) {
    const double step = B == 1 ? 1.0 : static_cast<double>(b) / static_cast<double>(B - 1);
    writable_integers(result)[b] = std::llround(static_cast<double>(whole) * (1.0 - step * (1.0 - shortest)));
  }
  return result;
}

/// `count` + 1 ascending positions from 0 to `whole`, of uneven distances.
std::vector<int64_t> cuts(int64_t count, int64_t whole, uint64_t seed) {
  std::vector<int64_t> positions = {0};
  for (int64_t s = 1; s < count; ++s) {
    const double moved = static_cast<double>(s) + 0.6 * (uniform(seed, s) - 0.5);
    positions.push_back(static_cast<int64_t>(moved * static_cast<double>(whole) / static_cast<double>(count)));
  }
  positions.push_back(whole);
  return positions;
}

Tensor starts(int64_t count, int64_t whole) {
  Tensor result(DType::i64, {count + 1});
  const std::vector<int64_t> positions = cuts(count, whole, 71);
  std::copy(positions.begin(), positions.end(), writable_integers(result));
  return result;
}

Tensor segments(int64_t B, int64_t rows, int64_t count) {
  Tensor result(DType::i64, {B, rows});
  for (int64_t b = 0; b < B; ++b) {
    const std::vector<int64_t> positions = cuts(count, rows, 90 + static_cast<uint64_t>(b));
    for (int64_t s = 0; s < count; ++s) {
      int64_t* row = writable_integers(result) + b * rows;
      std::fill(row + positions[static_cast<size_t>(s)], row + positions[static_cast<size_t>(s) + 1], s);
    }
  }
  return result;
}

Tensor random_mask(const Case& spec) {
  Tensor result(DType::boolean, masked_shape(spec, spec.mask));
  uint8_t* bytes = static_cast<uint8_t*>(result.mutable_view().data());
  const int64_t rows = result.shape()[2], columns = result.shape()[3];
  for (int64_t e = 0; e < element_count(result.shape()); ++e) {
    const int64_t plane = e / (rows * columns), i = e / columns % rows, j = e % columns;
    const int64_t tile = (plane * rows + i / spec.mask_tile) * columns + j / spec.mask_tile;
    bytes[e] = uniform(41, tile) < spec.mask_share ? 1 : 0;
  }
  return result;
}

Tensor random_blocks(const Case& spec) {
  const int64_t rows = ceil_divide(spec.Tq, spec.block.queries), columns = ceil_divide(spec.Tk, spec.block.keys);
  Tensor result(DType::boolean, {1, 1, rows, columns});
  uint8_t* bytes = static_cast<uint8_t*>(result.mutable_view().data());
  for (int64_t e = 0; e < rows * columns; ++e) {
    const bool diagonal = e / columns * columns == e % columns * rows;
    bytes[e] = diagonal || uniform(42, e) < spec.block_share ? 1 : 0;
  }
  return result;
}

void fill_terms(Inputs& in) {
  const Case& spec = in.spec;
  const DType wide = spec.dtype == DType::f64 ? DType::f64 : DType::f32;
  if (!spec.bias.empty()) {
    in.bias = Tensor(spec.dtype, masked_shape(spec, spec.bias));
    fill_bell(in.bias, 11, 1.0);
  }
  if (spec.alibi) {  // Press et al. 2021: 2^(-8 (h + 1) / H)
    in.slopes = Tensor(wide, {spec.H});
    const MutableTensorView view = in.slopes.mutable_view();
    for (int64_t h = 0; h < spec.H; ++h) {
      store_as(wide, view.at(h), std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(spec.H)));
    }
  }
  if (spec.table > 0) {
    in.table = Tensor(wide, {spec.H, spec.table});
    fill_bell(in.table, 12, 0.5);
  }
  if (spec.sinks) {
    in.sinks = Tensor(wide, {spec.H});
    fill_bell(in.sinks, 13, 1.0);
  }
}

void fill_masks(Inputs& in) {
  const Case& spec = in.spec;
  if (!spec.mask.empty()) in.mask = random_mask(spec);
  if (spec.block.queries > 0) in.block_mask = random_blocks(spec);
  if (spec.key_lengths) in.key_lengths = lengths(spec.B, spec.Tk, *spec.key_lengths);
  if (spec.query_lengths) in.query_lengths = lengths(spec.B, spec.Tq, *spec.query_lengths);
  if (spec.segments > 0) {
    in.query_segment = segments(spec.B, spec.Tq, spec.segments);
    in.key_segment = segments(spec.B, spec.Tk, spec.segments);
  }
  if (spec.packed > 0) {
    in.query_starts = starts(spec.packed, spec.Tq);
    in.key_starts = starts(spec.packed, spec.Tk);
  }
}

AttentionOptions options_of(const Inputs& in) {
  const Case& spec = in.spec;
  AttentionOptions options;
  options.scale = spec.scale;
  options.softcap = spec.softcap;
  options.causal = spec.causal;
  options.window = spec.window;
  options.offset = spec.offset;
  options.bias = in.bias.view();
  options.slopes = in.slopes.view();
  options.table = in.table.view();
  options.buckets = spec.buckets;
  options.sinks = in.sinks.view();
  options.mask = in.mask.view();
  options.key_lengths = in.key_lengths.view();
  options.query_lengths = in.query_lengths.view();
  options.query_segment = in.query_segment.view();
  options.key_segment = in.key_segment.view();
  options.block_mask = in.block_mask.view();
  options.block = spec.block;
  options.query_starts = in.query_starts.view();
  options.key_starts = in.key_starts.view();
  options.dropout = spec.dropout;
  if (spec.dropout > 0) options.seed = 20240607;
  return options;
}

MutableTensorView gradient_like(const Case& spec, const char* what, const Tensor& input, Tensor& storage) {
  if (!spec.trains(what)) return {};
  require(static_cast<bool>(input), "bench: ", spec.name, ": trainable ", what, ", but the case has no ", what);
  storage = Tensor(input.dtype(), input.shape());
  fill_zero(storage.mutable_view());
  return storage.mutable_view();
}

void place_gradients(Inputs& in) {
  const Case& spec = in.spec;
  in.d_out = place(spec, spec.H, spec.Tq, spec.Dv);
  fill_bell(in.d_out.storage, 4, 1.0);
  in.d_q = place(spec, spec.H, spec.Tq, spec.D);
  in.d_k = place(spec, spec.Hkv, spec.Tk, spec.D);
  in.d_v = place(spec, spec.Hkv, spec.Tk, spec.Dv);
  AttentionGradients& gradients = in.gradients;
  gradients.q = in.d_q.view;
  gradients.k = in.d_k.view;
  gradients.v = in.d_v.view;
  gradients.bias = gradient_like(spec, "bias", in.bias, in.d_bias);
  gradients.slopes = gradient_like(spec, "slopes", in.slopes, in.d_slopes);
  gradients.table = gradient_like(spec, "table", in.table, in.d_table);
  gradients.sinks = gradient_like(spec, "sinks", in.sinks, in.d_sinks);
  if (spec.trains("scale")) {
    in.d_scale = Tensor(spec.dtype == DType::f64 ? DType::f64 : DType::f32, {1});
    gradients.scale = in.d_scale.mutable_view();
  }
}

void place_directions(Inputs& in) {
  const Case& spec = in.spec;
  in.t_q = place(spec, spec.H, spec.Tq, spec.D);
  in.t_k = place(spec, spec.Hkv, spec.Tk, spec.D);
  in.t_v = place(spec, spec.Hkv, spec.Tk, spec.Dv);
  in.t_out = place(spec, spec.H, spec.Tq, spec.Dv);
  fill_bell(in.t_q.storage, 5, 1.0);
  fill_bell(in.t_k.storage, 6, 1.0);
  fill_bell(in.t_v.storage, 7, 1.0);
}

}  // namespace

const int64_t* integers(const Tensor& tensor) { return static_cast<const int64_t*>(tensor.view().data()); }

bool Inputs::has_gradients() const {
  return std::any_of(spec.modes.begin(), spec.modes.end(), [](Mode mode) { return mode != Mode::forward; });
}

bool Inputs::has_directions() const { return spec.has_mode(Mode::jvp) || spec.has_mode(Mode::second); }

Inputs::Inputs(const Case& which) : spec(which) {
  q = place(spec, spec.H, spec.Tq, spec.D);
  k = place(spec, spec.Hkv, spec.Tk, spec.D);
  v = place(spec, spec.Hkv, spec.Tk, spec.Dv);
  fill_bell(q.storage, 1, 1.0);
  fill_bell(k.storage, 2, 1.0);
  fill_bell(v.storage, 3, 1.0);
  out = place(spec, spec.H, spec.Tq, spec.Dv);
  lse.storage = Tensor(spec.dtype == DType::f64 ? DType::f64 : DType::f32,
                       spec.packed > 0 ? Dims{spec.Tq, spec.H} : Dims{spec.B, spec.H, spec.Tq});
  lse.view = lse.storage.mutable_view();
  fill_zero(lse.view);
  fill_terms(*this);
  fill_masks(*this);
  options = options_of(*this);
  if (spec.cached) {
    cache = std::make_unique<KeyValueCache>(spec.B, spec.Hkv, spec.D, spec.Dv, spec.dtype);
    cache->append(k.view, v.view);
  }
  if (has_gradients()) place_gradients(*this);
  if (has_directions()) place_directions(*this);
}

}  // namespace qkv::bench
