// SPDX-License-Identifier: Apache-2.0
// Every round, a draft (if there is one) proposes some tokens, the model takes what it has not seen and those, and
// gives logits after the last token it was sure of and after each proposed one. A token is chosen from the first
// logits; as long as the chosen token is the proposed one, the next logits are right, too. Choosing is a function of
// logits and step, so the tokens are those that come without a draft.
#include <algorithm>

#include "generate/prompts.h"
#include "qkv/generate/generate.h"
#include "qkv/support/error.h"

namespace qkv {
namespace {

/// A prompt on its way.
struct Running {
  int64_t number = 0;  ///< of the prompt
  uint64_t draws = 0;  ///< which sequence of draws it takes
  std::vector<uint32_t> tokens;
  int64_t prompt = 0;    ///< tokens
  int64_t most = 0;      ///< tokens it may have
  bool drafted = false;  ///< whether the draft may have as many
  std::vector<uint32_t> proposed;

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
};

class Continuation {
 public:
  Continuation(TokenSequences& sequences, TokenSequences* draft, const std::vector<std::vector<uint32_t>>& prompts,
               const std::vector<uint64_t>& draws, const GenerateOptions& options)
      : sequences_(sequences), draft_(draft), options_(options), results_(prompts.size()) {
    std::vector<int64_t> places;
    for (size_t n = 0; n < prompts.size(); ++n) {
      const auto length = static_cast<int64_t>(prompts[n].size());
      require(length > 0, "generate: prompt ", n, " has no tokens");
      const int64_t most = most_tokens(length, options.max_tokens, sequences);
      if (most <= length) continue;
      running_.push_back({.number = static_cast<int64_t>(n),
                          .draws = draws[n],
                          .tokens = prompts[n],
                          .prompt = length,
                          .most = most,
                          .drafted = draft != nullptr && most <= draft->most_tokens(),
                          .proposed = {}});
      places.push_back(static_cast<int64_t>(n));
    }
    if (running_.size() < prompts.size()) reorder(places);
  }

  std::vector<Generation> run() {
    if (!running_.empty()) read();
    while (!running_.empty()) {
      if (draft_ != nullptr) propose();
      advance();
    }
    return std::move(results_);
  }

 private:
  void read() {
    std::vector<std::vector<uint32_t>> prompts;
    std::vector<bool> all(running_.size(), true), drafted;
    for (const Running& sequence : running_) {
      prompts.push_back(sequence.tokens);
      drafted.push_back(sequence.drafted);
    }
    read_prompts(sequences_, prompts, all, options_.on_prompt);
    if (draft_ != nullptr) read_prompts(*draft_, prompts, drafted, {});
  }

  uint32_t choose(const Running& sequence, std::span<const uint32_t> tokens, std::span<float> logits) const {
    const auto length = static_cast<int64_t>(tokens.size());
    apply_rules(options_.rules, {tokens, sequence.prompt, sequence.most}, options_.end_tokens, logits);
    return sample(options_.sampling, sequence.draws, static_cast<uint64_t>(length - sequence.prompt), logits);
  }

  static std::span<float> row(Tensor& logits, int64_t n) {
    const int64_t width = logits.shape()[1];
    return {static_cast<float*>(logits.mutable_view().data()) + n * width, static_cast<size_t>(width)};
  }

  /// Lets the draft propose tokens, one at a time for all sequences; none before prompts have been read, of whose rows
  /// only the last one's logits are wanted.
  void propose() {
    for (Running& sequence : running_) sequence.proposed.clear();
    for (size_t n = 0; n < running_.size(); ++n) {
      if (sequences_.length(static_cast<int64_t>(n)) < running_[n].length() - 1) return;
    }
    for (int64_t round = 0; round < options_.draft_tokens; ++round) {
      std::vector<uint32_t> tokens;
      std::vector<int64_t> starts{0};
      std::vector<size_t> asked;
      for (size_t n = 0; n < running_.size(); ++n) {
        const Running& sequence = running_[n];
        const bool goes_on = static_cast<int64_t>(sequence.proposed.size()) == round;
        // The last token needs no proposal.
        if (sequence.drafted && goes_on && sequence.length() + round + 1 < sequence.most) {
          asked.push_back(n);
          const auto seen = round == 0 ? draft_->length(static_cast<int64_t>(n)) : sequence.length();
          tokens.insert(tokens.end(), sequence.tokens.begin() + seen, sequence.tokens.end());
          if (round > 0) tokens.push_back(sequence.proposed.back());
        }
        starts.push_back(static_cast<int64_t>(tokens.size()));
      }
      if (asked.empty()) return;
      Tensor logits = draft_->decode({tokens, starts}, LogitRows::last);
      for (size_t n = 0; n < asked.size(); ++n) {
        Running& sequence = running_[asked[n]];
        std::vector<uint32_t> so_far = sequence.tokens;
        so_far.insert(so_far.end(), sequence.proposed.begin(), sequence.proposed.end());
        try {
          sequence.proposed.push_back(choose(sequence, so_far, row(logits, static_cast<int64_t>(n))));
        } catch (const Error&) {  // what the draft cannot choose from is no matter of the model's
        }
      }
    }
  }

  /// One pass of the model, and what it says.
  void advance() {
    std::vector<uint32_t> tokens;
    std::vector<int64_t> starts{0};
    bool proposed = false;
    for (size_t n = 0; n < running_.size(); ++n) {
      const Running& sequence = running_[n];
      tokens.insert(tokens.end(), sequence.tokens.begin() + sequences_.length(static_cast<int64_t>(n)),
                    sequence.tokens.end());
      tokens.insert(tokens.end(), sequence.proposed.begin(), sequence.proposed.end());
      starts.push_back(static_cast<int64_t>(tokens.size()));
      proposed = proposed || !sequence.proposed.empty();
    }
    Tensor logits = sequences_.decode({tokens, starts}, proposed ? LogitRows::all : LogitRows::last);
    std::vector<int64_t> rest;
    for (size_t n = 0; n < running_.size(); ++n) {
      const auto last = proposed ? starts[n + 1] - 1 : static_cast<int64_t>(n);
      if (take(running_[n], logits, last - static_cast<int64_t>(running_[n].proposed.size()))) {
        rest.push_back(static_cast<int64_t>(n));
      }
    }
    forget_rejected();
    if (rest.size() < running_.size()) keep(rest);
  }

  /// Takes tokens as long as the logits, from row `first` on, are those after the tokens taken. Whether more may come.
  bool take(Running& sequence, Tensor& logits, int64_t first) {
    Generation& result = results_[static_cast<size_t>(sequence.number)];
    for (size_t n = 0; n <= sequence.proposed.size(); ++n) {
      const uint32_t token = choose(sequence, sequence.tokens, row(logits, first + static_cast<int64_t>(n)));
      sequence.tokens.push_back(token);
      result.tokens.push_back(token);
      const bool goes_on = !options_.on_token || options_.on_token(sequence.number, token);
      const auto& ends = options_.end_tokens;
      if (std::find(ends.begin(), ends.end(), token) != ends.end()) {
        result.finish = Finish::end;
        return false;
      }
      if (!goes_on) {
        result.finish = Finish::stop;
        return false;
      }
      if (sequence.length() >= sequence.most) return false;
      if (n < sequence.proposed.size() && sequence.proposed[n] != token) break;
    }
    return true;
  }

  /// Caches forget proposed tokens that were not taken; the last token taken is still to be fed.
  void forget_rejected() {
    for (size_t n = 0; n < running_.size(); ++n) {
      const auto b = static_cast<int64_t>(n);
      const int64_t sure = running_[n].length() - 1;
      if (sequences_.length(b) > sure) sequences_.truncate(b, sure);
      if (draft_ != nullptr && draft_->length(b) > sure) draft_->truncate(b, sure);
    }
  }

  void reorder(const std::vector<int64_t>& places) {
    if (places.empty()) return;
    sequences_.reorder(places);
    if (draft_ != nullptr) draft_->reorder(places);
  }

  /// Only these go on.
  void keep(const std::vector<int64_t>& places) {
    reorder(places);
    std::vector<Running> kept;
    for (const int64_t place : places) kept.push_back(std::move(running_[static_cast<size_t>(place)]));
    running_ = std::move(kept);
  }

  TokenSequences& sequences_;
  TokenSequences* draft_;
  const GenerateOptions& options_;
  std::vector<Running> running_;
  std::vector<Generation> results_;
};

}  // namespace

std::vector<Generation> continue_prompts(TokenSequences& sequences, TokenSequences* draft,
                                         const std::vector<std::vector<uint32_t>>& prompts,
                                         const std::vector<uint64_t>& draws, const GenerateOptions& options) {
  require(draws.size() == prompts.size(), "generate: ", prompts.size(), " prompts with ", draws.size(),
          " sequences of draws");
  return Continuation(sequences, draft, prompts, draws, options).run();
}

}  // namespace qkv
