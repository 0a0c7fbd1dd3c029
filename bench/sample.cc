// SPDX-License-Identifier: Apache-2.0
#include "sample.h"

#include <algorithm>

namespace qkv::bench {
namespace {

/// Length of a packed sequence, or the rows of a batch entry.
int64_t sequence_length(const Tensor& starts, int64_t b, int64_t padded) {
  return starts ? integers(starts)[b + 1] - integers(starts)[b] : padded;
}

/// One sequence of [total, heads, ...] as [1, heads, rows, ...].
MutableTensorView unpacked(const MutableTensorView& packed, int64_t begin, int64_t rows) {
  Dims shape = {1, packed.size(1), rows}, strides = {0, packed.stride(1), packed.stride(0)};
  if (packed.rank() == 3) {
    shape.push_back(packed.size(2));
    strides.push_back(packed.stride(2));
  }
  return {packed.dtype(), packed.at(begin * packed.stride(0)), shape, strides};
}

MutableTensorView writable(const TensorView& view) {
  return {view.dtype(), const_cast<void*>(view.data()), view.shape(), view.strides()};
}

/// A bias, mask or block mask of a chunk: axes of size 1 are broadcast and stay.
TensorView cut_plane(const TensorView& view, const Chunk& chunk, int64_t row, int64_t rows) {
  if (!view) return view;
  const TensorView entries = view.size(0) == 1 ? view : cut(view, 0, chunk.b, chunk.entries);
  return view.size(2) == 1 ? entries : cut(entries, 2, row, rows);
}

int64_t batch_entries(const Inputs& inputs) { return inputs.spec.packed > 0 ? inputs.spec.packed : inputs.spec.B; }

/// Chunks of one batch entry (or sequence): all of its rows when they are few, else its first, middle and last ones.
void add_chunks(const Inputs& inputs, int64_t b, int64_t rows, std::vector<Chunk>& chunks) {
  const int64_t length = sequence_length(inputs.query_starts, b, inputs.spec.Tq);
  if (length <= 3 * rows) return chunks.push_back({b, 1, 0, length});
  const int64_t step = std::max<int64_t>(1, inputs.spec.block.queries);  // a block mask is cut between its blocks
  int64_t end = 0;
  for (const int64_t begin : {int64_t{0}, (length - rows) / 2, length - rows}) {
    const int64_t first = begin / step * step;
    if (first < end) continue;
    end = std::min(length, first + rows);
    chunks.push_back({b, 1, first, end - first});
  }
}

}  // namespace

TensorView cut(const TensorView& view, int axis, int64_t begin, int64_t size) {
  return cut(writable(view), axis, begin, size);
}

MutableTensorView cut(const MutableTensorView& view, int axis, int64_t begin, int64_t size) {
  Dims shape = view.shape();
  shape[axis] = size;
  return {view.dtype(), view.at(begin * view.stride(axis)), shape, view.strides()};
}

std::vector<Chunk> sample(const Inputs& inputs, const Work& work, double operations) {
  const Case& spec = inputs.spec;
  const int64_t entries = batch_entries(inputs);
  std::vector<Chunk> chunks;
  const int64_t rows_in_all = spec.packed > 0 ? spec.Tq : spec.B * spec.Tq;
  // Products of visible pairs, and a look at every pair.
  const double row_cost = work.forward_operations / static_cast<double>(std::max<int64_t>(1, rows_in_all)) +
                          static_cast<double>(spec.H * spec.Tk);
  // Dropout depends on the number of the batch entry, which a part that begins at another one cannot have.
  const bool only_first = spec.dropout > 0;
  if (row_cost * static_cast<double>(rows_in_all) <= operations) {
    if (spec.packed == 0) return {{0, spec.B, 0, spec.Tq}};
    for (int64_t s = 0; s < (only_first ? 1 : entries); ++s) add_chunks(inputs, s, spec.Tq, chunks);
    return chunks;
  }
  const int64_t places = only_first || entries == 1 ? 3 : 6;
  // A few rows at least: on one the plain formula may be exact by luck, and its error is the yardstick.
  const int64_t rows = std::max<int64_t>(8, static_cast<int64_t>(operations / row_cost) / places);
  add_chunks(inputs, 0, rows, chunks);
  if (places == 6) add_chunks(inputs, entries - 1, rows, chunks);
  return chunks;
}

bool covers_everything(const Inputs& inputs, const std::vector<Chunk>& chunks) {
  int64_t rows = 0;
  for (const Chunk& chunk : chunks) rows += chunk.entries * chunk.rows;
  return rows == (inputs.spec.packed > 0 ? inputs.spec.Tq : inputs.spec.B * inputs.spec.Tq);
}

MutableTensorView queries_of(const Inputs& inputs, const Chunk& chunk, const MutableTensorView& whole) {
  if (!inputs.query_starts) return cut(cut(whole, 0, chunk.b, chunk.entries), 2, chunk.i, chunk.rows);
  return unpacked(whole, integers(inputs.query_starts)[chunk.b] + chunk.i, chunk.rows);
}

MutableTensorView keys_of(const Inputs& inputs, const Chunk& chunk, const MutableTensorView& whole) {
  if (!inputs.key_starts) return cut(whole, 0, chunk.b, chunk.entries);
  return unpacked(whole, integers(inputs.key_starts)[chunk.b],
                  sequence_length(inputs.key_starts, chunk.b, inputs.spec.Tk));
}

MutableTensorView bias_of(const Chunk& chunk, const MutableTensorView& whole) {
  return writable(cut_plane(whole, chunk, chunk.i, chunk.rows));
}

Part::Part(const Inputs& inputs, const Chunk& which) : chunk(which), options(inputs.options) {
  const Case& spec = inputs.spec;
  q = queries_of(inputs, chunk, inputs.q.view);
  k = keys_of(inputs, chunk, inputs.k.view);
  v = keys_of(inputs, chunk, inputs.v.view);
  if (inputs.has_gradients()) d_out = queries_of(inputs, chunk, inputs.d_out.view);
  options.query_starts = options.key_starts = {};

  const int64_t more_keys =
      sequence_length(inputs.key_starts, chunk.b, spec.Tk) - sequence_length(inputs.query_starts, chunk.b, spec.Tq);
  switch (spec.causal.kind()) {
    case Causal::Kind::top_left: options.causal = Causal::with_offset(chunk.i); break;
    case Causal::Kind::bottom_right: options.causal = Causal::with_offset(more_keys + chunk.i); break;
    case Causal::Kind::offset: options.causal = Causal::with_offset(spec.causal.offset() + chunk.i); break;
    default: options.offset = spec.offset + chunk.i;
  }
  options.bias = cut_plane(options.bias, chunk, chunk.i, chunk.rows);
  options.mask = cut_plane(options.mask, chunk, chunk.i, chunk.rows);
  if (options.block_mask) {
    const int64_t side = spec.block.queries;
    options.block_mask = cut_plane(options.block_mask, chunk, chunk.i / side, (chunk.rows + side - 1) / side);
  }
  if (options.key_lengths) options.key_lengths = cut(options.key_lengths, 0, chunk.b, chunk.entries);
  if (options.key_segment) {
    options.key_segment = cut(options.key_segment, 0, chunk.b, chunk.entries);
    options.query_segment = cut(cut(options.query_segment, 0, chunk.b, chunk.entries), 1, chunk.i, chunk.rows);
  }
  if (options.query_lengths) {
    query_lengths_ = Tensor(DType::i64, {chunk.entries});
    int64_t* rest = static_cast<int64_t*>(query_lengths_.mutable_view().data());
    for (int64_t e = 0; e < chunk.entries; ++e) {
      rest[e] = std::clamp<int64_t>(integers(inputs.query_lengths)[chunk.b + e] - chunk.i, 0, chunk.rows);
    }
    options.query_lengths = query_lengths_.view();
  }
}

}  // namespace qkv::bench
