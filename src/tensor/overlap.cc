// SPDX-License-Identifier: Apache-2.0
// Do two strided views share a byte? An element of view A starts at a + sum s_i x_i, 0 <= x_i < n_i, and covers its
// bytes; likewise B. With negative strides turned round and B counted from its far end, "some byte is in both" reads
//
//   sum c_i x_i + u = t,   0 <= x_i <= bound_i,   0 <= u <= slack,          all c_i > 0
//
// a bounded linear Diophantine equation. The search goes through the terms from the largest coefficient down. At each
// term, what the smaller ones can still add limits x to a short range (one or two values when the axes nest, as they do
// in any layout without overlap), and what remains must lie within `slack` above a multiple of the smaller ones' gcd:
// the next x that meets this is computed (next_in_window), not tried for. The problem is NP-complete in general,
// therefore the work is capped; past the cap the answer is "yes", which refuses a call that might have been right,
// never the reverse.
#include <algorithm>
#include <numeric>
#include <vector>

#include "qkv/tensor/view.h"

namespace qkv {
namespace {

/// Nodes of the search: some milliseconds. Layouts with nested axes need about 3^rank.
constexpr int kMaxWork = 1 << 16;

struct Term {
  int64_t coefficient = 0;
  int64_t bound = 0;
};

int64_t floor_mod(int64_t a, int64_t m) { return (a % m + m) % m; }

/// Smallest x >= 0 with low <= (a x) mod m <= high, where 0 <= low <= high < m, 0 <= a < m; -1 if there is none.
/// Either x is found before the first wrap-around, or the number of wraps solves the same problem modulo a.
int64_t first_in_window(int64_t a, int64_t m, int64_t low, int64_t high) {
  if (low == 0) return 0;
  if (a == 0) return -1;
  const int64_t direct = (low - 1) / a + 1;
  if (direct <= high / a) return direct;
  // No multiple of a lies in [low, high]: the window does not wrap modulo a either.
  const int64_t wraps = first_in_window(m % a, a, floor_mod(-high, a), floor_mod(-low, a));
  if (wraps < 0) return -1;
  const __int128 reach = static_cast<__int128>(m) * wraps + low;
  return static_cast<int64_t>((reach - 1) / a + 1);
}

class BoundedEquation {
 public:
  void add(int64_t coefficient, int64_t bound) {
    if (coefficient == 0 || bound == 0) return;
    terms_.push_back({coefficient, bound});
  }

  /// Is there a solution of sum c x + u = target with 0 <= u <= slack?
  bool solvable(int64_t target, int64_t slack) {
    if (!prepare(slack)) return true;
    slack_ = slack;
    work_ = 0;
    return search(0, target);
  }

 private:
  /// Sorts, merges equal coefficients, and sums up what lies behind each term. False when a sum leaves 64 bits, which
  /// no memory can.
  bool prepare(int64_t slack) {
    std::sort(terms_.begin(), terms_.end(), [](Term a, Term b) { return a.coefficient > b.coefficient; });
    size_t used = 0;
    for (const Term term : terms_) {
      if (used > 0 && terms_[used - 1].coefficient == term.coefficient) {
        if (__builtin_add_overflow(terms_[used - 1].bound, term.bound, &terms_[used - 1].bound)) return false;
      } else {
        terms_[used++] = term;
      }
    }
    terms_.resize(used);
    rest_.assign(used + 1, slack);
    gcd_.assign(used + 1, 0);
    for (size_t i = used; i-- > 0;) {
      int64_t reach = 0;
      if (__builtin_mul_overflow(terms_[i].coefficient, terms_[i].bound, &reach)) return false;
      if (__builtin_add_overflow(rest_[i + 1], reach, &rest_[i])) return false;
      gcd_[i] = std::gcd(gcd_[i + 1], terms_[i].coefficient);
    }
    return true;
  }

  bool search(size_t index, int64_t target) {
    if (target < 0 || target > rest_[index]) return false;
    if (index == terms_.size()) return true;  // the slack takes the remainder
    if (++work_ > kMaxWork) return true;
    const auto [coefficient, bound] = terms_[index];
    const int64_t excess = target - rest_[index + 1];
    const int64_t last = std::min(bound, target / coefficient);
    int64_t x = excess > 0 ? (excess - 1) / coefficient + 1 : 0;
    while (x <= last) {
      const int64_t skip = next_in_window(index, target - coefficient * x);
      if (skip < 0 || skip > last - x) return false;
      x += skip;
      if (search(index + 1, target - coefficient * x)) return true;
      if (++work_ > kMaxWork) return true;
      ++x;
    }
    return false;
  }

  /// Smallest step >= 0 such that target - coefficient * step lies at most `slack` above a multiple of the gcd of the
  /// terms behind `index`; -1 if there is none.
  int64_t next_in_window(size_t index, int64_t target) const {
    const int64_t modulus = gcd_[index + 1];
    if (modulus == 0 || slack_ >= modulus - 1) return 0;
    const int64_t residue = target % modulus;
    if (residue <= slack_) return 0;
    const int64_t step = floor_mod(-terms_[index].coefficient, modulus);
    return first_in_window(step, modulus, modulus - residue, modulus - residue + slack_);
  }

  std::vector<Term> terms_;
  std::vector<int64_t> rest_;  ///< the most that terms i, i+1, ... and the slack can add
  std::vector<int64_t> gcd_;   ///< of the coefficients i, i+1, ...; 0 behind the last
  int64_t slack_ = 0;
  int work_ = 0;
};

/// Byte distances from element 0 down to the lowest element (negative) and up to the highest. False beyond 2^61, which
/// no memory spans: sums of a few of them then stay within 64 bits.
bool reach(const TensorView& view, int64_t& below, int64_t& above) {
  below = 0;
  above = 0;
  for (int axis = 0; axis < view.rank(); ++axis) {
    int64_t span = 0;
    if (__builtin_mul_overflow(view.stride(axis), view.size(axis) - 1, &span)) return false;
    if (__builtin_mul_overflow(span, size_of(view.dtype()), &span)) return false;
    int64_t& side = span < 0 ? below : above;
    if (__builtin_add_overflow(side, span, &side)) return false;
  }
  constexpr int64_t kLimit = int64_t{1} << 61;
  return below >= -kLimit && above <= kLimit;
}

void add_axes(const TensorView& view, BoundedEquation& equation) {
  for (int axis = 0; axis < view.rank(); ++axis) {
    const int64_t stride = view.stride(axis) * size_of(view.dtype());
    equation.add(stride < 0 ? -stride : stride, view.size(axis) - 1);
  }
}

bool has_elements(const TensorView& view) { return view && view.elements() > 0; }

}  // namespace

bool overlap(const TensorView& a, const TensorView& b) {
  if (!has_elements(a) || !has_elements(b)) return false;
  int64_t a_below = 0, a_above = 0, b_below = 0, b_above = 0;
  if (!reach(a, a_below, a_above) || !reach(b, b_below, b_above)) return true;
  // Both extents, as distances from element 0 of A.
  const int64_t distance =
      static_cast<int64_t>(reinterpret_cast<uintptr_t>(b.data()) - reinterpret_cast<uintptr_t>(a.data()));
  const int64_t a_last = a_above + size_of(a.dtype()) - 1;
  const int64_t b_last = b_above + size_of(b.dtype()) - 1;
  if (static_cast<__int128>(distance) + b_below > a_last || static_cast<__int128>(distance) + b_last < a_below)
    return false;

  BoundedEquation equation;
  add_axes(a, equation);
  add_axes(b, equation);
  return equation.solvable(distance + b_last - a_below, size_of(a.dtype()) + size_of(b.dtype()) - 2);
}

bool overlaps_itself(const TensorView& view) {
  if (!has_elements(view)) return false;
  std::vector<Term> axes;
  for (int axis = 0; axis < view.rank(); ++axis) {
    if (view.size(axis) < 2) continue;
    if (view.stride(axis) == 0) return true;
    const int64_t stride = view.stride(axis);
    axes.push_back({stride < 0 ? -stride : stride, view.size(axis) - 1});
  }
  int64_t below = 0, above = 0;
  if (!reach(view, below, above)) return true;
  std::sort(axes.begin(), axes.end(), [](Term a, Term b) { return a.coefficient > b.coefficient; });

  // Two indices that differ by z, first in axis `lead` and there by z > 0, meet when
  //   c_lead z_lead + sum over later axes of c z = 0, |z| <= bound.
  // In terms of bound - z, which starts at 0, all coefficients are positive.
  for (size_t lead = 0; lead < axes.size(); ++lead) {
    BoundedEquation equation;
    equation.add(axes[lead].coefficient, axes[lead].bound - 1);
    int64_t target = axes[lead].coefficient * axes[lead].bound;
    int64_t later = 0;
    for (size_t axis = lead + 1; axis < axes.size(); ++axis) {
      equation.add(axes[axis].coefficient, 2 * axes[axis].bound);
      later += axes[axis].coefficient * axes[axis].bound;
    }
    target += later;
    if (later >= axes[lead].coefficient && equation.solvable(target, 0)) return true;
  }
  return false;
}

}  // namespace qkv
