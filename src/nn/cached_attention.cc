// SPDX-License-Identifier: Apache-2.0
//
// Multi-head attention on a KeyValueCache. Sequences of equal length are views of the rows; where lengths differ,
// queries are copied into [sequences, longest, H, D] and query_lengths leave out what is not there: the copy costs
// bytes, the rows left out cost nothing.
#include <algorithm>
#include <vector>

#include "attention/check_view.h"
#include "nn/attention_rows.h"
#include "qkv/nn/linear.h"

namespace qkv {
namespace {

constexpr char kLayer[] = "multi_head_attention";

/// Where each sequence's rows begin: from starts, or equal parts.
std::vector<int64_t> sequence_starts(const TensorView& starts, int64_t sequences, int64_t rows, const char* name) {
  std::vector<int64_t> result(static_cast<size_t>(sequences) + 1);
  if (!starts) {
    require(sequences == 0 ? rows == 0 : rows % sequences == 0, kLayer, ": ", rows,
            " rows are no multiple of the cache's ", sequences, " sequences, and no starts came");
    for (int64_t s = 0; s <= sequences; ++s) result[static_cast<size_t>(s)] = sequences == 0 ? 0 : rows / sequences * s;
    return result;
  }
  require(starts.rank() == 1 && starts.size(0) == sequences + 1, kLayer, ": ", name, " should be [", sequences + 1,
          "] for the cache's sequences, got ", starts.shape());
  require(starts.dtype() == DType::i64 || starts.dtype() == DType::i32, kLayer, ": ", name,
          " should be i64 or i32, got ", qkv::name(starts.dtype()));
  for (size_t s = 0; s < result.size(); ++s) {
    result[s] = integer_at(starts, static_cast<int64_t>(s));
    require(s == 0 ? result[s] == 0 : result[s] >= result[s - 1], kLayer, ": ", name,
            " should begin at 0 and not fall, got ", result[s], " at ", s);
  }
  require(result.back() == rows, kLayer, ": ", name, " end at ", result.back(), ", there are ", rows, " rows");
  return result;
}

/// [rows, heads, width] of one sequence as [heads, rows, width].
TensorView sequence_of(const TensorView& rows, int64_t begin, int64_t end) {
  return {rows.dtype(),
          rows.at(begin * rows.stride(0)),
          {rows.size(1), end - begin, rows.size(2)},
          {rows.stride(1), rows.stride(0), rows.stride(2)}};
}

/// Appends each sequence's rows; when one cannot, the cache is as it was.
void append_sequences(KeyValueCache& cache, const std::vector<int64_t>& starts, const TensorView& k,
                      const TensorView& v) {
  int64_t s = 0;
  try {
    for (; s < cache.sequences(); ++s) {
      const int64_t begin = starts[static_cast<size_t>(s)], end = starts[static_cast<size_t>(s) + 1];
      cache.append(s, sequence_of(k, begin, end), sequence_of(v, begin, end));
    }
  } catch (...) {
    while (s-- > 0) {
      cache.truncate(s, cache.length(s) - (starts[static_cast<size_t>(s) + 1] - starts[static_cast<size_t>(s)]));
    }
    throw;
  }
}

/// Queries or outputs of sequences of different lengths, padded to the longest.
class PaddedRows {
 public:
  PaddedRows(DType dtype, const std::vector<int64_t>& starts, int64_t longest, int64_t heads, int64_t width)
      : starts_(starts), padded_(dtype, {static_cast<int64_t>(starts.size()) - 1, longest, heads, width}) {}

  void fill(const TensorView& rows) {
    for (size_t s = 0; s + 1 < starts_.size(); ++s) copy(part(rows, starts_[s], s), padded_part(s));
  }
  void take(const MutableTensorView& rows) {
    for (size_t s = 0; s + 1 < starts_.size(); ++s) {
      const TensorView to = part(rows, starts_[s], s);
      copy(padded_part(s),
           MutableTensorView(to.dtype(), rows.at(starts_[s] * rows.stride(0)), to.shape(), to.strides()));
    }
  }
  /// [sequences, heads, longest, width]
  MutableTensorView view() {
    const MutableTensorView all = padded_.mutable_view();
    return {all.dtype(),
            all.data(),
            {all.size(0), all.size(2), all.size(1), all.size(3)},
            {all.stride(0), all.stride(2), all.stride(1), all.stride(3)}};
  }

 private:
  TensorView part(const TensorView& rows, int64_t begin, size_t s) const {
    return {rows.dtype(),
            rows.at(begin * rows.stride(0)),
            {starts_[s + 1] - starts_[s], rows.size(1), rows.size(2)},
            rows.strides()};
  }
  MutableTensorView padded_part(size_t s) {
    const MutableTensorView all = padded_.mutable_view();
    return {all.dtype(),
            all.at(static_cast<int64_t>(s) * all.stride(0)),
            {starts_[s + 1] - starts_[s], all.size(2), all.size(3)}};
  }
  const std::vector<int64_t>& starts_;
  Tensor padded_;
};

/// True when rows are the last positions of their sequences: whatever knows distances wants to know where they stand.
bool knows_positions(const AttentionOptions& options) {
  return options.causal || options.window || options.slopes || options.table;
}

void check_options(const AttentionOptions& options, bool ragged) {
  const Causal::Kind kind = options.causal.kind();
  require(kind == Causal::Kind::none || kind == Causal::Kind::bottom_right || kind == Causal::Kind::top_left, kLayer,
          ": with a cache rows are the last of their sequences, no causal offset is accepted");
  require(!options.offsets && options.offset == 0, kLayer,
          ": with a cache rows are the last of their sequences, no offset is accepted");
  require(!options.key_starts, kLayer, ": key_starts came together with a cache, which knows its lengths");
  const bool has_query_axis =
      options.query_lengths || options.query_segment || options.mask || options.block_mask || options.bias;
  require(!ragged || !has_query_axis, kLayer,
          ": query_lengths, query_segment, mask, block_mask and bias came together with query_starts, which have none");
}

}  // namespace

void multi_head_attention_append(const TensorView& memory, const TensorView& memory_starts,
                                 const MultiHeadAttention& parameters, const MultiHeadAttentionOptions& options,
                                 KeyValueCache& cache) {
  check_rows(memory, kLayer, "the memory");
  const HeadShape shape = head_shape(parameters, options);
  const std::vector<int64_t> starts =
      sequence_starts(memory_starts, cache.sequences(), memory.size(0), "the memory's starts");
  const Projection k =
      project(memory, parameters.k, key_steps(shape, parameters, options), options, cache.dtype(), false);
  const Projection v =
      project(memory, parameters.v, {.heads = shape.Hkv, .width = shape.Dv}, options, cache.dtype(), false);
  if (memory_starts) return append_sequences(cache, starts, k.rows.view(), v.rows.view());
  const auto sequences = [&](const Tensor& rows) { return as_sequences(rows.view(), false, cache.sequences()); };
  cache.append(sequences(k.rows), sequences(v.rows));
}

void multi_head_attention_cached(const TensorView& x, const MultiHeadAttention& parameters,
                                 const MultiHeadAttentionOptions& options, const KeyValueCache& cache,
                                 const MutableTensorView& y) {
  check_rows(x, kLayer, "x");
  const HeadShape shape = head_shape(parameters, options);
  const int64_t S = cache.sequences(), N = x.size(0);
  AttentionOptions operation = operation_options(parameters, options, false);
  const bool is_ragged = static_cast<bool>(operation.query_starts);
  check_options(operation, is_ragged);
  const std::vector<int64_t> starts = sequence_starts(operation.query_starts, S, N, "query_starts");
  operation.query_starts = {};
  std::vector<int64_t> lengths, offsets;
  int64_t longest = 0;
  for (int64_t s = 0; s < S; ++s) {
    lengths.push_back(starts[static_cast<size_t>(s) + 1] - starts[static_cast<size_t>(s)]);
    offsets.push_back(cache.length(s) - lengths.back());
    longest = std::max(longest, lengths.back());
    require(!knows_positions(operation) || offsets.back() >= 0, kLayer, ": sequence ", s, " has ", lengths.back(),
            " rows, its cache holds ", cache.length(s), " keys: append them first");
  }
  if (knows_positions(operation)) {
    if (operation.causal) operation.causal = Causal::with_offsets();
    operation.offsets = TensorView(offsets.data(), {S});
  }
  if (is_ragged) operation.query_lengths = TensorView(lengths.data(), {S});

  const DType dtype = cache.dtype();
  const Projection q = project(x, parameters.q, query_steps(shape, parameters, options), options, dtype, false);
  Tensor heads = Tensor::uninitialised(dtype, {N, shape.H, shape.Dv});
  if (is_ragged) {
    PaddedRows queries(dtype, starts, longest, shape.H, shape.D), out(dtype, starts, longest, shape.H, shape.Dv);
    queries.fill(q.rows.view());
    attention_forward(queries.view(), cache, operation, out.view());
    out.take(heads.mutable_view());
  } else {
    attention_forward(as_sequences(q.rows.view(), false, S), cache, operation,
                      as_sequences(heads.mutable_view(), false, S));
  }
  linear_forward(reshaped(static_cast<const Tensor&>(heads), {N, shape.H * shape.Dv}), parameters.out, y,
                 {.residual = options.residual, .threads = options.threads});
}

}  // namespace qkv
