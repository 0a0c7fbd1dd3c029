// SPDX-License-Identifier: Apache-2.0
#include "attention/reference_head.h"

#include <algorithm>

namespace qkv::definition {
namespace {

size_t index(int64_t i) { return static_cast<size_t>(i); }

template <class T>
void convert(const Operand& tensor, int64_t b, int64_t h, int64_t row, std::vector<T>& values) {
  for (size_t c = 0; c < values.size(); ++c) {
    values[c] = load_as<T>(tensor.dtype, tensor.at(b, h, row, static_cast<int64_t>(c)));
  }
}

/// Keys that every mask shows and no bias of -inf hides.
template <class T>
void find_visible(const Problem& problem, int64_t b, int64_t h, int64_t i, KeyRange range, Row<T>& row) {
  row.visible.clear();
  for (int64_t j = range.begin; j < range.end; ++j) {
    if (!mask_shows(problem, b, h, i, j)) continue;
    if (problem.bias) {
      const T bias = load_as<T>(problem.bias.dtype, problem.bias.at(b, h, i, j));
      if (bias == -std::numeric_limits<T>::infinity()) continue;
    }
    row.visible.push_back(j);
  }
}

/// Steps 1 to 3, from row.dot on, for a visible key.
template <class T>
T score(const Problem& problem, const HeadInputs<T>& inputs, int64_t b, int64_t h, int64_t i, int64_t j, Row<T>& row) {
  const int64_t distance = i + problem.sequence(b).offset - j;
  T s = static_cast<T>(problem.scale) * row.dot[index(j)];
  if (problem.softcap > 0) {
    const T softcap = static_cast<T>(problem.softcap);
    row.tanh[index(j)] = std::tanh(s / softcap);
    s = softcap * row.tanh[index(j)];
  }
  if (problem.bias) s += load_as<T>(problem.bias.dtype, problem.bias.at(b, h, i, j));
  if (problem.slopes) {
    s += load_as<T>(problem.slopes.dtype, problem.slopes.at(0, h, 0, 0)) * static_cast<T>(alibi_distance(distance));
  }
  if (problem.table) {
    const int64_t bucket = inputs.buckets[index(distance - inputs.first_distance)];
    s += load_as<T>(problem.table.dtype, problem.table.at(0, h, 0, bucket));
  }
  return s;
}

/// Step 5: scores in row.weight become weights.
template <class T>
void softmax(const Problem& problem, int64_t h, Row<T>& row) {
  const bool has_sink = static_cast<bool>(problem.sinks);
  const T sink = has_sink ? load_as<T>(problem.sinks.dtype, problem.sinks.at(0, h, 0, 0)) : T(0);
  if (row.visible.empty()) {
    row.m = row.lse = has_sink ? sink : -std::numeric_limits<T>::infinity();
    row.l = row.sink_weight = has_sink ? T(1) : T(0);
    return;
  }
  row.m = has_sink ? sink : -std::numeric_limits<T>::infinity();
  for (const int64_t j : row.visible) {
    if (row.weight[index(j)] > row.m) row.m = row.weight[index(j)];
  }
  row.l = 0;
  for (const int64_t j : row.visible) {
    row.weight[index(j)] = std::exp(row.weight[index(j)] - row.m);
    row.l += row.weight[index(j)];
  }
  const T sink_share = has_sink ? std::exp(sink - row.m) : T(0);
  row.l += sink_share;
  for (const int64_t j : row.visible) row.weight[index(j)] /= row.l;
  row.sink_weight = has_sink ? sink_share / row.l : T(0);  // a NaN row has no sink either
  row.lse = row.m + std::log(row.l);
}

}  // namespace

template <class T>
HeadInputs<T>::HeadInputs(const Problem& problem, int64_t b, int64_t hkv) {
  const Sequence& sequence = problem.sequence(b);
  const auto read = [&](const Operand& tensor, int64_t width, std::vector<T>& rows, std::vector<T>& columns) {
    rows.resize(index(sequence.Tk * width));
    columns.resize(rows.size());
    for (int64_t j = 0; j < sequence.Tk; ++j) {
      for (int64_t c = 0; c < width; ++c) {
        const T value = load_as<T>(tensor.dtype, tensor.at(b, hkv, sequence.k_begin + j, c));
        rows[index(j * width + c)] = columns[index(c * sequence.Tk + j)] = value;
      }
    }
  };
  read(problem.k, problem.D, k, k_columns);
  read(problem.v, problem.Dv, v, v_columns);
  if (!problem.table || sequence.Tq == 0 || sequence.Tk == 0) return;
  first_distance = sequence.offset - (sequence.Tk - 1);
  for (int64_t n = 0; n < sequence.Tq + sequence.Tk - 1; ++n) {
    buckets.push_back(relative_bucket(first_distance + n, problem.table_buckets, problem.buckets));
  }
}

template <class T>
Row<T>::Row(const Problem& problem) : q(index(problem.D)), out(index(problem.Dv)) {
  for (std::vector<T>* by_key : {&dot, &tanh, &weight, &kept}) by_key->resize(index(problem.Tk));
}

template <class T>
void forward_row(const Problem& problem, const HeadInputs<T>& inputs, int64_t b, int64_t h, int64_t i, Row<T>& row) {
  const Sequence& sequence = problem.sequence(b);
  const KeyRange range = visible_range(problem, sequence, i);
  convert(problem.q, b, h, sequence.q_begin + i, row.q);
  find_visible(problem, b, h, i, range, row);
  std::fill(row.dot.begin() + range.begin, row.dot.begin() + range.end, T(0));
  for (int64_t d = 0; d < problem.D; ++d) {
    const T q = row.q[index(d)];
    const T* column = inputs.k_columns.data() + d * sequence.Tk;
    for (int64_t j = range.begin; j < range.end; ++j) row.dot[index(j)] += q * column[j];
  }
  for (const int64_t j : row.visible) row.weight[index(j)] = score(problem, inputs, b, h, i, j, row);
  softmax(problem, h, row);
  const RowDropout dropout(problem, b, h, i);
  std::fill(row.out.begin(), row.out.end(), T(0));
  for (const int64_t j : row.visible) {
    row.kept[index(j)] = static_cast<T>(dropout.factor(j));
    const T factor = round_factor(problem.dtype, row.kept[index(j)] * row.weight[index(j)]);
    const T* v = inputs.v.data() + j * problem.Dv;
    for (int64_t c = 0; c < problem.Dv; ++c) row.out[index(c)] += factor * v[c];
  }
}

#define QKV_INSTANTIATE(T)       \
  template struct HeadInputs<T>; \
  template struct Row<T>;        \
  template void forward_row(const Problem&, const HeadInputs<T>&, int64_t, int64_t, int64_t, Row<T>&);
QKV_INSTANTIATE(float)
QKV_INSTANTIATE(double)
QKV_INSTANTIATE(long double)
#undef QKV_INSTANTIATE

}  // namespace qkv::definition
