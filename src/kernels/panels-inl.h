// SPDX-License-Identifier: Apache-2.0
// Panels of keys as a cache holds them, in words of stored elements: scores of few rows straight from them, and panels
// of the compute type for many.
#if defined(QKV_PANELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_PANELS_INL_H_
#undef QKV_PANELS_INL_H_
#else
#define QKV_PANELS_INL_H_
#endif

#include <algorithm>

#include "kernels/attention_kernels.h"
#include "kernels/read_ahead-inl.h"
#include "kernels/squares-inl.h"
#include "kernels/stored-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

/// Raw scores of R rows against one panel, in the order of Product: over the columns, from zero.
template <class Stored, class T>
struct PanelRun {
  const ScoreTile<T>& tile;
  const T* words;  ///< of the panel, any bits
  int64_t c;       ///< its first column of scores
  LinesAhead& ahead;

  template <int R, int V, int Part>
  static HWY_INLINE void Add(const Vector<T> (&streamed)[V], const T* HWY_RESTRICT q, int64_t q_stride,
                             Vector<T> (&sum)[R][V]) {
    Vector<T> keys[V];
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) keys[v] = Stored::template part<Part>(streamed[v]);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const auto broadcast = hn::Set(Tag<T>(), q[r * q_stride]);
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) sum[r][v] = hn::MulAdd(broadcast, keys[v], sum[r][v]);
    }
  }

  template <int R, int V>
  HWY_INLINE void Tile(int64_t r0, int64_t first) const {
    const Tag<T> d;
    constexpr int64_t N = kLanes<T>;
    constexpr int kParts = Stored::kParts;
    constexpr int64_t kPagePart = kPageBytes * V / kTileVectors;  // of a page a run of V vectors has this share
    constexpr int64_t kPageColumns = kPageBytes / static_cast<int64_t>(sizeof(T)) / kPanel<T> * kParts;
    Vector<T> sum[R][V];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) sum[r][v] = hn::Zero(d);
    }
    const T* HWY_RESTRICT q = tile.q + r0 * tile.q_stride;
    const T* HWY_RESTRICT from = words + first * N;
    Vector<T> streamed[V];
    int64_t column = 0;
    for (; column + kParts <= tile.D; column += kParts, from += kPanel<T>) {
      if (r0 == 0 && column % kPageColumns == 0) ahead.Pass(kPagePart);
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) streamed[v] = hn::LoadU(d, from + v * N);
      Add<R, V, 0>(streamed, q + column, tile.q_stride, sum);
      if constexpr (kParts == 2) Add<R, V, 1>(streamed, q + column + 1, tile.q_stride, sum);
    }
    if (kParts == 2 && column < tile.D) {
      for (int v = 0; v < V; ++v) streamed[v] = hn::LoadU(d, from + v * N);
      Add<R, V, 0>(streamed, q + column, tile.q_stride, sum);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) {
        hn::StoreU(sum[r][v], d, tile.scores + (r0 + r) * tile.scores_stride + c + (first + v) * N);
      }
    }
  }

  template <int R>
  HWY_INLINE void operator()(int64_t r0) const {
    constexpr int V = R <= 4 ? kTileVectors : kTileVectors / 2;
    const int64_t vectors = std::min<int64_t>(kTileVectors, (tile.end - c + kLanes<T> - 1) / kLanes<T>);
    if (HWY_LIKELY(vectors == kTileVectors)) {
      for (int64_t first = 0; first < kTileVectors; first += V) Tile<R, V>(r0, first);
    } else {
      for (int64_t first = 0; first < vectors; ++first) Tile<R, 1>(r0, first);
    }
  }
};

template <class Stored, class T>
HWY_NOINLINE void ScoresOfPanels(const ScoreTile<T>& tile, const StoredPanels& panels, const void* then) {
  const int64_t words = (panels.columns + Stored::kParts - 1) / Stored::kParts;
  const T* data = static_cast<const T*>(panels.data);
  const int64_t key_bytes = words * static_cast<int64_t>(sizeof(T));
  const int64_t read = (tile.end - tile.begin + kPanel<T> - 1) / kPanel<T> * kPanel<T>;
  LinesAhead ahead({reinterpret_cast<const char*>(data + tile.begin * words), read * key_bytes, 0, 1,
                    static_cast<const char*>(then)});
  for (int64_t c = tile.begin; c < tile.end; c += kPanel<T>) {
    ForRowRuns(tile.rows, PanelRun<Stored, T>{tile, data + c * words, c, ahead});
  }
}

template <class Stored, class T>
HWY_INLINE void WidenStoredPanels(const StoredPanels& panels, int64_t keys, T* out) {
  const Tag<T> d;
  constexpr int64_t N = kLanes<T>;
  const T* words = static_cast<const T*>(panels.data);
  for (int64_t c = 0; c < keys; c += kPanel<T>) {
    for (int64_t column = 0; column < panels.columns; column += Stored::kParts, words += kPanel<T>) {
      for (int64_t v = 0; v < kPanel<T>; v += N) {
        hn::StoreU(Stored::template part<0>(hn::LoadU(d, words + v)), d, out + v);
      }
      out += kPanel<T>;
      if (Stored::kParts == 1 || column + 1 == panels.columns) continue;
      for (int64_t v = 0; v < kPanel<T>; v += N) {
        hn::StoreU(Stored::template part<Stored::kParts - 1>(hn::LoadU(d, words + v)), d, out + v);
      }
      out += kPanel<T>;
    }
  }
}

template <class T>
void WidenPanels(const StoredPanels& panels, int64_t keys, T* out) {
  if constexpr (sizeof(T) == sizeof(float)) {
    if (panels.dtype == DType::bf16) return WidenStoredPanels<StoredBFloat16, T>(panels, keys, out);
    if (panels.dtype == DType::f16) return WidenStoredPanels<StoredFloat16, T>(panels, keys, out);
  }
  WidenStoredPanels<StoredWhole<T>, T>(panels, keys, out);
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_PANELS_INL_H_
