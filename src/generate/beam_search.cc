// SPDX-License-Identifier: Apache-2.0
// One prompt, `beams` running beams, `beams` places for finished ones. A running beam's score is the sum of the
// log-probabilities of its tokens. Places not taken, and beams that may not be chosen, have a score of about -1e9
// (kNowhere): the constant belongs to the algorithm, because it decides between beams that all are impossible.
#include "qkv/generate/beam_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "qkv/support/error.h"

namespace qkv {
namespace {

constexpr float kNowhere = -1e9f;

struct Beam {
  std::vector<uint32_t> tokens;  ///< the new ones
  float score = kNowhere;
  int64_t from = 0;  ///< the running beam that it continues
  bool ended = false;
};

/// logits - log(sum(exp(logits))), into `result`.
void log_softmax(std::span<const float> logits, std::span<float> result) {
  double largest = logits[0];
  for (size_t id = 0; id < logits.size(); ++id) {
    require(!std::isnan(logits[id]), "generate: the logit of token ", id, " is not a number");
    largest = std::max(largest, static_cast<double>(logits[id]));
  }
  require(std::isfinite(largest), "generate: the largest logit is ", largest);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  const double shift = largest + std::log(sum);
  for (size_t id = 0; id < logits.size(); ++id) {
    result[id] = static_cast<float>(static_cast<double>(logits[id]) - shift);
  }
}

class Search {
 public:
  Search(const BeamProblem& problem, const BeamOptions& options, int64_t vocabulary)
      : problem_(problem), options_(options), vocabulary_(vocabulary) {
    const auto beams = static_cast<size_t>(options.beams);
    running_.resize(beams);
    running_[0].score = 0;  // all are the prompt: the others would be its copies
    finished_.resize(beams);
  }

  /// Takes the logits of the running beams; whether the search goes on.
  bool advance(const std::function<std::span<const float>(int64_t beam)>& logits) {
    std::vector<Beam> best = continuations(logits);
    const auto is_finished = [](const Beam& beam) { return beam.ended; };
    const bool dead_end = best.front().score == -std::numeric_limits<float>::infinity();
    require(!dead_end || std::any_of(finished_.begin(), finished_.end(), is_finished),
            "generate: no token is left to choose from");
    ++length_;
    keep_finished(best);
    keep_running(best);
    const bool all_ended = std::all_of(best.begin(), best.end(), [](const Beam& beam) { return beam.ended; });
    may_improve_ = may_improve_ && could_improve();
    const bool full = options_.early_stopping == EarlyStopping::full && all_finished();
    return may_improve_ && !full && !all_ended;
  }

  const std::vector<Beam>& running() const { return running_; }
  const Beam& result() const { return finished_[0]; }

 private:
  bool all_finished() const {
    return std::all_of(finished_.begin(), finished_.end(), [](const Beam& beam) { return beam.ended; });
  }

  bool ends(const std::vector<uint32_t>& tokens) const {
    const auto& ends = problem_.end_tokens;
    return std::find(ends.begin(), ends.end(), tokens.back()) != ends.end() ||
           static_cast<int64_t>(problem_.prompt.size() + tokens.size()) >= problem_.most ||
           (problem_.stops && problem_.stops(tokens));
  }

  /// Scores of all continuations, [beams, vocabulary].
  std::vector<float> scores(const std::function<std::span<const float>(int64_t beam)>& logits) const {
    std::vector<float> result(static_cast<size_t>(options_.beams * vocabulary_));
    std::vector<uint32_t> tokens(problem_.prompt.begin(), problem_.prompt.end());
    for (int64_t b = 0; b < options_.beams; ++b) {
      const Beam& beam = running_[static_cast<size_t>(b)];
      const std::span<float> row(result.data() + b * vocabulary_, static_cast<size_t>(vocabulary_));
      log_softmax(logits(b), row);
      tokens.resize(problem_.prompt.size());
      tokens.insert(tokens.end(), beam.tokens.begin(), beam.tokens.end());
      const SequenceSoFar so_far{tokens, static_cast<int64_t>(problem_.prompt.size()), problem_.most};
      apply_rules(problem_.rules, so_far, problem_.end_tokens, row);
      for (float& score : row) score += beam.score;
    }
    return result;
  }

  /// The best continuations, best first.
  std::vector<Beam> continuations(const std::function<std::span<const float>(int64_t beam)>& logits) const {
    const std::vector<float> all = scores(logits);
    const auto end_tokens = static_cast<int64_t>(problem_.end_tokens.size());
    const size_t wanted =
        std::min(all.size(), static_cast<size_t>(options_.beams * std::max<int64_t>(2, 1 + end_tokens)));
    std::vector<size_t> order(all.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const auto better = [&](size_t a, size_t b) { return all[a] != all[b] ? all[a] > all[b] : a < b; };
    std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(wanted), order.end(), better);
    std::vector<Beam> best(wanted);
    for (size_t n = 0; n < wanted; ++n) {
      best[n].from = static_cast<int64_t>(order[n]) / vocabulary_;
      best[n].tokens = running_[static_cast<size_t>(best[n].from)].tokens;
      best[n].tokens.push_back(static_cast<uint32_t>(static_cast<int64_t>(order[n]) % vocabulary_));
      best[n].score = all[order[n]];
      best[n].ended = ends(best[n].tokens);
    }
    return best;
  }

  float penalized(float score, int64_t length) const {
    return score / static_cast<float>(std::pow(static_cast<double>(length), options_.length_penalty));
  }

  /// The best of those finished before and those among the first `beams` that have ended now.
  void keep_finished(const std::vector<Beam>& best) {
    const bool closed = !may_improve_ || (options_.early_stopping == EarlyStopping::full && all_finished());
    std::vector<Beam> all = finished_;
    for (size_t n = 0; n < best.size(); ++n) {
      Beam& beam = all.emplace_back(best[n]);
      beam.ended = beam.ended && n < finished_.size();
      beam.score = penalized(beam.score, length_);
      if (closed) beam.score += kNowhere;
      if (!beam.ended) beam.score += kNowhere;
    }
    keep_best(std::move(all), finished_);
  }

  void keep_running(const std::vector<Beam>& best) {
    std::vector<Beam> all = best;
    for (Beam& beam : all) {
      if (beam.ended) beam.score += kNowhere;
    }
    keep_best(std::move(all), running_);
  }

  static void keep_best(std::vector<Beam> all, std::vector<Beam>& kept) {
    std::stable_sort(all.begin(), all.end(), [](const Beam& a, const Beam& b) { return a.score > b.score; });
    all.resize(kept.size());
    kept = std::move(all);
  }

  /// Whether the best running beam could still beat a finished one.
  bool could_improve() const {
    const bool longest = options_.early_stopping == EarlyStopping::never && options_.length_penalty > 0;
    const int64_t length = longest ? problem_.most - static_cast<int64_t>(problem_.prompt.size()) : length_;
    const float hope = penalized(running_[0].score, length);
    float worst = finished_[0].score;
    for (const Beam& beam : finished_) worst = std::min(worst, beam.score);
    return std::any_of(finished_.begin(), finished_.end(),
                       [&](const Beam& beam) { return hope > (beam.ended ? worst : kNowhere); });
  }

  const BeamProblem& problem_;
  const BeamOptions& options_;
  int64_t vocabulary_;
  int64_t length_ = 0;  ///< new tokens of the running beams
  bool may_improve_ = true;
  std::vector<Beam> running_, finished_;
};

}  // namespace

BeamResult beam_search(const BeamProblem& problem, const BeamOptions& options, std::span<const float> first,
                       const BeamStep& step) {
  require(options.beams >= 1, "generate: beams: expected at least 1, got ", options.beams);
  const auto vocabulary = static_cast<int64_t>(first.size());
  Search search(problem, options, vocabulary);
  bool goes_on = search.advance([&](int64_t) { return first; });
  while (goes_on) {
    std::vector<int64_t> from;
    std::vector<uint32_t> tokens;
    for (const Beam& beam : search.running()) {
      from.push_back(beam.from);
      tokens.push_back(beam.tokens.back());
    }
    const Tensor logits = step(from, tokens);
    const auto* rows = static_cast<const float*>(logits.view().data());
    goes_on = search.advance(
        [&](int64_t b) { return std::span<const float>(rows + b * vocabulary, static_cast<size_t>(vocabulary)); });
  }
  return {search.result().tokens, search.result().score};
}

}  // namespace qkv
