// SPDX-License-Identifier: Apache-2.0
// squares-inl.h in pairs of bf16: a word holds two consecutive elements, so a transposed square is pairs.
#if defined(QKV_PAIR_SQUARES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_PAIR_SQUARES_INL_H_
#undef QKV_PAIR_SQUARES_INL_H_
#else
#define QKV_PAIR_SQUARES_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "kernels/pairs-inl.h"
#include "kernels/squares-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

using PairScores = ScoreTile<float, BFloat16Pair>;
using PairStep = ProductStep<float, BFloat16Pair>;

/// Sixteen keys from word `word` on, `words` of each, as sixteen vectors with lanes along keys; words that are not
/// there are 0. `elements` of a key are stored from there on. `next`, if given, loads as many lines.
template <class Ahead>
HWY_INLINE void LoadSquare(const uint16_t* const* keys, int64_t word, int64_t elements, Ahead* next,
                           Vector<float> (&square)[kLanes<float>]) {
  constexpr int64_t N = kLanes<float>;
  const Tag<float> d;
  if (HWY_LIKELY(elements >= 2 * N)) {
    if (next != nullptr) next->template Load<N>();
#pragma GCC unroll 16
    for (int64_t l = 0; l < N; ++l) {
      square[l] = hn::LoadU(d, reinterpret_cast<const float*>(keys[l] + 2 * word));
      if (next != nullptr) next->Ask(keys[l] + 2 * word);
    }
  } else {
    if (next != nullptr) next->Load(LinesOf(N * elements * static_cast<int64_t>(sizeof(uint16_t))));
    HWY_ALIGN float words[N * N] = {};
    for (int64_t l = 0; l < N; ++l) {
      std::memcpy(words + l * N, keys[l] + 2 * word, static_cast<size_t>(elements) * sizeof(uint16_t));
    }
    for (int64_t l = 0; l < N; ++l) square[l] = hn::Load(d, words + l * N);
  }
  TransposeSquare<float>(square);
}

/// Raw scores of R rows from row r0 against one vector of keys, in column c.
template <class Ahead>
struct PairScoreRun {
  const PairScores& tile;
  int64_t columns;  ///< elements of a key
  const uint16_t* const* keys;
  int64_t c;
  Ahead& next;

  template <int R>
  HWY_INLINE void operator()(int64_t r0) const {
    constexpr int64_t N = kLanes<float>;
    const Tag<float> d;
    Vector<float> sum[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[r] = hn::Zero(d);
    for (int64_t word = 0; word < tile.D; word += N) {
      Vector<float> square[N];
      LoadSquare(keys, word, columns - 2 * word, r0 == 0 ? &next : nullptr, square);
      const BFloat16Pair* HWY_RESTRICT q = tile.q + r0 * tile.q_stride + word;
      if (HWY_LIKELY(word + N <= tile.D)) {
#pragma GCC unroll 16
        for (int64_t j = 0; j < N; ++j) AddWord<R>(q + j, square[j], sum);
      } else {
        HWY_ALIGN float words[N * N];
        for (int64_t j = 0; j < N; ++j) hn::Store(square[j], d, words + j * N);
        for (int64_t j = 0; word + j < tile.D; ++j) AddWord<R>(q + j, hn::Load(d, words + j * N), sum);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) hn::StoreU(sum[r], d, tile.scores + (r0 + r) * tile.scores_stride + c);
  }

 private:
  template <int R>
  HWY_INLINE void AddWord(const BFloat16Pair* q, Vector<float> keys_word, Vector<float> (&sum)[R]) const {
    const PairVector word = hn::BitCast(PairTag(), keys_word);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[r] = PairStep::Add(PairStep::Broadcast(q + r * tile.q_stride), word, sum[r]);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_PAIR_SQUARES_INL_H_
