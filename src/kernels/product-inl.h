// SPDX-License-Identifier: Apache-2.0
// The one micro-kernel: C[r, :] = or += sum_t A[r, t] B[t, :].
//
// An operand is made of elements E that one step takes: T itself, or two consecutive inner elements of bf16, whose
// products are summed in f32 (BFloat16Pair, pairs-inl.h). A is broadcast, B's lanes are streamed, t runs in order from
// 0, so a row of C depends on its row of A and on B alone, whatever the number of rows or the tile. Per step t a 6 x 4
// tile loads 4 vectors and 6 scalars for 24 multiply-adds. Sums start from zero in registers; kAdd adds the finished
// sum to C.
#if defined(QKV_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_PRODUCT_INL_H_
#undef QKV_PRODUCT_INL_H_
#else
#define QKV_PRODUCT_INL_H_
#endif

#include <type_traits>

#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

enum class Into { kSet, kAdd };

/// A[r, t] = a[r * a_row + t * a_step]; B[t, :] = b + t * b_step; C[r, :] = c + r * c_row. Strides of a and b count
/// elements E.
template <class T, class E = T>
struct ProductOperands {
  const E* a;
  int64_t a_row;
  int64_t a_step;
  const E* b;
  int64_t b_step;
  T* c;
  int64_t c_row;
  int64_t steps;
};

/// How a step reads its operands and what it adds: of T itself, a fused multiply-add.
template <class T, class E>
struct ProductStep {
  static_assert(std::is_same_v<T, E>);
  using Lanes = Vector<T>;
  static HWY_INLINE Lanes Broadcast(const E* a) { return hn::Set(Tag<T>(), *a); }
  static HWY_INLINE Lanes Load(const E* b) { return hn::LoadU(Tag<T>(), b); }
  static HWY_INLINE Vector<T> Add(Lanes a, Lanes b, Vector<T> sum) { return hn::MulAdd(a, b, sum); }
};

template <int R, int V, Into I, class T, class E>
HWY_INLINE void RegisterTile(const ProductOperands<T, E>& p) {
  using Step = ProductStep<T, E>;
  const Tag<T> d;
  constexpr int64_t N = kLanes<T>;
  Vector<T> sum[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) sum[r][v] = hn::Zero(d);
  }
  const E* HWY_RESTRICT a = p.a;
  const E* HWY_RESTRICT b = p.b;
  for (int64_t t = 0; t < p.steps; ++t, a += p.a_step, b += p.b_step) {
    typename Step::Lanes streamed[V];
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) streamed[v] = Step::Load(b + v * N);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const auto broadcast = Step::Broadcast(a + r * p.a_row);
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) sum[r][v] = Step::Add(broadcast, streamed[v], sum[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) {
      T* HWY_RESTRICT c = p.c + r * p.c_row + v * N;
      hn::StoreU(I == Into::kAdd ? hn::Add(hn::LoadU(d, c), sum[r][v]) : sum[r][v], d, c);
    }
  }
}

template <class T, class E>
HWY_INLINE void Advance(ProductOperands<T, E>& p, int64_t& rows, int64_t done) {
  p.a += done * p.a_row;
  p.c += done * p.c_row;
  rows -= done;
}

template <int V, Into I, class T, class E>
HWY_INLINE void RowTiles(ProductOperands<T, E> p, int64_t rows) {
  for (; rows >= kTileRows; Advance(p, rows, kTileRows)) RegisterTile<kTileRows, V, I>(p);
  for (; rows >= 3; Advance(p, rows, 3)) RegisterTile<3, V, I>(p);
  for (; rows > 0; Advance(p, rows, 1)) RegisterTile<1, V, I>(p);
}

/// All rows and `vectors` whole vectors of C. Vector groups are the outer loop, so that one group of B stays in L1
/// while the rows pass. Groups are even: 5 vectors go as 3 + 2, not as 4 + 1.
template <Into I, class T, class E = T>
HWY_NOINLINE void Product(ProductOperands<T, E> p, int64_t rows, int64_t vectors) {
  while (vectors > 0) {
    const int64_t groups = (vectors + kTileVectors - 1) / kTileVectors;
    const int64_t group = (vectors + groups - 1) / groups;
    switch (group) {
      case 1: RowTiles<1, I>(p, rows); break;
      case 2: RowTiles<2, I>(p, rows); break;
      default:
        if constexpr (kTileVectors > 2) {
          if (group == 3) {
            RowTiles<3, I>(p, rows);
          } else {
            RowTiles<4, I>(p, rows);
          }
        }
    }
    p.b += group * kLanes<T>;
    p.c += group * kLanes<T>;
    vectors -= group;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_PRODUCT_INL_H_
