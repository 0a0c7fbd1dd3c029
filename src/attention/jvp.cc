// SPDX-License-Identifier: Apache-2.0
//
// Forward mode: the tangents of out and lse along given tangents of the inputs.
//
//   w_ij = (1 - tanh^2) (scale (t_q.k + q.t_k) + t_scale q.k) + t_bias - t_slope |distance| + t_table
//   W_i = sum_j a_ij w_ij + a_sink t_sink                        t_lse_i = W_i
//   t_out_i = sum_j r_ij a_ij ((w_ij - W_i) v_j + t_v_j)
//
// An item of work is a strip of rows of one head (tangent_strip.h): a first walk over its keys sums W, a second one
// forms the outputs. Five products a pair, or eight where a strip is too long to keep weights and tangents between the
// two.
#include <vector>

#include "attention/packed_blocks.h"
#include "attention/tangent_strip.h"
#include "qkv/support/parallel.h"

namespace qkv {
namespace {

/// Packed tensors of one worker: the four of a head of 8,192 keys at D = 64 in f32.
constexpr int64_t kPackedBytes = int64_t{8} << 20;

struct JvpResults {
  Operand t_out;
  Operand t_lse;
};

template <class T>
class JvpWorker {
 public:
  JvpWorker(const Problem& problem, const BucketMap& buckets, const StateOperands& state,
            const TangentOperands& tangents, const JvpResults& results, const StripPlan& plan)
      : problem_(problem),
        tangents_(tangents),
        results_(results),
        plan_(plan),
        kernels_(kernels().derivatives<T>()),
        v_stride_(round_up(problem.Dv, kernels().attention<T>().lanes)),
        strip_(problem, buckets, state, tangents, plan),
        scores_move_(tangents.q || tangents.k || tangents.scale || tangents.sinks || strip_.terms_move()),
        packed_(problem, plan.block_keys,
                {{problem.k, problem.D, PackedBlocks<T>::Form::panels},
                 {tangents.k, problem.D, PackedBlocks<T>::Form::panels},
                 {scores_move_ ? problem.v : Operand{}, problem.Dv, PackedBlocks<T>::Form::rows},
                 {tangents.v, problem.Dv, PackedBlocks<T>::Form::rows}},
                kPackedBytes),
        t_out_(plan.item_rows() * v_stride_),
        weights_(plan.elements()),
        moves_(scores_move_ ? plan.elements() : 0),
        sums_(static_cast<size_t>(plan.item_rows())) {}

  void run(const RowItem& item) {
    strip_.load(item);
    std::fill(sums_.begin(), sums_.end(), WeightedSums{});
    std::fill_n(t_out_.get(), item.rows * v_stride_, T{0});
    parts_.clear();
    for_each_part(item, [&](const StripPart<T>& part) {
      run_scores(part);
      if (scores_move_) add_sums(part);
      if (plan_.keeps) parts_.push_back(part);
    });
    for (int64_t r = 0; r < item.rows; ++r) finish_mean(item, r);
    if (!results_.t_out) return;
    if (plan_.keeps) {
      for (const StripPart<T>& part : parts_) run_outputs(part);
    } else {
      for_each_part(item, [&](const StripPart<T>& part) {
        run_scores(part);
        run_outputs(part);
      });
    }
    const int64_t row = problem_.sequence(item.b).q_begin + item.first_row;
    for (int64_t r = 0; r < item.rows; ++r) {
      store_row<T>(results_.t_out, item.b, item.h, row + r, t_out_.get() + r * v_stride_, problem_.Dv, T{1});
    }
  }

 private:
  template <class F>
  void for_each_part(const RowItem& item, F body) {
    for (int64_t first = 0; first < problem_.sequence(item.b).Tk; first += plan_.block_keys) {
      strip_.for_each_part(item, first, body);
    }
  }

  void run_scores(const StripPart<T>& part) {
    strip_.set_terms(part);
    TangentTile<T> tile = make_tile(part);
    strip_.multiply(part, tile);
    kernels_.tangent_scores(tile);
  }

  void add_sums(const StripPart<T>& part) {
    for (int64_t r = part.r; r < part.r + part.range.rows; ++r) {
      sums_[static_cast<size_t>(r)].add(strip_.tile_sums(r));
    }
  }

  void run_outputs(const StripPart<T>& part) {
    TangentTile<T> tile = make_tile(part);
    tile.dropout = strip_.dropout(part);
    // Only what NaN and infinities add asks again which pairs are visible.
    if (tile.v_nonfinite.count + tile.t_v_nonfinite.count > 0) strip_.cover(part).apply(tile.score);
    kernels_.tangent_outputs(tile);
  }

  TangentTile<T> make_tile(const StripPart<T>& part) {
    const TileRange& range = part.range;
    const auto& blocks = packed_.block(range.b, problem_.kv_head(range.h), range.first_key / plan_.block_keys);
    const int64_t place = plan_.place(range.first_key, part.r);
    TangentTile<T> tile = strip_.tile(part, blocks[0].data, blocks[1].data, weights_.get() + place,
                                      scores_move_ ? moves_.get() + place : nullptr);
    tile.v = blocks[2].data;
    tile.t_v = blocks[3].data;
    tile.v_stride = v_stride_;
    tile.v_nonfinite = blocks[2].nonfinite;
    tile.t_v_nonfinite = blocks[3].nonfinite;
    tile.t_out = t_out_.get() + part.r * v_stride_;
    return tile;
  }

  void finish_mean(const RowItem& item, int64_t r) {
    const RowWeights<T>& weights = strip_.weights(r);
    const WeightedSums& sums = sums_[static_cast<size_t>(r)];
    double mean = sums.sum(weights.share(sums.weight));
    if (tangents_.sinks && weights.sink_weight != 0) {
      mean += static_cast<double>(weights.sink_weight) *
              load_as_double(tangents_.sinks.dtype, tangents_.sinks.at(0, item.h, 0, 0));
    }
    // A row that sees no key has no use for the mean, which may be any tangent of its sink.
    strip_.set_mean(r, TwoParts<T>(sums.is_empty() ? 0.0 : mean));
    if (!results_.t_lse) return;
    const int64_t row = problem_.sequence(item.b).q_begin + item.first_row + r;
    store_one<T>(results_.t_lse, item.b, item.h, row, static_cast<T>(mean + 0.0));
  }

  const Problem& problem_;
  const TangentOperands& tangents_;
  const JvpResults& results_;
  const StripPlan& plan_;
  const DerivativeKernels<T>& kernels_;
  int64_t v_stride_;
  TangentStrip<T> strip_;
  bool scores_move_;
  PackedBlocks<T> packed_;
  std::vector<StripPart<T>> parts_;
  AlignedArray<T> t_out_;            // [item rows, v_stride]
  AlignedArray<T> weights_, moves_;  // [tiles][strip rows, stride]
  std::vector<WeightedSums> sums_;   // of the item's rows
};

template <class T>
void run_jvp(const Problem& problem, const StateOperands& state, const TangentOperands& tangents,
             const JvpResults& results) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  const StripPlan plan(problem, kernels().attention<T>().panel_width, kSize, 2, 2 * kSize);
  const int threads = useful_threads(problem, 2.5 * visible_work(problem));
  const std::vector<RowItem> items = cut_rows(problem, plan.item_rows(), threads);
  if (items.empty()) return;
  const BucketMap buckets(problem);
  const int64_t count = static_cast<int64_t>(items.size());
  std::vector<JvpWorker<T>> workers;
  const int worker_count = parallel_workers(count, threads);
  workers.reserve(static_cast<size_t>(worker_count));
  for (int w = 0; w < worker_count; ++w) workers.emplace_back(problem, buckets, state, tangents, results, plan);
  parallel_for(count, threads, [&](int64_t index, int worker) {
    workers[static_cast<size_t>(worker)].run(items[static_cast<size_t>(index)]);
  });
}

}  // namespace

void attention_jvp(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionOptions& options,
                   const AttentionState& state, const AttentionTangents& tangents, const MutableTensorView& t_out,
                   const MutableTensorView& t_lse) {
  const Problem problem = check_problem(q, k, v, options);
  const StateOperands state_operands = check_state(problem, state, q.rank());
  const TangentOperands operands = check_tangents(problem, options, tangents, q.rank());
  JvpResults results;
  if (t_out) results.t_out = check_like(problem, t_out, "t_out", Rows::queries, problem.H, problem.Dv, q.rank());
  if (t_lse) results.t_lse = check_per_row(problem, t_lse, "t_lse", q.rank());
  check_overlap({{"q", q},
                 {"k", k},
                 {"v", v},
                 {"state.row_max", state.row_max.view()},
                 {"state.row_sum", state.row_sum.view()},
                 {"state.wide_out", state.wide_out.view()},
                 {"state.out", state.out},
                 {"t_q", tangents.q},
                 {"t_k", tangents.k},
                 {"t_v", tangents.v},
                 {"t_bias", tangents.bias},
                 {"t_slopes", tangents.slopes},
                 {"t_table", tangents.table},
                 {"t_sinks", tangents.sinks},
                 {"t_scale", tangents.scale}},
                options, {{"t_out", t_out}, {"t_lse", t_lse}});
  if (problem.is_f64()) {
    run_jvp<double>(problem, state_operands, operands, results);
  } else {
    run_jvp<float>(problem, state_operands, operands, results);
  }
}

}  // namespace qkv
