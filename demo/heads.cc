// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include <qkv/attention.h>

#include "demo.h"
#include "text.h"

namespace demo {
namespace {

using Words = std::vector<std::string>;

constexpr int64_t kCls = 0;  // opens the sentence and means nothing

struct Probes {
  qkv::Tensor weights;  // [1, H, T, T]
  qkv::Tensor entropy;  // [1, H, T]
  qkv::Tensor top;      // [1, H, T] i64
};

/// All by recomputing tiles. A sentence is short enough to ask for all of its weights at once.
Probes probe(const Sentence& s) {
  const int64_t H = s.heads(), T = s.tokens();
  Probes probes{qkv::Tensor(qkv::DType::f32, {1, H, T, T}), qkv::Tensor(qkv::DType::f32, {1, H, T}),
                qkv::Tensor(qkv::DType::i64, {1, H, T})};
  attention_weights(s.q.view(), s.k.view(), s.v.view(), {}, {0, T}, {0, T}, probes.weights.mutable_view());
  attention_statistics(s.q.view(), s.k.view(), s.v.view(), {},
                       {.row_entropy = probes.entropy.mutable_view(), .row_top = probes.top.mutable_view()});
  return probes;
}

/// One head: what its rows read.
class Head {
 public:
  Head(const Sentence& sentence, const Probes& probes, int64_t head)
      : s_(sentence),
        weights_(floats(probes.weights) + head * s_.tokens() * s_.tokens()),
        entropy_(floats(probes.entropy) + head * s_.tokens()),
        top_(static_cast<const int64_t*>(probes.top.view().data()) + head * s_.tokens()) {}

  /// The key that a row reads most.
  int64_t top(int64_t query) const { return top_[query]; }
  /// More than half of its weight lies on [CLS].
  bool rests(int64_t query) const { return weights_[query * s_.tokens() + kCls] > 0.5f; }

  /// The rows of some words, each with its heaviest keys.
  void print(const Words& words) const {
    std::printf("     %-9s %-56s %7s  %s\n", "word", "reads (weight)", "entropy", "like reading");
    for (const std::string& word : words) print_row(s_.place(word));
  }

  /// Keys of a row, heaviest first.
  std::vector<int64_t> ranked(int64_t query) const {
    const float* weights = weights_ + query * s_.tokens();
    std::vector<int64_t> keys(static_cast<size_t>(s_.tokens()));
    std::iota(keys.begin(), keys.end(), 0);
    std::stable_sort(keys.begin(), keys.end(), [&](int64_t a, int64_t b) { return weights[a] > weights[b]; });
    return keys;
  }

 private:
  void print_row(int64_t query) const {
    constexpr float kSmallest = 0.015f;  // smaller ones say little and would print as 0.01
    std::string reads;
    const std::vector<int64_t> keys = ranked(query);
    for (size_t i = 0; i < 4; ++i) {
      const float weight = weights_[query * s_.tokens() + keys[i]];
      if (weight >= kSmallest) reads += padded(with_weight(s_.word(keys[i]), weight), 14);
    }
    const double entropy = static_cast<double>(entropy_[query]);
    std::printf("     %s %s %7.2f  %4.1f words%s\n", padded(s_.word(query), 9).c_str(), padded(reads, 56).c_str(),
                entropy, std::exp(entropy), rests(query) ? "  rests" : "");
  }

  const Sentence& s_;
  const float* weights_;  // [T, T]
  const float* entropy_;  // [T]
  const int64_t* top_;    // [T]
};

void show_next_word(const Sentence& s, const Head& head) {
  int64_t next = 0, resting = 0;
  const int64_t last = s.tokens() - 2;  // 0 is [CLS], last + 1 is [SEP]
  for (int64_t i = 1; i <= last; ++i) {
    next += head.top(i) == i + 1;
    resting += head.rests(i);
  }
  std::printf("\n   Head 8 reads the next word: %d of %d words read it most, %d rest on [CLS].\n",
              static_cast<int>(next), static_cast<int>(last), static_cast<int>(resting));
  head.print({"the⁴", "manager", "had", "promised", "that", "he", "would", "lend", "her²", "the⁵", "money"});
}

void show_persons(const Sentence& s, const Head& head) {
  const std::vector<std::pair<std::string, std::string>> meant = {
      {"her¹", "Maria"}, {"he", "manager"}, {"her²", "Maria"}, {"she", "Maria"}, {"him", "manager"}};
  const auto right = std::count_if(meant.begin(), meant.end(), [&](const auto& pair) {
    return head.top(s.place(pair.first)) == s.place(pair.second);
  });
  std::printf("\n   Head 3 reads the person a pronoun means: %d of %d pronouns read the right one most.\n",
              static_cast<int>(right), static_cast<int>(meant.size()));
  head.print({"her¹", "he", "her²", "she", "him", "boat¹", "bank¹", "and"});
}

void show_same(const Sentence& s, const Head& head) {
  const std::vector<Words> groups = {{"boat¹", "boat²"}, {"bank¹", "bank²"}, {"her¹", "her²", "she"}, {"he", "him"}};
  int same = 0, count = 0;
  Words listed;
  for (const Words& group : groups) {
    for (const std::string& word : group) {
      const auto keys = head.ranked(s.place(word));
      const auto first =
          std::find_if(keys.begin(), keys.end(), [&](int64_t key) { return key != kCls && s.word(key) != word; });
      same += std::find(group.begin(), group.end(), s.word(*first)) != group.end();
      ++count;
      listed.push_back(word);
    }
  }
  std::printf(
      "\n   Head 1 reads the same word, or the same person's pronoun, elsewhere: after itself and [CLS],\n"
      "   %d of %d such words read that one most.\n",
      same, count);
  head.print(listed);
}

}  // namespace

void show_heads(const Sentence& s) {
  const Probes probes = probe(s);
  std::printf(
      "   Each word shares a weight of 1 among all %d tokens. Its entropy (in nats) says how widely: 0 is\n"
      "   one token. \"Like reading n words\" is exp(entropy): n words read evenly have the same entropy.\n"
      "   [CLS] opens the sentence. A word with nothing to read rests there, with over half its weight.\n",
      static_cast<int>(s.tokens()));
  show_next_word(s, Head(s, probes, 8));
  show_persons(s, Head(s, probes, 3));
  show_same(s, Head(s, probes, 1));
}

}  // namespace demo
