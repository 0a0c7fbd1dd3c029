// SPDX-License-Identifier: Apache-2.0
#include "generate/prompts.h"

#include <algorithm>

namespace qkv {

int64_t most_tokens(int64_t prompt, int64_t new_tokens, const TokenSequences& sequences) {
  const int64_t most = sequences.most_tokens();
  return new_tokens < most - prompt ? prompt + new_tokens : most;
}

namespace {

using Prompts = std::vector<std::vector<uint32_t>>;

/// Tokens that one pass takes: enough that products have many rows, few enough that activations stay in cache and
/// progress is seen.
constexpr int64_t kPassTokens = 512;
/// A shorter common beginning is not worth a pass of its own.
constexpr int64_t kLeastShared = 16;

/// Which earlier prompt the beginning of one is taken from.
struct Share {
  int64_t from = -1;
  int64_t length = 0;
  int level = 0;  ///< one more than that of the prompt it takes from
};

int64_t common_beginning(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
  const auto most = static_cast<ptrdiff_t>(std::min(a.size(), b.size()));
  return std::mismatch(a.begin(), a.begin() + most, b.begin()).first - a.begin();
}

std::vector<Share> find_shares(const Prompts& prompts, const std::vector<bool>& wanted) {
  std::vector<Share> shares(prompts.size());
  for (size_t to = 1; to < prompts.size(); ++to) {
    if (!wanted[to]) continue;
    Share& share = shares[to];
    for (size_t from = 0; from < to; ++from) {
      if (!wanted[from]) continue;
      // The last token of either stays to be fed: it gives the first logits.
      const int64_t length =
          std::min({common_beginning(prompts[from], prompts[to]), static_cast<int64_t>(prompts[from].size()) - 1,
                    static_cast<int64_t>(prompts[to].size()) - 1});
      if (length >= kLeastShared && length > share.length) {
        share = {static_cast<int64_t>(from), length, shares[from].level + 1};
      }
    }
  }
  return shares;
}

/// Feeds the sequences of one level all but their last tokens.
class Reader {
 public:
  Reader(TokenSequences& sequences, const Prompts& prompts) : sequences_(sequences), prompts_(prompts) {}

  /// One pass over sequences whose `reads` is true; how many tokens it took, 0 when there were none left.
  int64_t pass(const std::vector<bool>& reads) {
    std::vector<uint32_t> tokens;
    std::vector<int64_t> starts{0};
    for (size_t n = 0; n < prompts_.size(); ++n) {
      if (reads[n]) {
        const auto& prompt = prompts_[n];
        const int64_t seen = sequences_.length(static_cast<int64_t>(n));
        const int64_t left = static_cast<int64_t>(prompt.size()) - 1 - seen;
        const int64_t count = std::min(left, kPassTokens - static_cast<int64_t>(tokens.size()));
        tokens.insert(tokens.end(), prompt.begin() + seen, prompt.begin() + seen + count);
      }
      starts.push_back(static_cast<int64_t>(tokens.size()));
    }
    if (!tokens.empty()) sequences_.decode({tokens, starts}, LogitRows::last);
    return static_cast<int64_t>(tokens.size());
  }

 private:
  TokenSequences& sequences_;
  const Prompts& prompts_;
};

}  // namespace

void read_prompts(TokenSequences& sequences, const Prompts& prompts, const std::vector<bool>& wanted,
                  const std::function<void(int64_t done, int64_t total)>& on_prompt) {
  int64_t total = 0, done = 0;
  for (size_t n = 0; n < prompts.size(); ++n) total += wanted[n] ? static_cast<int64_t>(prompts[n].size()) : 0;
  const std::vector<Share> shares = find_shares(prompts, wanted);
  int levels = 0;
  for (const Share& share : shares) levels = std::max(levels, share.level);
  if (total <= kPassTokens && levels == 0) return;
  const auto count = [&](int64_t tokens) {
    done += tokens;
    if (on_prompt) on_prompt(done, total);
  };
  Reader reader(sequences, prompts);
  for (int level = 0; level <= levels; ++level) {
    std::vector<bool> reads(prompts.size());
    for (size_t n = 0; n < prompts.size(); ++n) {
      reads[n] = wanted[n] && shares[n].level == level;
      if (!reads[n] || shares[n].from < 0) continue;
      sequences.share_prefix(shares[n].from, static_cast<int64_t>(n), shares[n].length);
      count(shares[n].length);
    }
    while (const int64_t tokens = reader.pass(reads)) count(tokens);
  }
}

}  // namespace qkv
