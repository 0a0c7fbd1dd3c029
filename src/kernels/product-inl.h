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

#include <algorithm>
#include <type_traits>

#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

/// What becomes of the sum of a call: it is set, added to what C holds, or goes on from there, as if the steps of this
/// call had followed those of an earlier one.
enum class Into { kSet, kAdd, kContinue };

/// How a step reads its operands and what it adds: of T itself, a fused multiply-add. A step may have two parts, which
/// follow each other in A and share an element of B.
template <class T, class E>
struct ProductStep {
  static_assert(std::is_same_v<T, E>);
  using A = E;
  using Lanes = Vector<T>;
  static constexpr int kParts = 1;
  static HWY_INLINE Lanes Broadcast(const A* a) { return hn::Set(Tag<T>(), *a); }
  template <int part>
  static HWY_INLINE Lanes Load(const E* b) {
    return hn::LoadU(Tag<T>(), b);
  }
  static HWY_INLINE Vector<T> Add(Lanes a, Lanes b, Vector<T> sum) { return hn::MulAdd(a, b, sum); }
};

/// A[r, t] = a[r * a_row + t * a_step], t counting parts; B[t, :] = b + t * b_step; C[r, :] = c + r * c_row. Strides of
/// a and b count elements E.
template <class T, class E = T>
struct ProductOperands {
  const typename ProductStep<T, E>::A* a;
  int64_t a_row;
  int64_t a_step;
  const E* b;
  int64_t b_step;
  T* c;
  int64_t c_row;
  int64_t steps;
};

/// Steps that a register tile does row by row at its end, so that stores begin while other rows still multiply: 24
/// stores in a row hold the multipliers up. Measured on Zen 4 in f32, scores at D = 32, 64, 128: 95.7, 97.8, 98.8 % of
/// the peak without, 98.0, 99.1, 99.2 % with 4; 2 are too few. Each row loads the streamed vectors again, which a tile
/// of 2 vectors cannot spare.
constexpr int64_t kRowSteps = kTileVectors > 2 ? 4 : 0;

/// What becomes of the sums of row r of a product, vectors [first, first + V): C = or C +=.
template <Into I, class T>
struct StoreProduct {
  T* c;
  int64_t c_row;
  template <int V>
  HWY_INLINE void operator()(int64_t r, int64_t first, const Vector<T> (&sum)[V]) const {
    const Tag<T> d;
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) {
      T* HWY_RESTRICT to = c + r * c_row + (first + v) * kLanes<T>;
      hn::StoreU(I == Into::kAdd ? hn::Add(hn::LoadU(d, to), sum[v]) : sum[v], d, to);
    }
  }
};

template <class Finish>
constexpr bool kContinuesSums = false;
template <class T>
constexpr bool kContinuesSums<StoreProduct<Into::kContinue, T>> = true;

/// The sums that a row begins with.
template <int V, class T, class Finish>
HWY_INLINE void BeginSums(const Finish& finish, int64_t r, int64_t first, Vector<T> (&sum)[V]) {
#pragma GCC unroll 16
  for (int v = 0; v < V; ++v) {
    if constexpr (kContinuesSums<Finish>) {
      sum[v] = hn::LoadU(Tag<T>(), finish.c + r * finish.c_row + (first + v) * kLanes<T>);
    } else {
      sum[v] = hn::Zero(Tag<T>());
    }
  }
}

/// One part of a step for R rows.
template <int part, int R, int V, class T, class E>
HWY_INLINE void TileStep(const ProductOperands<T, E>& p, const typename ProductStep<T, E>::A* HWY_RESTRICT a,
                         const E* HWY_RESTRICT b, Vector<T> (*sum)[V]) {
  using Step = ProductStep<T, E>;
  typename Step::Lanes streamed[V];
#pragma GCC unroll 16
  for (int v = 0; v < V; ++v) streamed[v] = Step::template Load<part>(b + v * kLanes<T>);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const auto broadcast = Step::Broadcast(a + r * p.a_row);
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) sum[r][v] = Step::Add(broadcast, streamed[v], sum[r][v]);
  }
}

template <int R, int V, class T, class E>
HWY_INLINE void TileSteps(const ProductOperands<T, E>& p, const typename ProductStep<T, E>::A* HWY_RESTRICT a,
                          const E* HWY_RESTRICT b, int64_t steps, Vector<T> (*sum)[V]) {
  constexpr int kParts = ProductStep<T, E>::kParts;
  for (int64_t t = 0; t < steps; ++t, a += kParts * p.a_step, b += p.b_step) {
    TileStep<0, R, V>(p, a, b, sum);
    if constexpr (kParts == 2) TileStep<1, R, V>(p, a + p.a_step, b, sum);
  }
}

/// R rows times V vectors, which are rows `row` and vectors `first` on of the product; `finish` takes each row's sums.
template <int R, int V, class T, class E, class Finish>
HWY_INLINE void RegisterTile(const ProductOperands<T, E>& p, int64_t row, int64_t first, const Finish& finish) {
  Vector<T> sum[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) BeginSums<V, T>(finish, row + r, first, sum[r]);
  const int64_t row_steps = std::min(p.steps, kRowSteps);
  const int64_t tile_steps = p.steps - row_steps;
  const auto* a = p.a + row * p.a_row;
  const E* b = p.b + first * kLanes<T>;
  TileSteps<R, V>(p, a, b, tile_steps, sum);
  a += tile_steps * ProductStep<T, E>::kParts * p.a_step;
  b += tile_steps * p.b_step;
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    TileSteps<1, V>(p, a + r * p.a_row, b, row_steps, sum + r);
    finish(row + r, first, sum[r]);
  }
}

/// Tiles of kTileRows rows, then one of what is left.
template <int V, class T, class E, class Finish>
HWY_INLINE void RowTiles(const ProductOperands<T, E>& p, int64_t rows, int64_t first, const Finish& finish) {
  int64_t r = 0;
  for (; r + kTileRows <= rows; r += kTileRows) RegisterTile<kTileRows, V>(p, r, first, finish);
  switch (rows - r) {
    case 1: return RegisterTile<1, V>(p, r, first, finish);
    case 2: return RegisterTile<2, V>(p, r, first, finish);
    case 3: return RegisterTile<3, V>(p, r, first, finish);
    case 4: return RegisterTile<4, V>(p, r, first, finish);
    case 5: return RegisterTile<5, V>(p, r, first, finish);
    default: return;
  }
}

/// All rows and `vectors` whole vectors of a product. Vector groups are the outer loop, so that one group of B stays in
/// L1 while the rows pass. Groups are even: 5 vectors go as 3 + 2, not as 4 + 1.
template <class T, class E, class Finish>
HWY_INLINE void ProductInto(const ProductOperands<T, E>& p, int64_t rows, int64_t vectors, const Finish& finish) {
  for (int64_t first = 0; first < vectors;) {
    const int64_t groups = (vectors - first + kTileVectors - 1) / kTileVectors;
    const int64_t group = (vectors - first + groups - 1) / groups;
    switch (group) {
      case 1: RowTiles<1>(p, rows, first, finish); break;
      case 2: RowTiles<2>(p, rows, first, finish); break;
      default:
        if constexpr (kTileVectors > 2) {
          if (group == 3) {
            RowTiles<3>(p, rows, first, finish);
          } else {
            RowTiles<4>(p, rows, first, finish);
          }
        }
    }
    first += group;
  }
}

template <Into I, class T, class E = T>
HWY_NOINLINE void Product(const ProductOperands<T, E>& p, int64_t rows, int64_t vectors) {
  ProductInto(p, rows, vectors, StoreProduct<I, T>{p.c, p.c_row});
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_PRODUCT_INL_H_
