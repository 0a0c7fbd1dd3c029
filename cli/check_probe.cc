// SPDX-License-Identifier: Apache-2.0
//
// The reference has no weights of its own to show, but out is the weights when the values are one-hot: with
// v_jc = 1 where j = first + c, out_ic = a_i,first+c. So the f64 weights come from the one evaluation there is, a strip
// of keys at a time, and never are Tq x Tk numbers.
#include <algorithm>
#include <cmath>
#include <vector>

#include "cli/check.h"

namespace qkv::cli {
namespace {

constexpr int64_t kStrip = 64;

size_t index(int64_t i) { return static_cast<size_t>(i); }

int64_t integer_at(const TensorView& view, int64_t i) {
  return static_cast<int64_t>(load_as_double(view.dtype(), view.at(i * view.stride(0))));
}

/// Weights of all rows for `width` keys from `first` on, [rows, width], rows in the order of row_shape().
Tensor weights_of_strip(const TensorView& q, const TensorView& k, const AttentionOptions& options,
                        Arithmetic arithmetic, int64_t first, int64_t width) {
  const int row_axis = options.query_starts ? 0 : k.rank() - 2;
  const int64_t keys = k.size(row_axis);
  // Element (j, c) is number j - c + width of one line that is 1 at j - c = first and 0 elsewhere.
  const Tensor line = [&] {
    Tensor zeros(q.dtype(), {keys + width + 1});
    store_from_double(q.dtype(), zeros.mutable_view().at(first + width), 1);
    return zeros;
  }();
  Dims shape = k.shape();
  Dims strides = Dims::filled(k.rank(), 0);
  shape[k.rank() - 1] = width;
  strides[k.rank() - 1] = -1;
  strides[row_axis] = 1;
  const TensorView one_hot(q.dtype(), line.view().at(width), shape, strides);
  return attention_reference(q, k, one_hot, options, arithmetic).out;
}

/// How rows and keys of the results are numbered.
struct Layout {
  explicit Layout(const ProblemFile& problem) : packed(problem.packed()) {
    const TensorView q = problem["q"], k = problem["k"];
    heads = packed ? q.size(1) : 1;
    Tq = q.size(packed ? 0 : q.rank() - 2);
    Tk = k.size(packed ? 0 : k.rank() - 2);
    rows = element_count(problem.row_shape());
    first_key.resize(index(rows));
    if (!packed) return;
    const TensorView q_starts = problem["query_starts"], k_starts = problem["key_starts"];
    for (int64_t b = 0; b + 1 < q_starts.size(0); ++b) {
      for (int64_t row = integer_at(q_starts, b) * heads; row < integer_at(q_starts, b + 1) * heads; ++row) {
        first_key[index(row)] = integer_at(k_starts, b);
      }
    }
  }
  /// Place in key_mass.
  int64_t mass(int64_t row, int64_t key) const { return packed ? key * heads + row % heads : row / Tq * Tk + key; }

  bool packed;
  int64_t heads = 1, Tq = 0, Tk = 0, rows = 0;
  std::vector<int64_t> first_key;  ///< of each row's sequence; 0 when not packed
};

/// Statistics of weights, summed in T in the order of the keys.
template <class T>
class Sums {
 public:
  Sums(const Layout& layout, const Arrays& results)
      : layout_(layout),
        row_top_(results.at("row_top").view()),
        entropy_(index(layout.rows)),
        max_(entropy_),
        chosen_(entropy_),
        mass_(index(results.at("key_mass").view().elements())) {}

  void add(const TensorView& strip, int64_t first, int64_t width) {
    for (int64_t row = 0; row < layout_.rows; ++row) {
      const int64_t top = layout_.first_key[index(row)] + *static_cast<const int64_t*>(row_top_.at(row));
      for (int64_t c = 0; c < width; ++c) {
        const T a = static_cast<T>(load_as_double(strip.dtype(), strip.at(row * width + c)));
        if (a != 0) entropy_[index(row)] -= a * std::log(a);
        if (!(max_[index(row)] >= a)) max_[index(row)] = std::isnan(max_[index(row)]) ? max_[index(row)] : a;
        if (first + c == top) chosen_[index(row)] = a;
        mass_[index(layout_.mass(row, first + c))] += a;
      }
    }
  }

  const std::vector<T>& entropy() const { return entropy_; }
  const std::vector<T>& max() const { return max_; }
  const std::vector<T>& mass() const { return mass_; }
  /// How much lighter the key that row_top names is than the heaviest; an empty row must name none.
  double lightness() const {
    double worst = 0;
    for (int64_t row = 0; row < layout_.rows; ++row) {
      const double max = static_cast<double>(max_[index(row)]);
      if (std::isnan(max)) continue;
      const bool named = *static_cast<const int64_t*>(row_top_.at(row)) >= 0;
      worst = std::max(worst, named == (max > 0) ? max - static_cast<double>(chosen_[index(row)]) : 1.0);
    }
    return worst;
  }

 private:
  const Layout& layout_;
  TensorView row_top_;
  std::vector<T> entropy_, max_, chosen_, mass_;
};

/// The part of a strip that lies in the tile, against the tile's weights.
struct TileErrors {
  double error = 0, plain_error = 0;
  void add(const TensorView& weights, const Tile& tile, const Layout& layout, const TensorView& exact,
           const TensorView& plain, int64_t first, int64_t width) {
    const int64_t tile_rows = tile.queries.end - tile.queries.begin;
    const int64_t tile_keys = tile.keys.end - tile.keys.begin;
    for (int64_t row = 0; row < layout.rows; ++row) {
      const int64_t i = row % layout.Tq;
      if (i < tile.queries.begin || i >= tile.queries.end) continue;
      const int64_t place = (row / layout.Tq * tile_rows + i - tile.queries.begin) * tile_keys;
      for (int64_t key = std::max(first, tile.keys.begin); key < std::min(first + width, tile.keys.end); ++key) {
        const int64_t at = row * width + key - first;
        const double truth = load_as_double(exact.dtype(), exact.at(at));
        if (std::isnan(truth)) continue;  // one-hot values say nothing about the single weights of a NaN row
        const double ours = load_as_double(weights.dtype(), weights.at(place + key - tile.keys.begin));
        const double simple = load_as_double(plain.dtype(), plain.at(at));
        error = std::max(error, std::isnan(ours) ? HUGE_VAL : std::fabs(ours - truth));
        plain_error = std::max(plain_error, std::isnan(simple) ? 0 : std::fabs(simple - truth));
      }
    }
  }
};

template <class T, class U>
AccuracyComparison compare(const char* name, const TensorView& result, const std::vector<T>& exact,
                           const std::vector<U>& plain, double allowance) {
  AccuracyComparison comparison{.name = name, .allowance = allowance};
  for (int64_t at = 0; at < result.elements(); ++at) {
    const double ours = load_as_double(result.dtype(), result.at(at));
    const double truth = static_cast<double>(exact[index(at)]);
    const double simple = static_cast<double>(plain[index(at)]);
    // A NaN row has NaN for its hidden keys here, too, and not in the results: only the other direction is an error.
    if (std::isnan(truth)) continue;
    comparison.error = std::max(comparison.error, std::isnan(ours) ? HUGE_VAL : std::fabs(ours - truth));
    if (!std::isnan(simple)) comparison.plain_error = std::max(comparison.plain_error, std::fabs(simple - truth));
  }
  return comparison;
}

/// What rounding may cost a score, and so, relatively, a weight.
double score_allowance(const ProblemFile& problem, const AttentionOptions& options) {
  const TensorView q = problem["q"], k = problem["k"], v = problem["v"];
  Tensor out(q.dtype(), problem.out_shape());
  AttentionReference ours;
  ours.lse = Tensor(problem.compute_type(), problem.row_shape());
  attention_forward(q, k, v, options, out.mutable_view(), ours.lse.mutable_view());
  return attention_accuracy(q, k, v, options, ours).front().allowance;
}

template <class T>
std::vector<AccuracyComparison> check(const ProblemFile& problem, const AttentionOptions& options,
                                      const Arrays& results, const std::optional<Tile>& tile) {
  const Layout layout(problem);
  // The plain formula in the compute type: probes are not rounded to the storage type.
  const Tensor q = converted(problem["q"], problem.compute_type());
  const Tensor k = converted(problem["k"], problem.compute_type());
  const Tensor bias = options.bias ? converted(options.bias, problem.compute_type()) : Tensor();
  AttentionOptions plain_options = options;
  plain_options.bias = bias.view();

  Sums<double> exact(layout, results);
  Sums<T> plain(layout, results);
  TileErrors tile_errors;
  for (int64_t first = 0; first < layout.Tk; first += kStrip) {
    const int64_t width = std::min(kStrip, layout.Tk - first);
    const Tensor a = weights_of_strip(problem["q"], problem["k"], options, Arithmetic::reference, first, width);
    const Tensor b = weights_of_strip(q.view(), k.view(), plain_options, Arithmetic::plain, first, width);
    exact.add(a.view(), first, width);
    plain.add(b.view(), first, width);
    if (tile) tile_errors.add(results.at("weights").view(), *tile, layout, a.view(), b.view(), first, width);
  }

  const double weight = score_allowance(problem, options);
  const double largest_mass = exact.mass().empty() ? 0 : *std::max_element(exact.mass().begin(), exact.mass().end());
  const double mass_terms = std::max(std::sqrt(static_cast<double>(layout.Tq)), largest_mass);
  std::vector<AccuracyComparison> comparisons = {
      compare("row_entropy", results.at("row_entropy").view(), exact.entropy(), plain.entropy(),
              weight * (1 + std::log1p(static_cast<double>(layout.Tk)))),
      compare("row_max", results.at("row_max").view(), exact.max(), plain.max(), weight),
      {.name = "row_top", .error = exact.lightness(), .allowance = weight},
      compare("key_mass", results.at("key_mass").view(), exact.mass(), plain.mass(), weight * mass_terms)};
  if (tile) {
    comparisons.push_back(
        {.name = "weights", .error = tile_errors.error, .plain_error = tile_errors.plain_error, .allowance = weight});
  }
  return comparisons;
}

}  // namespace

std::vector<AccuracyComparison> check_probes(const ProblemFile& problem, AttentionOptions options,
                                             const Arrays& results, const std::optional<Tile>& tile) {
  // Weights are those before dropout.
  options.dropout = 0;
  options.seed.reset();
  return problem.compute_type() == DType::f64 ? check<double>(problem, options, results, tile)
                                              : check<float>(problem, options, results, tile);
}

}  // namespace qkv::cli
