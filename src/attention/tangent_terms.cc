// SPDX-License-Identifier: Apache-2.0
#include "attention/tangent_terms.h"

#include "attention/bias.h"

namespace qkv {

template <class T>
TangentTerms<T>::TangentTerms(const Problem& problem, const TangentOperands& tangents, const BucketMap& buckets,
                              const AttentionKernels<T>& kernels, int64_t rows, int64_t keys)
    : problem_(problem),
      tangents_(tangents),
      buckets_(buckets),
      kernels_(kernels),
      stride_(round_up(keys, kernels.panel_width)),
      terms_(tangents.bias ? (rows + 1) * stride_ : 0),
      distances_(relative() ? rows + stride_ : 0) {}

template <class T>
void TangentTerms<T>::fill_distances(const TileRange& tile) {
  const int64_t last = tile.first_row + tile.rows - 1 + problem_.sequence(tile.b).offset;
  const Operand &slopes = tangents_.slopes, &table = tangents_.table;
  const T slope = slopes ? load_as<T>(slopes.dtype, slopes.at(0, tile.h, 0, 0)) : T{0};
  for (int64_t n = 0; n < tile.rows + tile.keys - 1; ++n) {
    const int64_t distance = last - (tile.first_key + n);
    T term = slopes ? slope * static_cast<T>(alibi_distance(distance)) : T{0};
    if (table) term += load_as<T>(table.dtype, table.at(0, tile.h, 0, buckets_(distance)));
    distances_[n] = term;
  }
}

template <class T>
void TangentTerms<T>::set(const TileRange& tile, int64_t begin, int64_t end) {
  if (relative()) {
    fill_distances(tile);
    current_ = distances_.get() + tile.rows - 1;
    current_stride_ = -1;
  }
  const Operand& bias = tangents_.bias;
  if (!bias) return;
  kernels_.pack_rows({bias.at(tile.b, tile.h, tile.first_row, tile.first_key + begin), bias.dtype, bias.stride[2],
                      bias.stride[3], tile.rows, end - begin},
                     terms_.get() + begin, stride_, nullptr);
  current_ = terms_.get();
  current_stride_ = stride_;
  if (!relative()) return;
  for (int64_t r = 0; r < tile.rows; ++r) {
    T* row = terms_.get() + r * stride_;
    const T* distances = distances_.get() + tile.rows - 1 - r;
    for (int64_t c = begin; c < end; ++c) row[c] += distances[c];
  }
}

template class TangentTerms<float>;
template class TangentTerms<double>;

}  // namespace qkv
