// SPDX-License-Identifier: Apache-2.0
//
// Second order: the gradients of <c_q, d_q> + <c_k, d_k> + <c_v, d_v> + <c_bias, d_bias> + ... =
// sum_i dO_i . t_out_i + dLSE_i t_lse_i along the cotangents, as attention_second-inl.h writes them.
//
// An item of work is a strip of rows of one head (tangent_strip.h). Its first walk over the keys computes a, w, dP and
// z and sums the means; its second walk owns the rows' g_q and g_d_out, and adds its share of g_k and g_v to the keys'
// sums in the order that the turns of key blocks give (key_turns.h). Twelve products a pair, or seventeen where a strip
// is too long to keep what the first walk computed; the backward has five. No sum depends on the schedule.
#include <span>
#include <vector>

#include "attention/backward_plan.h"
#include "attention/key_turns.h"
#include "attention/score_sums.h"
#include "attention/second_bias.h"
#include "attention/second_tiles.h"
#include "qkv/support/parallel.h"

namespace qkv {
namespace {

template <class T>
class SecondOrder {
 public:
  SecondOrder(const Problem& problem, const BucketMap& buckets, const SecondOperands& operands, ScoreSums<T>& sums,
              bool wants_sinks)
      : problem_(problem),
        buckets_(buckets),
        operands_(operands),
        sums_(sums),
        plan_(second_strip_plan<T>(problem)),
        turns_(problem, plan_.item_rows(), plan_.block_keys),
        sink_gradients_(wants_sinks ? problem.rows() : 0),
        kept_means_(sums.bias_needs_own_pass() ? static_cast<size_t>(problem.rows()) : 0) {}

  void run() {
    const int64_t lanes = kernels().attention<T>().lanes;
    q_stride_ = round_up(problem_.D, lanes);
    v_stride_ = round_up(problem_.Dv, lanes);
    const int threads = useful_threads(problem_, 6 * visible_work(problem_));
    std::vector<SecondTiles<T>> workers;
    const int64_t key_bytes = (q_stride_ + v_stride_) * static_cast<int64_t>(sizeof(T));
    for (const KeySpan& span : cut_key_heads(problem_, plan_.item_rows(), key_bytes)) {
      store_blank_keys(span);
      const int64_t count = static_cast<int64_t>(span.items.size());
      if (count == 0) continue;
      const size_t worker_count = static_cast<size_t>(parallel_workers(count, threads));
      workers.reserve(worker_count);
      while (workers.size() < worker_count) workers.emplace_back(problem_, buckets_, operands_, plan_);
      g_k_ = AlignedArray<T>(operands_.g_k ? span.keys * q_stride_ : 0);
      g_v_ = AlignedArray<T>(operands_.g_v ? span.keys * v_stride_ : 0);
      parallel_for(count, threads, [&](int64_t index, int worker) {
        run_item(span, span.items[static_cast<size_t>(index)], workers[static_cast<size_t>(worker)]);
      });
    }
  }

  /// Of all rows, contiguous ones, for the bias that needs a pass of its own.
  const std::vector<SecondMeans<T>>& kept_means() const { return kept_means_; }

  void store_sink_gradients(const MutableTensorView& g_sinks) const {
    for (int64_t h = 0; h < problem_.H; ++h) {
      double sum = 0;
      for (int64_t b = 0; b < problem_.B; ++b) {
        const int64_t first = contiguous_row(problem_, b, h);
        for (int64_t i = 0; i < problem_.sequence(b).Tq; ++i) sum += sink_gradients_[first + i];
      }
      store_from_double(g_sinks.dtype(), g_sinks.at(h * g_sinks.stride(0)), sum);
    }
  }

 private:
  bool takes_turns() const { return operands_.g_k || operands_.g_v || sums_.has_sums(); }

  void run_item(const KeySpan& span, const RowItem& item, SecondTiles<T>& tiles) {
    tiles.load(item);
    const KeyTurns::Blocks blocks = turns_.blocks(item);
    std::vector<StripPart<T>> parts;
    for (int64_t block = blocks.first; block < blocks.last; ++block) {
      tiles.strip().for_each_part(item, block * plan_.block_keys, [&](const StripPart<T>& part) {
        tiles.run_scores(part, true);
        if (plan_.keeps) parts.push_back(part);
      });
    }
    const int64_t first_row = contiguous_row(problem_, item.b, item.h) + item.first_row;
    for (int64_t r = 0; r < item.rows; ++r) {
      const SecondMeans<T> means = tiles.means(r);
      tiles.set_means(r, means);
      if (!kept_means_.empty()) kept_means_[static_cast<size_t>(first_row + r)] = means;
      if (sink_gradients_.get() != nullptr) sink_gradients_[first_row + r] = means.sink_gradient;
      if (!operands_.g_d_lse) continue;
      const int64_t row = problem_.sequence(item.b).q_begin + item.first_row + r;
      store_one<T>(operands_.g_d_lse, item.b, item.h, row, static_cast<T>(means.tangent));
    }
    auto next = parts.begin();
    for (int64_t block = blocks.first; block < blocks.last; ++block) {
      if (plan_.keeps) {
        const auto begin = next;
        while (next != parts.end() && next->range.first_key == block * plan_.block_keys) ++next;
        run_kept_block(span, item, block, {begin, next}, tiles);
      } else {
        run_block(span, item, block, tiles);
      }
    }
    tiles.store_rows(item);
  }

  /// Everything that is the rows' own before the turn, what is the keys' within it.
  void run_kept_block(const KeySpan& span, const RowItem& item, int64_t block, std::span<StripPart<T>> parts,
                      SecondTiles<T>& tiles) {
    std::vector<SecondTile<T>> ready;
    ready.reserve(parts.size());
    for (StripPart<T>& part : parts) {
      ready.push_back(tiles.run_gradients(part));
      tiles.add_row_sums(ready.back());
    }
    if (!takes_turns()) return;
    turns_.wait(item, block);
    for (size_t n = 0; n < parts.size(); ++n) add_key_sums(span, parts[n], ready[n], tiles);
    if (turns_.pass(item, block)) store_keys(span, item, block);
  }

  /// Parts share the memory that they are computed in, one after the other.
  void run_block(const KeySpan& span, const RowItem& item, int64_t block, SecondTiles<T>& tiles) {
    if (takes_turns()) turns_.wait(item, block);
    tiles.strip().for_each_part(item, block * plan_.block_keys, [&](StripPart<T> part) {
      tiles.run_scores(part, false);
      const SecondTile<T> tile = tiles.run_gradients(part);
      tiles.add_row_sums(tile);
      if (takes_turns()) add_key_sums(span, part, tile, tiles);
    });
    if (takes_turns() && turns_.pass(item, block)) store_keys(span, item, block);
  }

  void add_key_sums(const KeySpan& span, const StripPart<T>& part, const SecondTile<T>& tile, SecondTiles<T>& tiles) {
    const TileRange& range = part.range;
    const int64_t key = first_key(span, range.b, problem_.kv_head(range.h)) + range.first_key;
    tiles.add_key_sums(tile, operands_.g_k ? g_k_.get() + key * q_stride_ : nullptr,
                       operands_.g_v ? g_v_.get() + key * v_stride_ : nullptr);
    if (!sums_.has_sums()) return;
    const T* g = tile.score_gradients();
    sums_.add_tile(range, range.first_key / plan_.block_keys, part.cover.begin, part.cover.end, g, plan_.stride);
    sums_.add_rows(range, part.cover.begin, part.cover.end, g, plan_.stride);
  }

  int64_t first_key(const KeySpan& span, int64_t b, int64_t hkv) const {
    return span.first_key[static_cast<size_t>(b * problem_.Hkv + hkv - span.first)];
  }

  /// The block's last share is in.
  void store_keys(const KeySpan& span, const RowItem& item, int64_t block) {
    const int64_t hkv = problem_.kv_head(item.h);
    store_keys(item.b, hkv, block, first_key(span, item.b, hkv), g_k_.get(), g_v_.get());
  }

  void store_keys(int64_t b, int64_t hkv, int64_t block, int64_t first_key, const T* g_k, const T* g_v) {
    const Sequence& sequence = problem_.sequence(b);
    const int64_t begin = block * plan_.block_keys;
    for (int64_t j = begin; j < std::min(sequence.Tk, begin + plan_.block_keys); ++j) {
      const int64_t row = sequence.k_begin + j;
      if (operands_.g_k) {  // packed queries carry the sign of the scale
        store_row<T>(operands_.g_k, b, hkv, row, g_k + (first_key + j) * q_stride_, problem_.D,
                     static_cast<T>(std::fabs(problem_.scale)));
      }
      if (operands_.g_v) store_row<T>(operands_.g_v, b, hkv, row, g_v + (first_key + j) * v_stride_, problem_.Dv, T{1});
    }
  }

  /// Keys that no row sees.
  void store_blank_keys(const KeySpan& span) {
    if (!operands_.g_k && !operands_.g_v) return;
    const std::vector<T> zeros(static_cast<size_t>(std::max(q_stride_, v_stride_)));
    for (int64_t head = span.first; head < span.last; ++head) {
      const int64_t b = head / problem_.Hkv;
      const Sequence& sequence = problem_.sequence(b);
      for (int64_t j = 0; j < sequence.Tk; ++j) {
        if (!turns_.is_blank(b, j / plan_.block_keys)) continue;
        const int64_t row = sequence.k_begin + j;
        const int64_t hkv = head % problem_.Hkv;
        if (operands_.g_k) store_row<T>(operands_.g_k, b, hkv, row, zeros.data(), problem_.D, T{1});
        if (operands_.g_v) store_row<T>(operands_.g_v, b, hkv, row, zeros.data(), problem_.Dv, T{1});
      }
    }
  }

  const Problem& problem_;
  const BucketMap& buckets_;
  const SecondOperands& operands_;
  ScoreSums<T>& sums_;
  StripPlan plan_;
  KeyTurns turns_;
  AlignedArray<double> sink_gradients_;  ///< [rows], contiguous rows; null: not wanted
  std::vector<SecondMeans<T>> kept_means_;
  int64_t q_stride_ = 0, v_stride_ = 0;
  AlignedArray<T> g_k_, g_v_;  ///< [keys of the span, q_stride or v_stride]
};

template <class T>
void run_second_order(const Problem& problem, const AttentionOptions& options, const SecondOperands& operands,
                      const AttentionSecondGradients& gradients) {
  if (problem.rows() == 0) {
    for (const MutableTensorView& gradient :
         {gradients.k, gradients.v, gradients.bias, gradients.slopes, gradients.table, gradients.sinks}) {
      fill_zero(gradient);
    }
    return;
  }
  const BucketMap buckets(problem);
  ScoreSums<T> sums(problem, buckets, options,
                    {.bias = gradients.bias, .slopes = gradients.slopes, .table = gradients.table},
                    second_strip_plan<T>(problem).block_keys);
  if (gradients.bias) fill_zero(gradients.bias);
  SecondOrder<T> second(problem, buckets, operands, sums, static_cast<bool>(gradients.sinks));
  second.run();
  if (gradients.sinks) second.store_sink_gradients(gradients.sinks);
  if (sums.bias_needs_own_pass()) second_bias_gradient(problem, buckets, operands, sums, second.kept_means());
  sums.finish();
}

SecondOperands check_second_order(const Problem& problem, const AttentionOptions& options, const AttentionState& state,
                                  const AttentionUpstream& upstream, const AttentionCotangents& cotangents,
                                  const AttentionSecondGradients& gradients, int q_rank) {
  SecondOperands operands;
  operands.state = check_state(problem, state, q_rank);
  operands.d_out = check_like(problem, upstream.d_out, "d_out", Rows::queries, problem.H, problem.Dv, q_rank);
  if (upstream.d_lse) operands.d_lse = check_per_row(problem, upstream.d_lse, "d_lse", q_rank);
  operands.cotangents = check_cotangents(problem, options, cotangents, q_rank);
  const auto like = [&](const TensorView& view, const char* name, Rows rows, int64_t heads, int64_t width) {
    return view ? check_like(problem, view, name, rows, heads, width, q_rank) : Operand{};
  };
  operands.g_q = like(gradients.q, "g_q", Rows::queries, problem.H, problem.D);
  operands.g_k = like(gradients.k, "g_k", Rows::keys, problem.Hkv, problem.D);
  operands.g_v = like(gradients.v, "g_v", Rows::keys, problem.Hkv, problem.Dv);
  operands.g_d_out = like(gradients.d_out, "g_d_out", Rows::queries, problem.H, problem.Dv);
  if (gradients.d_lse) operands.g_d_lse = check_per_row(problem, gradients.d_lse, "g_d_lse", q_rank);
  if (gradients.bias) check_twin(gradients.bias, "g_bias", options.bias, "bias");
  if (gradients.slopes) check_twin(gradients.slopes, "g_slopes", options.slopes, "slopes");
  if (gradients.table) check_twin(gradients.table, "g_table", options.table, "table");
  if (gradients.sinks) check_twin(gradients.sinks, "g_sinks", options.sinks, "sinks");
  return operands;
}

}  // namespace

void attention_second_order(const TensorView& q, const TensorView& k, const TensorView& v,
                            const AttentionOptions& options, const AttentionState& state,
                            const AttentionUpstream& upstream, const AttentionCotangents& cotangents,
                            const AttentionSecondGradients& gradients) {
  const Problem problem = check_problem(q, k, v, options);
  const SecondOperands operands =
      check_second_order(problem, options, state, upstream, cotangents, gradients, q.rank());
  check_overlap({{"q", q},
                 {"k", k},
                 {"v", v},
                 {"d_out", upstream.d_out},
                 {"d_lse", upstream.d_lse},
                 {"state.row_max", state.row_max.view()},
                 {"state.row_sum", state.row_sum.view()},
                 {"state.wide_out", state.wide_out.view()},
                 {"state.out", state.out},
                 {"c_q", cotangents.q},
                 {"c_k", cotangents.k},
                 {"c_v", cotangents.v},
                 {"c_bias", cotangents.bias},
                 {"c_slopes", cotangents.slopes},
                 {"c_table", cotangents.table},
                 {"c_sinks", cotangents.sinks}},
                options,
                {{"g_q", gradients.q},
                 {"g_k", gradients.k},
                 {"g_v", gradients.v},
                 {"g_bias", gradients.bias},
                 {"g_slopes", gradients.slopes},
                 {"g_table", gradients.table},
                 {"g_sinks", gradients.sinks},
                 {"g_d_out", gradients.d_out},
                 {"g_d_lse", gradients.d_lse}});
  if (problem.is_f64()) {
    run_second_order<double>(problem, options, operands, gradients);
  } else {
    run_second_order<float>(problem, options, operands, gradients);
  }
}

}  // namespace qkv
