// SPDX-License-Identifier: Apache-2.0
//
// The backward pass in one sweep: five products a tile (attention_backward-inl.h), none of them twice.
//
// A task is one key block of one key/value head. It packs the block once, walks the query blocks of every head in the
// group in order, and owns the block's dK and dV. Each tile's share of dQ is added to the query block's sums in key
// order: the wavefront (backward_plan.h) makes a task wait until smaller key blocks have added theirs. So dQ sums run
// over key blocks in order, dK and dV sums over query blocks in order, whatever the threads do; there are no atomics on
// data, no copies per thread.
//
//   delta_i = sum_j a_ij dP_ij - dLSE_i             once per row: backward_rows.h and backward_delta.h say from what
//   P, dP, dS, then dV += , dK += , dQ +=           per tile
//   dBias, dSlope, dTable from dS                   per tile (score_sums.cc)
//   dScale = sum_i q_i . (sum_j dC_ij k_j)          when a row's dQ is complete; in pairs per tile, unrounded
//   dSink                                           from m, l and delta alone
#include <algorithm>
#include <array>
#include <cmath>

#include "attention/backward_bias.h"
#include "attention/backward_delta.h"
#include "attention/backward_tiles.h"
#include "attention/check.h"
#include "attention/check_view.h"
#include "attention/pairs.h"
#include "attention/plan.h"
#include "attention/score_sums.h"
#include "qkv/support/parallel.h"

namespace qkv {
namespace {

template <class T, class E>
class Backward {
 public:
  Backward(const Problem& problem, const BucketMap& buckets, const BackwardRows<T>& rows, ScoreSums<T>& sums,
           const Operand& d_q, const Operand& d_k, const Operand& d_v, double* row_scale)
      : problem_(problem),
        buckets_(buckets),
        rows_(rows),
        sums_(sums),
        d_q_(d_q),
        d_k_(d_k),
        d_v_(d_v),
        row_scale_(row_scale),
        wavefront_(problem) {}

  void run() {
    store_blank_rows();
    const int threads = useful_threads(problem_, 2.5 * visible_work(problem_));
    const int64_t stride = round_up(problem_.D, kernels().attention<T>().lanes);
    const BackwardNeeds needs{.d_scores = sums_.has_sums(), .scale_sums = row_scale_ != nullptr};
    std::vector<BackwardTiles<T, E>> workers;
    for (const HeadSpan& span : cut_heads(problem_, stride * static_cast<int64_t>(sizeof(T)))) {
      const std::vector<KeyBlockTask> tasks = key_block_tasks(problem_, span);
      if (tasks.empty()) continue;
      const int64_t count = static_cast<int64_t>(tasks.size());
      const size_t worker_count = static_cast<size_t>(parallel_workers(count, threads));
      workers.reserve(worker_count);
      while (workers.size() < worker_count) workers.emplace_back(problem_, buckets_, rows_, needs);
      d_q_sums_ = AlignedArray<T>(wants_query_sums() ? span.rows * stride : 0);
      first_row_ = span.first_row;
      parallel_for(count, threads, [&](int64_t index, int worker) {
        run_task(tasks[static_cast<size_t>(index)], workers[static_cast<size_t>(worker)]);
      });
    }
  }

 private:
  bool wants_query_sums() const { return d_q_ || row_scale_ != nullptr; }
  void add_scale_sums(const std::vector<BackwardPart<T, E>>& parts) {
    for (const BackwardPart<T, E>& part : parts) {
      double* sums = row_scale_ + contiguous_row(problem_, part.range.b, part.range.h) + part.range.first_row;
      for (int64_t r = 0; r < part.range.rows; ++r) {
        const double sum = static_cast<double>(part.tile.scale_sums[r]);
        sums[r] += problem_.scale < 0 ? -sum : sum;  // the packed queries have the sign of the scale
      }
    }
  }

  /// Rows that no tile will visit have dQ = 0.
  void store_blank_rows() {
    if (!d_q_) return;
    const std::vector<T> zeros(static_cast<size_t>(problem_.D));
    for (int64_t b = 0; b < problem_.B; ++b) {
      const Sequence& sequence = problem_.sequence(b);
      for (int64_t h = 0; h < problem_.H; ++h) {
        for (int64_t i = 0; i < sequence.Tq; ++i) {
          if (!wavefront_.is_blank(b, h, i / kBackwardRows)) continue;
          store_row<T>(d_q_, b, h, sequence.q_begin + i, zeros.data(), problem_.D, T{1});
        }
      }
    }
  }

  void run_task(const KeyBlockTask& task, BackwardTiles<T, E>& tiles) {
    tiles.load_keys(task.b, task.hkv, task.index);
    const int64_t group = problem_.group();
    for (int64_t h = task.hkv * group; h < (task.hkv + 1) * group; ++h) {
      for (int64_t block = 0; block < wavefront_.query_blocks(task.b); ++block) {
        if (wavefront_.meets(task.b, h, block, task.index)) run_tile(task, h, block, tiles);
      }
    }
    store_key_gradients(task, tiles);
  }

  void run_tile(const KeyBlockTask& task, int64_t h, int64_t block, BackwardTiles<T, E>& tiles) {
    tiles.load_queries(task.b, h, block);
    const std::vector<BackwardPart<T, E>>& parts = tiles.run(static_cast<bool>(d_k_), static_cast<bool>(d_v_));
    for (const BackwardPart<T, E>& part : parts) {
      sums_.add_tile(part.range, task.index, part.cover.begin, part.cover.end, part.d_scores(), tiles.scores_stride());
    }
    if (!wants_query_sums() && !sums_.has_row_sums()) return;
    const TileRange& range = tiles.range();
    wavefront_.wait(task.b, h, block, task.index);
    for (const BackwardPart<T, E>& part : parts) {
      sums_.add_rows(part.range, part.cover.begin, part.cover.end, part.d_scores(), tiles.scores_stride());
    }
    if constexpr (kInPairs<T, E>) {
      if (row_scale_ != nullptr) add_scale_sums(parts);
    }
    if (wants_query_sums()) tiles.add_query_gradients(query_sums(range, tiles));
    if (wavefront_.pass(task.b, h, block, task.index) && wants_query_sums()) store_query_gradients(range, tiles);
  }

  T* query_sums(const TileRange& range, const BackwardTiles<T, E>& tiles) const {
    const int64_t row = contiguous_row(problem_, range.b, range.h) + range.first_row - first_row_;
    return d_q_sums_.get() + row * tiles.q_width();
  }

  /// The query block's last share is in: dQ = scale * sums, and the rows' part of dScale.
  void store_query_gradients(const TileRange& range, const BackwardTiles<T, E>& tiles) {
    const T* sums = query_sums(range, tiles);
    if (d_q_) {
      const int64_t row = problem_.sequence(range.b).q_begin + range.first_row;
      store_rows(sums, tiles.q_width(), problem_.scale,
                 stored_rows(d_q_, range.b, range.h, row, range.rows, problem_.D));
    }
    if constexpr (!kInPairs<T, E>) {
      if (row_scale_ == nullptr) return;
      for (int64_t r = 0; r < range.rows; ++r) {
        store_row_scale(range, range.first_row + r, tiles.queries() + r * tiles.q_stride(), sums + r * tiles.q_width());
      }
    }
  }

  /// q . (sum_j dC_j k_j) of row i; `q` has the sign of the scale.
  void store_row_scale(const TileRange& range, int64_t i, const T* q, const T* sums) {
    const int64_t row = contiguous_row(problem_, range.b, range.h) + i;
    if (rows_.inverse_l[row] == 0) return;
    double product = 0;
    for (int64_t c = 0; c < problem_.D; ++c) {
      // Sums of 0 belong to rows without visible keys too, whose query must not matter.
      if (sums[c] != 0) product += static_cast<double>(q[c]) * static_cast<double>(sums[c]);
    }
    row_scale_[row] = problem_.scale < 0 ? -product : product;
  }

  void store_key_gradients(const KeyBlockTask& task, const BackwardTiles<T, E>& tiles) {
    const int64_t first_key = task.index * tiles.scores_stride();
    const int64_t first = problem_.sequence(task.b).k_begin + first_key;
    const int64_t keys = std::min(tiles.scores_stride(), problem_.sequence(task.b).Tk - first_key);
    // The packed queries carry the sign of the scale.
    if (d_k_) {
      store_rows(tiles.d_k(), tiles.q_width(), std::fabs(problem_.scale),
                 stored_rows(d_k_, task.b, task.hkv, first, keys, problem_.D));
    }
    if (d_v_) {
      store_rows(tiles.d_v(), tiles.v_width(), 1, stored_rows(d_v_, task.b, task.hkv, first, keys, problem_.Dv));
    }
  }

  /// Rows of sums times one factor.
  static void store_rows(const T* sums, int64_t stride, double factor, const StoredRows& to) {
    std::array<T, kMostBackwardKeys> factors;
    factors.fill(static_cast<T>(factor));
    kernels().attention<T>().store_rows(sums, stride, factors.data(), to);
  }

  const Problem& problem_;
  const BucketMap& buckets_;
  const BackwardRows<T>& rows_;
  ScoreSums<T>& sums_;
  Operand d_q_, d_k_, d_v_;
  double* row_scale_;  ///< [rows], contiguous rows; null: not wanted
  Wavefront wavefront_;
  AlignedArray<T> d_q_sums_;  ///< [rows of the span, q_stride]
  int64_t first_row_ = 0;     ///< of the span
};

template <class T, class E = T>
void run_backward(const Problem& problem, const AttentionOptions& options, const StateOperands& state,
                  const Operand& d_out, const Operand& d_lse, const AttentionGradients& gradients, const Operand& d_q,
                  const Operand& d_k, const Operand& d_v) {
  if (problem.rows() == 0) {
    for (const MutableTensorView& gradient : {gradients.k, gradients.v, gradients.bias, gradients.slopes,
                                              gradients.table, gradients.sinks, gradients.scale}) {
      fill_zero(gradient);
    }
    return;
  }
  const BucketMap buckets(problem);
  const bool sums_deltas =
      kInPairs<T, E> && (gradients.bias || gradients.slopes || gradients.table || gradients.sinks || gradients.scale);
  BackwardRows<T> rows = backward_rows<T>(problem, state, d_out, d_lse, sums_deltas);
  if constexpr (kInPairs<T, E>) {
    if (sums_deltas) sum_deltas_anew<T, E>(problem, buckets, rows);
  }
  ScoreSums<T> sums(problem, buckets, options, gradients, backward_keys<T>(problem));
  const AlignedArray<double> row_scale(gradients.scale ? problem.rows() : 0);
  Backward<T, E> backward(problem, buckets, rows, sums, d_q, d_k, d_v, row_scale.get());
  if (gradients.bias) fill_zero(gradients.bias);
  if (d_q || d_k || d_v || gradients.scale || gradients.slopes || gradients.table || gradients.sinks ||
      (gradients.bias && !sums.bias_needs_own_pass())) {
    backward.run();
  }
  if (sums.bias_needs_own_pass()) broadcast_bias_gradient<T, E>(problem, buckets, rows, sums);
  sums.finish();
  if (gradients.sinks) store_sink_gradients(problem, rows, gradients.sinks);
  if (gradients.scale) {
    double total = 0;
    for (int64_t row = 0; row < problem.rows(); ++row) total += row_scale[row];
    store_from_double(gradients.scale.dtype(), gradients.scale.data(), total);
  }
}

}  // namespace

void attention_backward(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionOptions& options,
                        const AttentionState& state, const AttentionUpstream& upstream,
                        const AttentionGradients& gradients) {
  const Problem problem = check_problem(q, k, v, options);
  const StateOperands state_operands = check_state(problem, state, q.rank());
  const Operand d_out = check_like(problem, upstream.d_out, "d_out", Rows::queries, problem.H, problem.Dv, q.rank());
  const Operand d_lse = upstream.d_lse ? check_per_row(problem, upstream.d_lse, "d_lse", q.rank()) : Operand{};
  const auto like = [&](const TensorView& view, const char* name, Rows rows, int64_t heads, int64_t width) {
    return view ? check_like(problem, view, name, rows, heads, width, q.rank()) : Operand{};
  };
  const Operand d_q = like(gradients.q, "d_q", Rows::queries, problem.H, problem.D);
  const Operand d_k = like(gradients.k, "d_k", Rows::keys, problem.Hkv, problem.D);
  const Operand d_v = like(gradients.v, "d_v", Rows::keys, problem.Hkv, problem.Dv);
  if (gradients.bias) check_twin(gradients.bias, "d_bias", options.bias, "bias");
  if (gradients.slopes) check_twin(gradients.slopes, "d_slopes", options.slopes, "slopes");
  if (gradients.table) check_twin(gradients.table, "d_table", options.table, "table");
  if (gradients.sinks) check_twin(gradients.sinks, "d_sinks", options.sinks, "sinks");
  if (gradients.scale) check_scale_twin(problem, gradients.scale, "d_scale");
  check_overlap({{"q", q},
                 {"k", k},
                 {"v", v},
                 {"d_out", upstream.d_out},
                 {"d_lse", upstream.d_lse},
                 {"state.row_max", state.row_max.view()},
                 {"state.row_sum", state.row_sum.view()},
                 {"state.wide_out", state.wide_out.view()},
                 {"state.out", state.out}},
                options,
                {{"d_q", gradients.q},
                 {"d_k", gradients.k},
                 {"d_v", gradients.v},
                 {"d_bias", gradients.bias},
                 {"d_slopes", gradients.slopes},
                 {"d_table", gradients.table},
                 {"d_sinks", gradients.sinks},
                 {"d_scale", gradients.scale}});
  if (problem.is_f64()) {
    run_backward<double>(problem, options, state_operands, d_out, d_lse, gradients, d_q, d_k, d_v);
  } else if (uses_pairs(problem)) {
    run_backward<float, BFloat16Pair>(problem, options, state_operands, d_out, d_lse, gradients, d_q, d_k, d_v);
  } else {
    run_backward<float>(problem, options, state_operands, d_out, d_lse, gradients, d_q, d_k, d_v);
  }
}

}  // namespace qkv
