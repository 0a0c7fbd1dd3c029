// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "qkv/tensor/dtype.h"

namespace qkv {

// What the attention room asks of one instruction set. T is the compute type, float or double. Everything below is
// pointers, sizes and strides (in elements); scratch belongs to the caller and is 64-byte aligned.

/// Rows of a stored tensor on their way into packed form.
struct StoredRows {
  const void* data;  ///< first element of the first row
  DType dtype;
  int64_t row_stride;
  int64_t column_stride;
  int64_t rows;
  int64_t columns;
};

/// The rows of a packed operand that hold NaN or infinities, in pairs of bf16 also what kSmallestPaired and
/// kLargestPaired exclude. Packed, such elements are 0, and products add their share only where the pair is visible, so
/// that what is hidden cannot leak through 0 * NaN.
struct NonFiniteRows {
  StoredRows source;  ///< where their values are read again
  const int64_t* rows = nullptr;
  int64_t count = 0;
  int64_t first_row = 0;  ///< of the source, row 0 of the tile
};

/// Two consecutive inner elements of bf16 operands, the first in the lower half: what one step of a bf16 dot product
/// takes. Of an odd inner length the last upper half is 0.
struct BFloat16Pair {
  uint32_t bits;
};

/// Magnitudes of bf16 that a streamed operand keeps in pairs, beside 0. Smaller ones could vanish in products, whose
/// results below 2^-126 the instruction flushes to 0, subnormal operands before they are multiplied; larger ones could
/// overflow between the two products of a pair.
inline constexpr float kSmallestPaired = 0x1p-64F;
inline constexpr float kLargestPaired = 0x1p64F;

// Yes or no for each pair of a tile: one bit a column, column c of a row at bit c % 64 of its word c / 64.

/// The dropout decisions of a tile.
template <class T>
struct TileDropout {
  const uint64_t* kept = nullptr;  ///< [rows, stride]: bits; null: no dropout
  int64_t stride = 0;              ///< in words
  T keep = 1;                      ///< 1 / (1 - p)
};

/// The scores of `rows` queries against the columns [begin, end) of one key block.
/// A hidden pair may have any score and any term. Operands are of T or of BFloat16Pair; widths and strides count those.
template <class T, class E = T>
struct ScoreTile {
  const E* q;  ///< [rows, q_stride]
  int64_t q_stride;
  const E* keys;  ///< panels of the block: [panel][D][panel_width]
  int64_t rows;
  int64_t D;
  int64_t begin = 0;  ///< a multiple of the panel width
  int64_t end = 0;
  T scale;                   ///< not negative
  T softcap;                 ///< 0: off
  bool finished;             ///< the problem has a soft-cap, additive terms or scale 0; else scores stay unscaled
  const T* terms = nullptr;  ///< [rows, terms_stride], added after the soft-cap; whole vectors are read. Null: none
  int64_t terms_stride = 0;  ///< rows may overlap: the stride may be 0 or negative
  const uint64_t* visible = nullptr;  ///< [rows, visible_stride]: bits; null: every pair is visible
  int64_t visible_stride = 0;         ///< in words
  int64_t shared_begin = 0;  ///< columns [shared_begin, shared_end), whole vectors, are visible to every row: `visible`
  int64_t shared_end = 0;    ///< is not read there
  uint64_t blank_words = 0;  ///< bit w: no row sees any of the columns of word w
  T* scores;                 ///< [rows, scores_stride], written on [begin, end rounded up to a vector)
  int64_t scores_stride;
};

/// Rows of a forward tile at most, which share one pass over a key block: eight register tiles; their scores of 512
/// keys take 96 KiB. Measured at D = 64: 1 % faster than 12 rows, whose scores would stay in L1.
inline constexpr int64_t kForwardRows = 48;
/// Rows that meet keys and values together, in one register tile.
inline constexpr int64_t kForwardTileRows = 6;

/// Rows that are read or written soon, asked for while a tile is computed.
struct RowsAhead {
  StoredRows rows[4] = {};
};

/// One block's triple (m, l, O) from zero, merged into the running triples of the rows.
template <class T, class E = T>
struct ForwardTile {
  ScoreTile<T, E> score;  ///< at most kForwardRows rows
  const E* v;             ///< [keys of the block, v_stride], finite
  int64_t v_stride;       ///< whole vectors
  NonFiniteRows v_nonfinite;
  TileDropout<T> dropout;
  bool first;     ///< the rows have met no block: m, l and out are written, not read
  T* block_out;   ///< scratch [kForwardTileRows, v_stride]
  T* m;           ///< [rows]
  T* l;           ///< [rows]
  T* weight_sum;  ///< [rows], in pairs: as Triples has it
  T* out;         ///< [rows, out_stride], v_stride columns of each
  int64_t out_stride;
  RowsAhead ahead = {};
};

/// Triples (m, l, O) of some rows.
template <class T>
struct Triples {
  T* m;  ///< [rows]
  T* l;  ///< [rows]
  /// [rows], in pairs: the sum of the weights as they were rounded for O, before dropout; what O is divided by. Null:
  /// they were not, and it is l.
  T* weight_sum;
  T* out;  ///< [rows, stride]
  int64_t stride;

  /// Those of the rows from `row` on.
  Triples from(int64_t row) const {
    return {m + row, l + row, weight_sum == nullptr ? nullptr : weight_sum + row, out + row * stride, stride};
  }
};

/// Panels of keys in words of the compute type's size, or of 32 bits: [panel][words][panel_width]. A word holds an
/// element, of bf16 and f16 two consecutive ones of a key, the first in its lower half.
struct StoredPanels {
  const void* data = nullptr;
  DType dtype = DType::f32;
  int64_t columns = 0;  ///< elements of a key
};

/// Few rows against one key block, its keys and values read where and as they are stored: rows whose columns are one
/// element apart, keys from `panels` instead where there are some. `block.score.keys`, `block.v` and
/// `block.v_nonfinite` are not used; m, l and out are written.
template <class T, class E = T>
struct DecodeTile {
  ForwardTile<T, E> block;
  StoredRows keys;
  StoredPanels panels;
  StoredRows values;
  const void* then = nullptr;  ///< where the keys begin that are read next, if that is known
};

/// One backward tile. The operands that are streamed come finite, with the list of what was taken out; the broadcast
/// ones come as they are stored (the same memory where nothing was taken out). In pairs, streamed operands are pairs of
/// rows, [rows / 2, width], and the two forms differ.
template <class T, class E = T>
struct BackwardTile {
  ScoreTile<T, E> score;  ///< scores: scratch; on return r P
  const E* q_streamed;    ///< [rows, q_width]
  NonFiniteRows q_nonfinite;
  const E* d_out;  ///< [rows, d_out_stride]
  int64_t d_out_stride;
  const E* d_out_streamed;  ///< [rows, v_width]
  NonFiniteRows d_out_nonfinite;
  int64_t q_width;  ///< D padded to whole vectors: of streamed queries and keys, of d_q and d_k
  int64_t v_width;
  int64_t Dv;
  const E* values;      ///< panels of the value block: [panel][Dv][panel_width]
  const E* k_streamed;  ///< [keys, q_width]
  NonFiniteRows k_nonfinite;
  const T* m;                   ///< [rows]
  const T* inverse_l;           ///< [rows], 1 / l
  const T* inverse_l_low;       ///< [rows], what rounding took from it: p / l comes out as if divided
  const T* delta;               ///< [rows]; of a whole row without its sum of P dP
  const T* delta_low;           ///< [rows], what rounding took from it
  const T* estimate;            ///< [rows]; a number near the sum of P dP, of a whole row and for `delta_sums`
  const T* sink_weight;         ///< [rows], exp(sink - m) / l
  const uint8_t* is_whole_row;  ///< [rows]: nonzero where every key the row sees is in this tile
  T* final_delta;               ///< [rows]: delta, written here for whole rows
  T* delta_sums;                ///< [rows]: sum of P (dP - estimate), written by the kernel of that name alone
  TileDropout<T> dropout;
  T* d_scores;         ///< [rows, scores_stride]: on return dS
  bool keep_d_scores;  ///< in pairs: false leaves them undefined
  T* products;         ///< scratch [rows, scores_stride], in pairs: q . k; null where d_scale is not wanted
  T* scale_sums;       ///< [rows], with `products`: sum of dC (q . k)
  T* factors;          ///< scratch [rows, scores_stride], used with a soft-cap
  E* weights_by_key;   ///< scratch of pairs of rows [rows / 2, scores_stride], used in pairs: r P
  E* d_inner_by_key;   ///< likewise: dC
  E* d_inner_by_row;   ///< scratch of pairs of columns [rows, scores_stride / 2], used in pairs: dC
  T* d_q;              ///< [rows, q_width], += dC k
  T* d_k;              ///< [keys, q_width], += dC^T q; null: not wanted
  T* d_v;              ///< [keys, v_width], += (r P)^T d_out; null: not wanted
};

template <class T>
struct AttentionKernels {
  int64_t lanes;        ///< of one vector
  int64_t panel_width;  ///< keys in one packed panel

  /// Rows to T, each padded with zeros to `out_stride`. With `found` set, NaN and infinities become 0 and the rows that
  /// hold some are listed there (at most rows.rows of them); returns how many.
  int64_t (*pack_rows)(const StoredRows& rows, T* out, int64_t out_stride, int64_t* found);
  /// Rows to panels [panel][columns][panel_width], the last one padded with zeros to a whole vector of rows; vectors
  /// beyond are not written.
  void (*pack_panels)(const StoredRows& rows, T* out);
  /// Rows of `values` [to.rows, values_stride], which hold whole vectors, times their factors, rounded once to where
  /// `to` says. Adding 0 makes -0 a 0: the sum of nothing times a negative factor has the bits of a row that was never
  /// summed.
  void (*store_rows)(const T* values, int64_t values_stride, const T* factors, const StoredRows& to);
  /// Panels of `keys` keys to those of T.
  void (*widen_panels)(const StoredPanels& panels, int64_t keys, T* out);
  // Bits of n columns, in whole words; those from n on are 0.
  void (*nonzero_bits)(const uint8_t* bytes, int64_t n, uint64_t* bits);
  void (*equal_bits)(const int64_t* ids, int64_t id, int64_t n, uint64_t* bits);
  /// Set where a term is not -inf.
  void (*shown_bits)(const T* terms, int64_t n, uint64_t* bits);
  /// Set where dropout with this threshold keeps the weight; see qkv/support/random.h.
  void (*kept_bits)(uint64_t row_key, int64_t first_key, uint32_t threshold, int64_t n, uint64_t* bits);
  /// terms[c] += more[c], where -inf in either stays -inf and a finite sum stays finite.
  void (*add_terms)(T* terms, const T* more, int64_t n);
  /// Final scores; hidden ones are -inf, visible ones never.
  void (*score_tile)(const ScoreTile<T>& tile);
  void (*forward_tile)(const ForwardTile<T>& tile);
  /// The bits that forward_tile writes to rows which have met no block, from stored keys and values. False when the
  /// outputs are not all finite: values that hold NaN or infinities must be packed to tell what is hidden from what is
  /// visible.
  bool (*decode_block)(const DecodeTile<T>& tile);
  /// Merges the triples of one block into the rows' triples.
  void (*merge_rows)(const Triples<T>& block, const Triples<T>& into, int64_t rows);
  /// Everything but d_q.
  void (*backward_tile)(const BackwardTile<T>& tile);
  /// d_q of a tile that backward_tile has just left.
  void (*query_gradients)(const BackwardTile<T>& tile);
  /// True when none of n elements, whole vectors of them, is NaN or infinite.
  bool (*all_finite)(const T* values, int64_t n);
  /// y[i] = exp(x[i]) for x <= 0, and tanh(x[i]).
  void (*exp)(const T* x, T* y, int64_t n);
  void (*tanh)(const T* x, T* y, int64_t n);
};

/// What an instruction set with bf16 dot products has beside its AttentionKernels<float>, whose lanes and panels it
/// shares. Rows are bf16; widths of the results count pairs.
struct PairKernels {
  /// Rows to pairs along the columns, for a broadcast operand, each padded with zeros to `out_stride` pairs.
  void (*pack_pair_rows)(const StoredRows& rows, BFloat16Pair* out, int64_t out_stride);
  /// Rows to panels [panel][ceil(columns / 2)][panel_width], the last one padded as by pack_panels.
  void (*pack_pair_panels)(const StoredRows& rows, BFloat16Pair* out);
  /// Rows to pairs of rows, for a streamed operand whose inner dimension they are: [ceil(rows / 2)][out_stride], padded
  /// with zeros. Elements that NonFiniteRows speaks of become 0; the rows that hold some are listed in `found` (at most
  /// rows.rows of them). Returns how many.
  int64_t (*pack_row_pairs)(const StoredRows& rows, BFloat16Pair* out, int64_t out_stride, int64_t* found);
  /// q . k of every pair of the tile, for those who compute in f32 what must fit m and l of the forward pass.
  void (*raw_scores)(const ScoreTile<float, BFloat16Pair>& tile);
  void (*forward_tile)(const ForwardTile<float, BFloat16Pair>& tile);
  /// As of AttentionKernels. False too when values hold what pairs cannot.
  bool (*decode_block)(const DecodeTile<float, BFloat16Pair>& tile);
  /// The tile's P and dP, and from them its `delta_sums`; nothing else.
  void (*delta_sums)(const BackwardTile<float, BFloat16Pair>& tile);
  void (*backward_tile)(const BackwardTile<float, BFloat16Pair>& tile);
  void (*query_gradients)(const BackwardTile<float, BFloat16Pair>& tile);
};

template <class T>
struct MatmulKernels;  // kernels/matmul_kernels.h
struct MatmulPairKernels;
template <class T>
struct DerivativeKernels;  // kernels/derivative_kernels.h
template <class T>
struct LayerKernels;  // kernels/layer_kernels.h

/// The kernels of one instruction set.
struct KernelSet {
  int64_t target;  ///< Highway's target bit that the machine must have; smaller is better
  const char* name;
  const AttentionKernels<float>* f32 = nullptr;
  const AttentionKernels<double>* f64 = nullptr;
  const PairKernels* bf16 = nullptr;  ///< null: no bf16 dot products
  const MatmulKernels<float>* matmul_f32 = nullptr;
  const MatmulKernels<double>* matmul_f64 = nullptr;
  const MatmulPairKernels* matmul_bf16 = nullptr;  ///< null: no bf16 dot products
  const DerivativeKernels<float>* derivatives_f32 = nullptr;
  const DerivativeKernels<double>* derivatives_f64 = nullptr;
  const LayerKernels<float>* layers_f32 = nullptr;
  const LayerKernels<double>* layers_f64 = nullptr;
  template <class T>
  const AttentionKernels<T>& attention() const {
    if constexpr (sizeof(T) == sizeof(float)) {
      return *f32;
    } else {
      return *f64;
    }
  }
  template <class T>
  const MatmulKernels<T>& matmul() const {
    if constexpr (sizeof(T) == sizeof(float)) {
      return *matmul_f32;
    } else {
      return *matmul_f64;
    }
  }
  template <class T>
  const DerivativeKernels<T>& derivatives() const {
    if constexpr (sizeof(T) == sizeof(float)) {
      return *derivatives_f32;
    } else {
      return *derivatives_f64;
    }
  }
  template <class T>
  const LayerKernels<T>& layers() const {
    if constexpr (sizeof(T) == sizeof(float)) {
      return *layers_f32;
    } else {
      return *layers_f64;
    }
  }
};

/// The set in use.
const KernelSet& kernels();

}  // namespace qkv
