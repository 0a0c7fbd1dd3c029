// SPDX-License-Identifier: Apache-2.0
#include "qkv/generate/logit_rules.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "qkv/support/error.h"

namespace qkv {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

/// Sums of biases of this size are numbers.
constexpr float kMostBias = 1e30f;

using Tokens = std::span<const uint32_t>;

void forbid(Tokens tokens, std::span<float> logits) {
  for (const uint32_t token : tokens) logits[token] = kNever;
}

/// Nothing but these.
void force(Tokens tokens, std::span<float> logits) {
  std::fill(logits.begin(), logits.end(), kNever);
  for (const uint32_t token : tokens) logits[token] = 0;
}

void add_sequence_bias(std::span<const SequenceBias> biases, Tokens seen, std::span<float> logits) {
  // Biases of one token replace each other, those of longer sequences add up: all are summed before they are added.
  std::vector<float> sum(logits.size(), 0.0f);
  for (const auto& [tokens, bias] : biases) {
    if (tokens.size() == 1) sum[tokens[0]] = bias;
  }
  for (const auto& [tokens, bias] : biases) {
    const size_t before = tokens.size() - 1;
    if (before == 0 || before > seen.size()) continue;
    if (std::equal(tokens.begin(), tokens.end() - 1, seen.end() - static_cast<ptrdiff_t>(before))) {
      sum[tokens.back()] += bias;
    }
  }
  for (size_t id = 0; id < logits.size(); ++id) logits[id] += sum[id];
}

void penalize_repetition(double penalty, Tokens seen, std::span<float> logits) {
  const auto factor = static_cast<float>(penalty);
  std::vector<bool> done(logits.size(), false);
  for (const uint32_t token : seen) {
    if (token >= logits.size() || done[token]) continue;
    done[token] = true;
    float& logit = logits[token];
    logit = logit < 0 ? logit * factor : logit / factor;
  }
}

void forbid_repeated_ngrams(int64_t size, Tokens seen, std::span<float> logits) {
  const auto before = static_cast<size_t>(size - 1);
  if (seen.size() < before + 1) return;
  const Tokens last = seen.last(before);
  for (size_t n = 0; n + before < seen.size(); ++n) {
    if (std::equal(last.begin(), last.end(), seen.begin() + static_cast<ptrdiff_t>(n))) {
      logits[seen[n + before]] = kNever;
    }
  }
}

void forbid_bad_words(const std::vector<std::vector<uint32_t>>& words, Tokens seen, Tokens end_tokens,
                      std::span<float> logits) {
  for (const auto& word : words) {
    const bool is_end =
        word.size() == 1 && std::find(end_tokens.begin(), end_tokens.end(), word[0]) != end_tokens.end();
    const size_t before = word.size() - 1;
    if (is_end || before > seen.size()) continue;
    if (std::equal(word.begin(), word.end() - 1, seen.end() - static_cast<ptrdiff_t>(before))) {
      logits[word.back()] = kNever;
    }
  }
}

void check_tokens(const char* name, Tokens tokens, int64_t vocabulary) {
  for (const uint32_t token : tokens) {
    require(token < vocabulary, name, ": token ", token, " is not in the vocabulary of ", vocabulary);
  }
}

}  // namespace

void check_rules(const LogitRules& rules, int64_t vocabulary) {
  require(rules.repetition_penalty >= 1e-6 && rules.repetition_penalty <= 1e6,
          "repetition_penalty: expected a number from 1e-6 to 1e6, got ", rules.repetition_penalty);
  require(rules.no_repeat_ngram_size >= 0, "no_repeat_ngram_size: expected at least 0, got ",
          rules.no_repeat_ngram_size);
  for (const auto& [tokens, bias] : rules.sequence_bias) {
    require(!tokens.empty(), "sequence_bias: expected lists of at least one token");
    require(std::fabs(bias) <= kMostBias || bias == kNever, "sequence_bias: expected a number of at most ", kMostBias,
            " or -infinity, got ", bias);
    check_tokens("sequence_bias", tokens, vocabulary);
  }
  for (const auto& word : rules.bad_words) {
    require(!word.empty(), "bad_words_ids: expected lists of at least one token");
    check_tokens("bad_words_ids", word, vocabulary);
  }
  if (rules.forced_first) check_tokens("forced_bos_token_id", {&*rules.forced_first, 1}, vocabulary);
  check_tokens("forced_eos_token_id", rules.forced_last, vocabulary);
  check_tokens("suppress_tokens", rules.suppressed, vocabulary);
  check_tokens("begin_suppress_tokens", rules.suppressed_first, vocabulary);
}

void apply_rules(const LogitRules& rules, const SequenceSoFar& sequence, Tokens end_tokens, std::span<float> logits) {
  const Tokens seen = sequence.tokens;
  const auto length = static_cast<int64_t>(seen.size());
  if (!rules.sequence_bias.empty()) add_sequence_bias(rules.sequence_bias, seen, logits);
  if (rules.repetition_penalty != 1) penalize_repetition(rules.repetition_penalty, seen, logits);
  if (rules.no_repeat_ngram_size > 0) forbid_repeated_ngrams(rules.no_repeat_ngram_size, seen, logits);
  forbid_bad_words(rules.bad_words, seen, end_tokens, logits);
  if (length < rules.min_length || length - sequence.prompt < rules.min_new_tokens) forbid(end_tokens, logits);
  if (rules.forced_first && length == 1) force({&*rules.forced_first, 1}, logits);
  if (!rules.forced_last.empty() && length == sequence.most - 1) force(rules.forced_last, logits);
  forbid(rules.suppressed, logits);
  const bool first_is_forced = rules.forced_first && sequence.prompt <= 1;
  if (length == sequence.prompt + (first_is_forced ? 1 : 0)) forbid(rules.suppressed_first, logits);
}

}  // namespace qkv
