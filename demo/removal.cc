// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include <qkv/attention.h>

#include "demo.h"
#include "text.h"

namespace demo {
namespace {

using qkv::Tensor;
using Vector = std::vector<double>;  // [D]

/// The vector at (head, index) of a tensor [1, H, n, D].
Vector vector_at(const Tensor& tensor, int64_t head, int64_t index) {
  const int64_t D = tensor.shape()[3];
  const float* first = floats(tensor) + (head * tensor.shape()[2] + index) * D;
  return Vector(first, first + D);
}

Vector difference(const Vector& a, const Vector& b) {
  Vector result(a.size());
  std::transform(a.begin(), a.end(), b.begin(), result.begin(), std::minus<>());
  return result;
}

double length(const Vector& a) {
  double sum = 0;
  for (const double x : a) sum += x * x;
  return std::sqrt(sum);
}

/// A row of `out` when a second run gets these values and, where there is one, this mask.
Vector attend_row(const Sentence& s, const qkv::TensorView& v, const qkv::TensorView& mask, int64_t head,
                  int64_t query) {
  Tensor out(qkv::DType::f32, s.q.shape()), lse(qkv::DType::f32, {1, s.heads(), s.tokens()});
  attention_forward(s.q.view(), s.k.view(), v, {.mask = mask}, out.mutable_view(), lse.mutable_view());
  return vector_at(out, head, query);
}

/// What really happens to a row of `out` when the value of `key` is zero, and when `key` is hidden.
struct Removed {
  Vector zero_value, hide_key;
};
Removed remove(const Sentence& s, int64_t head, int64_t query, int64_t key) {
  const Vector before = attend_row(s, s.v.view(), {}, head, query);
  Tensor values = converted(s.v.view(), qkv::DType::f32);
  std::fill_n(floats(values) + (head * s.tokens() + key) * s.width(), s.width(), 0.0f);
  std::vector<uint8_t> visible(static_cast<size_t>(s.tokens()), 1);
  visible[static_cast<size_t>(key)] = 0;
  const qkv::TensorView mask(visible.data(), {1, 1, 1, s.tokens()});
  return {difference(attend_row(s, values.view(), {}, head, query), before),
          difference(attend_row(s, s.v.view(), mask, head, query), before)};
}

/// "manager 0.28   [CLS] 0.15   her² 0.05", each weight times `growth`.
std::string listed(const Sentence& s, const int64_t* keys, const float* weights, int64_t count, double growth) {
  std::string text;
  for (int64_t i = 0; i < count; ++i) {
    text += with_weight(s.word(keys[i]), static_cast<float>(growth * static_cast<double>(weights[keys[i]])));
    if (i + 1 < count) text += "  ";
  }
  return text;
}

/// Largest distance of the two changes from those of a second run; infinite when it is more than rounding explains.
double rounding(const Sentence& s, int64_t head, int64_t query, int64_t key, const Vector& zero, const Vector& hide,
                double growth) {
  const Removed removed = remove(s, head, query, key);
  const double error =
      std::max(length(difference(zero, removed.zero_value)), length(difference(hide, removed.hide_key)));
  double largest = 0;  // all sides are f32 means of values, and hiding multiplies their rounding by the growth
  for (int64_t j = 0; j < s.tokens(); ++j) largest = std::max(largest, length(vector_at(s.v, head, j)));
  return error <= 8 * 0x1p-23 * growth * largest ? error : HUGE_VAL;
}

/// One row and its heaviest key, removed both ways. Returns how far a second run is from that: see rounding().
double show(const Sentence& s, int64_t head, const std::string& word, const char* lesson) {
  constexpr int64_t kCount = 4;
  const int64_t T = s.tokens(), query = s.place(word);
  const qkv::TensorView q = s.q.view(), k = s.k.view(), v = s.v.view();
  const qkv::AttentionEdges edges = attention_edges(q, k, v, {}, query, kCount);
  Tensor weights(qkv::DType::f32, {1, s.heads(), 1, T});
  attention_weights(q, k, v, {}, {query, query + 1}, {0, T}, weights.mutable_view());

  const float* a = floats(weights) + head * T;
  const int64_t* keys = static_cast<const int64_t*>(edges.keys.view().data()) + head * kCount;
  const int64_t key = keys[0];  // the heaviest
  const double growth = 1 / (1 - static_cast<double>(a[key]));
  const Vector zero = vector_at(edges.zero_value, head, 0), hide = vector_at(edges.hide_key, head, 0);

  std::printf("\n   Head %d, %s reads %s. Its out has length %.2f, the value of %s %.2f.\n", static_cast<int>(head),
              word.c_str(), with_weight(s.word(key), a[key]).c_str(), length(attend_row(s, v, {}, head, query)),
              s.word(key).c_str(), length(vector_at(s.v, head, key)));
  std::printf("     value zeroed: out moves by %.2f, weights stay:            %s\n", length(zero),
              listed(s, keys, a, kCount - 1, 1).c_str());
  std::printf("     key hidden:   out moves by %.2f, others grow %4.1f times:  %s\n", length(hide), growth,
              listed(s, keys + 1, a, kCount - 1, growth).c_str());
  std::printf("     %s\n", lesson);
  return rounding(s, head, query, key, zero, hide, growth);
}

}  // namespace

bool show_removals(const Sentence& s) {
  std::printf(
      "   A zeroed value keeps its share of the weight and gives nothing for it. A hidden key is out of the\n"
      "   sum, and its share goes to the others. Neither needs a second run: for weight a and value v they\n"
      "   change out by -a v and by a/(1-a) (out - v).\n");
  const double worst = std::max(
      {show(s, 3, "bank¹", "A large weight on a short value adds little, but hiding it changes what all others weigh."),
       show(s, 3, "she", "Without Maria's value she still reads Maria; without Maria she reads the manager."),
       show(s, 8, "would", "Words that were hardly read fill the place of the hidden one.")});
  const bool agrees = std::isfinite(worst);
  if (agrees) {
    std::printf("\n   Attending again, with these values zeroed and these keys masked, gives the same within %.0e.\n",
                worst);
  } else {
    std::printf("\n   Attending again, with these values zeroed and these keys masked, does NOT give the same.\n");
  }
  return agrees;
}

}  // namespace demo
