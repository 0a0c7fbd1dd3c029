// SPDX-License-Identifier: Apache-2.0
// Layers that work element by element: activations with their gates, dropout, and the rotation of pairs. Rows are
// widened to the compute type some columns at a time, in L1, and rounded once.
#if defined(QKV_ELEMENTWISE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_ELEMENTWISE_INL_H_
#undef QKV_ELEMENTWISE_INL_H_
#else
#define QKV_ELEMENTWISE_INL_H_
#endif

#include "kernels/activation-inl.h"
#include "kernels/dropout-inl.h"
#include "kernels/layer_kernels.h"
#include "kernels/rows-inl.h"
#include "qkv/support/random.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

/// Some columns of a row, at most kLayerColumns, as whole vectors.
template <class T>
class RowPart {
 public:
  /// Null where the operand is not there.
  HWY_INLINE const T* load(const StoredRows& operand, int64_t row, int64_t column, int64_t columns) {
    if (operand.data == nullptr) return nullptr;
    StoredRows part = operand;
    part.data = static_cast<const char*>(operand.data) + column * operand.column_stride * size_of(operand.dtype);
    return RowOf<T>(part, row, columns, (columns + kLanes<T> - 1) / kLanes<T> * kLanes<T>, values_);
  }
  HWY_INLINE T* values() { return values_; }
  HWY_INLINE void store(const StoredRows& operand, int64_t row, int64_t column, int64_t columns) const {
    RowTarget target = TargetRow(operand, row);
    target.row = static_cast<char*>(target.row) + column * operand.column_stride * size_of(operand.dtype);
    StoreRow<T>(values_, columns, target);
  }

 private:
  HWY_ALIGN T values_[kLayerColumns];
};

/// body(row, first column, columns) for every part of every row.
template <class Body>
HWY_INLINE void ForEachPart(const StoredRows& rows, const Body& body) {
  for (int64_t r = 0; r < rows.rows; ++r) {
    for (int64_t c = 0; c < rows.columns; c += kLayerColumns) body(r, c, std::min(kLayerColumns, rows.columns - c));
  }
}

template <Activation A, class T>
void ActivateAs(const ActivateRows& a) {
  RowPart<T> x_part, gate_part, y_part;
  ForEachPart(a.x, [&](int64_t r, int64_t first, int64_t columns) HWY_ATTR {
    const Tag<T> d;
    const T* x = x_part.load(a.x, r, first, columns);
    const T* gate = gate_part.load(a.gate, r, first, columns);
    for (int64_t c = 0; c < columns; c += kLanes<T>) {
      Vector<T> unused;
      auto y = Activate<A, false, T>(hn::LoadU(d, x + c), unused);
      if (gate != nullptr) y = hn::Mul(y, hn::LoadU(d, gate + c));
      hn::Store(y, d, y_part.values() + c);
    }
    y_part.store(a.y, r, first, columns);
  });
}

/// d_x = d_y gate activation'(x), d_gate = d_y activation(x).
template <Activation A, class T>
void ActivateBackwardAs(const ActivateRowsBackward& a) {
  RowPart<T> x_part, gate_part, d_y_part, d_x_part, d_gate_part;
  ForEachPart(a.x, [&](int64_t r, int64_t first, int64_t columns) HWY_ATTR {
    const Tag<T> d;
    const T* x = x_part.load(a.x, r, first, columns);
    const T* gate = gate_part.load(a.gate, r, first, columns);
    const T* d_y = d_y_part.load(a.d_y, r, first, columns);
    for (int64_t c = 0; c < columns; c += kLanes<T>) {
      Vector<T> derivative;
      const auto value = Activate<A, true, T>(hn::LoadU(d, x + c), derivative);
      const auto upstream = hn::LoadU(d, d_y + c);
      auto d_x = hn::Mul(upstream, derivative);
      if (gate != nullptr) d_x = hn::Mul(d_x, hn::LoadU(d, gate + c));
      hn::Store(d_x, d, d_x_part.values() + c);
      hn::Store(hn::Mul(upstream, value), d, d_gate_part.values() + c);
    }
    if (a.d_x.data != nullptr) d_x_part.store(a.d_x, r, first, columns);
    if (a.d_gate.data != nullptr) d_gate_part.store(a.d_gate, r, first, columns);
  });
}

template <class T>
void ActivateKernel(const ActivateRows& a) {
  switch (a.activation) {
    case Activation::none: return ActivateAs<Activation::none, T>(a);
    case Activation::relu: return ActivateAs<Activation::relu, T>(a);
    case Activation::gelu: return ActivateAs<Activation::gelu, T>(a);
    case Activation::gelu_tanh: return ActivateAs<Activation::gelu_tanh, T>(a);
    case Activation::silu: return ActivateAs<Activation::silu, T>(a);
  }
}

template <class T>
void ActivateBackwardKernel(const ActivateRowsBackward& a) {
  switch (a.activation) {
    case Activation::none: return ActivateBackwardAs<Activation::none, T>(a);
    case Activation::relu: return ActivateBackwardAs<Activation::relu, T>(a);
    case Activation::gelu: return ActivateBackwardAs<Activation::gelu, T>(a);
    case Activation::gelu_tanh: return ActivateBackwardAs<Activation::gelu_tanh, T>(a);
    case Activation::silu: return ActivateBackwardAs<Activation::silu, T>(a);
  }
}

template <class T>
void AddKernel(const AddRows<T>& a) {
  RowPart<T> x_part, residual_part, y_part;
  ForEachPart(a.x, [&](int64_t r, int64_t first, int64_t columns) HWY_ATTR {
    const Tag<T> d;
    const T* x = x_part.load(a.x, r, first, columns);
    const T* residual = residual_part.load(a.residual, r, first, columns);
    for (int64_t c = 0; c < columns; c += kLanes<T>) {
      auto y = hn::Mul(hn::LoadU(d, x + c), hn::Set(d, a.scale));
      if (residual != nullptr) y = hn::Add(y, hn::LoadU(d, residual + c));
      hn::Store(y, d, y_part.values() + c);
    }
    y_part.store(a.y, r, first, columns);
  });
}

template <class T>
void DropoutKernel(const DropoutRows& a) {
  RowPart<T> x_part, residual_part, y_part;
  ForEachPart(a.x, [&](int64_t r, int64_t first, int64_t columns) HWY_ATTR {
    const Tag<T> d;
    uint64_t kept[kLayerColumns / kWordBits];
    KeptBits(dropout_row_key(a.seed, 0, 0, a.first_row + r), first, a.threshold, columns, kept);
    const auto keep = hn::Set(d, static_cast<T>(a.keep));
    const T* x = x_part.load(a.x, r, first, columns);
    const T* residual = residual_part.load(a.residual, r, first, columns);
    for (int64_t c = 0; c < columns; c += kLanes<T>) {
      auto y = hn::IfThenElseZero(LanesOfBits<T>(kept, c), hn::Mul(hn::LoadU(d, x + c), keep));
      if (residual != nullptr) y = hn::Add(y, hn::LoadU(d, residual + c));
      hn::Store(y, d, y_part.values() + c);
    }
    y_part.store(a.y, r, first, columns);
  });
}

template <class T>
void Rotate(const RotateRows<T>& p) {
  RowPart<T> a_part, b_part, cosines, sines;
  const T sign = p.backward ? T{-1} : T{1};
  // Columns outermost: all rows share cosines and sines.
  for (int64_t first = 0; first < p.a.columns; first += kLayerColumns) {
    const Tag<T> d;
    const int64_t columns = std::min(kLayerColumns, p.a.columns - first);
    const StoredRows cosine_row = {p.cosine, DTypeOf<T>::value, 0, 1, 1, p.a.columns};
    const StoredRows sine_row = {p.sine, DTypeOf<T>::value, 0, 1, 1, p.a.columns};
    const T* cosine = cosines.load(cosine_row, 0, first, columns);
    const T* sine = sines.load(sine_row, 0, first, columns);
    for (int64_t r = 0; r < p.a.rows; ++r) {
      const T* a = a_part.load(p.a, r, first, columns);
      const T* b = b_part.load(p.b, r, first, columns);
      for (int64_t c = 0; c < columns; c += kLanes<T>) {
        const auto x = hn::LoadU(d, a + c);
        const auto y = hn::LoadU(d, b + c);
        const auto cos = hn::LoadU(d, cosine + c);
        const auto sin = hn::Mul(hn::LoadU(d, sine + c), hn::Set(d, sign));
        hn::Store(hn::NegMulAdd(y, sin, hn::Mul(x, cos)), d, a_part.values() + c);
        hn::Store(hn::MulAdd(x, sin, hn::Mul(y, cos)), d, b_part.values() + c);
      }
      a_part.store(p.a, r, first, columns);
      b_part.store(p.b, r, first, columns);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_ELEMENTWISE_INL_H_
