// SPDX-License-Identifier: Apache-2.0
//
// What removing an edge would do, against really removing it.
#include <set>

#include "probe_reference.h"
#include "probe_run.h"
#include "qkv/support/error.h"

namespace qkv::test {
namespace {

/// One row of the definition, in T, with a mask of its own.
template <class T>
class RowWithMask {
 public:
  RowWithMask(const Problem& problem, int64_t b, int64_t h, int64_t query)
      : problem_(problem), b_(b), h_(h), query_(query), inputs_(problem, b, problem.kv_head(h)), row_(problem) {
    const int64_t Tk = problem.sequence(b).Tk;
    for (int64_t j = 0; j < Tk; ++j) {
      mask_.push_back(!problem.mask || truth(problem.mask, b, h, query, j) ? 1 : 0);
    }
    mask_.push_back(0);  // an address even without keys
    problem_.mask = {reinterpret_cast<const char*>(mask_.data()), DType::u8, 1, {0, 0, 0, 1}};
    run();
  }
  const definition::Row<T>& row() const { return row_; }
  double largest_score_term() const {
    double largest = 1;
    for (const int64_t j : row_.visible) {
      largest = std::max(largest, test::largest_score_term(problem_, inputs_, row_, b_, h_, query_, j));
    }
    return largest;
  }
  T value(int64_t j, int64_t c) const { return inputs_.v[static_cast<size_t>(j * problem_.Dv + c)]; }
  /// The output without key j.
  std::vector<T> out_without(int64_t j) {
    mask_[static_cast<size_t>(j)] = 0;
    run();
    std::vector<T> out = row_.out;
    mask_[static_cast<size_t>(j)] = 1;
    run();
    return out;
  }

 private:
  void run() { definition::forward_row(problem_, inputs_, b_, h_, query_, row_); }

  Problem problem_;
  int64_t b_, h_, query_;
  definition::HeadInputs<T> inputs_;
  definition::Row<T> row_;
  std::vector<uint8_t> mask_;
};

struct Edge {
  int64_t key = -1;
  std::vector<double> zero_value, hide_key;
};

Edge edge(const AttentionEdges& edges, int64_t index, int64_t Dv) {
  Edge result{static_cast<int64_t>(element(edges.keys.view(), index)), {}, {}};
  for (int64_t c = 0; c < Dv; ++c) {
    result.zero_value.push_back(element(edges.zero_value.view(), index * Dv + c));
    result.hide_key.push_back(element(edges.hide_key.view(), index * Dv + c));
  }
  return result;
}

double largest_value(const definition::Row<double>& row, const std::function<double(int64_t, int64_t)>& value) {
  double largest = 0;
  for (const int64_t j : row.visible) {
    for (size_t c = 0; c < row.out.size(); ++c) {
      largest = std::max(largest, std::fabs(row.kept[static_cast<size_t>(j)] * value(j, static_cast<int64_t>(c))));
    }
  }
  return largest;
}

/// Edges of one head against the row computed again without their keys: within twice the error of the plain rows, and a
/// few units in the last place of the largest term.
template <class Wide, class Plain>
class HeadCheck {
 public:
  HeadCheck(const Problem& problem, int64_t b, int64_t h, int64_t query)
      : Dv_(problem.Dv), wide_(problem, b, h, query), plain_(problem, b, h, query) {
    const RowWithMask<double> sizes(problem, b, h, query);
    score_term_ = sizes.largest_score_term();
    term_ = score_term_ * largest_value(sizes.row(), [&](int64_t j, int64_t c) { return sizes.value(j, c); });
  }

  void expect(const AttentionEdges& edges, int64_t first, int64_t count) {
    const std::vector<int64_t>& keys = wide_.row().visible;
    std::set<int64_t> seen;
    double before = std::numeric_limits<double>::infinity();
    for (int64_t n = 0; n < count; ++n) {
      const Edge result = edge(edges, first + n, Dv_);
      SCOPED_TRACE(concat("edge ", n, " key ", result.key));
      if (n >= static_cast<int64_t>(keys.size())) {
        expect_none(result);
        continue;
      }
      ASSERT_TRUE(std::binary_search(keys.begin(), keys.end(), result.key));
      ASSERT_TRUE(seen.insert(result.key).second) << "twice";
      EXPECT_LE(weight(result.key), before * slack()) << "heaviest first";
      before = weight(result.key);
      expect_effects(result);
    }
    for (const int64_t j : keys) {
      if (count > 0 && seen.count(j) == 0) {
        EXPECT_LE(weight(j), before * slack()) << "left out: key " << j;
      }
    }
  }

 private:
  static constexpr bool kIsF64 = std::is_same_v<Plain, double>;
  static constexpr double kUlp = kIsF64 ? 0x1p-52 : 0x1p-23;
  static constexpr double kSmallest = kIsF64 ? 0x1p-1074 : 0x1p-149;

  double weight(int64_t j) const { return static_cast<double>(wide_.row().weight[static_cast<size_t>(j)]); }
  /// What rounding may do to the ratio of two weights.
  double slack() const { return 1 + 64 * kUlp * score_term_; }

  void expect_none(const Edge& result) const {
    EXPECT_EQ(result.key, -1);
    EXPECT_EQ(result.zero_value, std::vector<double>(result.zero_value.size(), 0.0));
    EXPECT_EQ(result.hide_key, std::vector<double>(result.hide_key.size(), 0.0));
  }

  template <class T>
  static std::vector<T> change_when_hidden(RowWithMask<T>& row, int64_t j) {
    std::vector<T> change = row.out_without(j);
    for (size_t c = 0; c < change.size(); ++c) change[c] -= row.row().out[c];
    return change;
  }
  template <class T>
  static std::vector<T> change_when_zeroed(RowWithMask<T>& row, int64_t j) {
    std::vector<T> change;
    const size_t key = static_cast<size_t>(j);
    for (size_t c = 0; c < row.row().out.size(); ++c) {
      change.push_back(-row.row().weight[key] * row.row().kept[key] * row.value(j, static_cast<int64_t>(c)));
    }
    return change;
  }

  void expect_effects(const Edge& result) {
    expect_effect("hide_key", result.hide_key, change_when_hidden(wide_, result.key),
                  change_when_hidden(plain_, result.key), weight(result.key));
    expect_effect("zero_value", result.zero_value, change_when_zeroed(wide_, result.key),
                  change_when_zeroed(plain_, result.key), weight(result.key));
  }
  void expect_effect(const char* what, const std::vector<double>& effect, const std::vector<Wide>& reference,
                     const std::vector<Plain>& plain, double a) const {
    double plain_error = 0;
    for (size_t c = 0; c < effect.size(); ++c) {
      const Wide error = static_cast<Wide>(plain[c]) - reference[c];
      plain_error = std::max(plain_error, std::fabs(static_cast<double>(error)));
    }
    // The reference of hide_key is a difference of two rows, too.
    const double reference_error = 4 * static_cast<double>(std::numeric_limits<Wide>::epsilon()) * term_;
    const double bound = 2 * plain_error + reference_error + 4 * std::max(kSmallest, kUlp * a * term_);
    for (size_t c = 0; c < effect.size(); ++c) {
      EXPECT_NEAR(effect[c], static_cast<double>(reference[c]), bound) << what;
    }
  }

  int64_t Dv_;
  RowWithMask<Wide> wide_;
  RowWithMask<Plain> plain_;
  double score_term_ = 1, term_ = 0;
};

void expect_edges(const TestProblem& test, int64_t query, int64_t count) {
  SCOPED_TRACE(concat(name(test.spec), " query ", query, " count ", count));
  const Problem problem = check_problem(test.q, test.k, test.v, test.options);
  on_each_target([&](const std::string&) {
    const AttentionEdges edges = attention_edges(test.q, test.k, test.v, test.options, query, count);
    ASSERT_EQ(edges.keys.view().elements(), problem.B * problem.H * count);
    for (int64_t b = 0; b < problem.B; ++b) {
      for (int64_t h = 0; h < problem.H; ++h) {
        if (query >= problem.sequence(b).Tq) {
          for (int64_t n = 0; n < count; ++n) {
            EXPECT_EQ(element(edges.keys.view(), (b * problem.H + h) * count + n), -1) << "a row the sequence lacks";
          }
        } else if (problem.is_f64()) {
          HeadCheck<long double, double>(problem, b, h, query).expect(edges, (b * problem.H + h) * count, count);
        } else {
          HeadCheck<double, float>(problem, b, h, query).expect(edges, (b * problem.H + h) * count, count);
        }
      }
    }
  });
}

int64_t longest_queries(const TestProblem& test) {
  int64_t longest = 0;
  for (const Sequence& sequence : check_problem(test.q, test.k, test.v, test.options).sequences) {
    longest = std::max(longest, sequence.Tq);
  }
  return longest;
}

class EdgesFeature : public testing::TestWithParam<Spec> {};

TEST_P(EdgesFeature, are_what_removal_does) {
  const TestProblem problem(GetParam());
  const int64_t queries = longest_queries(problem);
  for (const int64_t query : {int64_t{0}, queries / 2, queries - 1}) expect_edges(problem, query, 5);
}

std::vector<Spec> features(DType dtype) {
  return each_feature_alone({.seed = 5, .dtype = dtype, .B = 2, .H = 2, .Hkv = 1, .Tq = 21, .Tk = 33, .threads = 2});
}
std::string test_name(const testing::TestParamInfo<Spec>& info) { return name(info.param); }
INSTANTIATE_TEST_SUITE_P(f32, EdgesFeature, testing::ValuesIn(features(DType::f32)), test_name);
INSTANTIATE_TEST_SUITE_P(f64, EdgesFeature, testing::ValuesIn(features(DType::f64)), test_name);
INSTANTIATE_TEST_SUITE_P(bf16, EdgesFeature, testing::ValuesIn(features(DType::bf16)), test_name);
INSTANTIATE_TEST_SUITE_P(f16, EdgesFeature, testing::ValuesIn(features(DType::f16)), test_name);

void sweep(uint64_t first, uint64_t last, int64_t largest) {
  for (uint64_t seed = first; seed < last && !testing::Test::HasFailure(); ++seed) {
    const TestProblem problem(random_spec(seed, largest));
    const int64_t queries = longest_queries(problem);
    if (queries == 0) continue;
    expect_edges(problem, static_cast<int64_t>(seed) % queries, static_cast<int64_t>(seed) % 7);
  }
}

TEST(edges, over_several_key_blocks_are_what_removal_does) {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16}) {
    for (const uint32_t features : {0u, uint32_t{kSinks | kMask}, uint32_t{kDropout | kSlopes}}) {
      expect_edges(TestProblem({.seed = 11, .dtype = dtype, .Tq = 3, .Tk = 1700, .D = 40, .features = features}), 1, 9);
    }
  }
}

TEST(edges, random_problems) { sweep(1, 300, 100); }
TEST(LongEdges, random_problems) { sweep(10'000, 13'000, 130); }
TEST(LongEdges, random_problems_of_several_blocks) { sweep(20'000, 20'100, 1100); }

/// The forward of the library, with one key masked or one value zeroed, beside the effects.
void expect_forward_changes(uint32_t features) {
  const TestProblem test(
      {.seed = 8, .dtype = DType::f64, .B = 1, .H = 2, .Hkv = 1, .Tq = 9, .Tk = 40, .features = features});
  SCOPED_TRACE(name(test.spec));
  const int64_t Tk = test.spec.Tk, Dv = test.spec.Dv, query = 4, count = 6;
  const AttentionEdges edges = attention_edges(test.q, test.k, test.v, test.options, query, count);
  const auto forward = [&](const TensorView& v, const AttentionOptions& options) {
    Tensor out(DType::f64, test.out_shape());
    attention_forward(test.q, test.k, v, options, out.mutable_view(), {});
    return out;
  };
  const Tensor before = forward(test.v, test.options);
  const RowWithMask<double> sizes(check_problem(test.q, test.k, test.v, test.options), 0, 0, query);
  const double bound = 32 * 0x1p-52 * sizes.largest_score_term() *
                       largest_value(sizes.row(), [&](int64_t j, int64_t c) { return sizes.value(j, c); });
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t n = 0; n < count; ++n) {
      const Edge result = edge(edges, h * count + n, Dv);
      if (result.key < 0) continue;
      std::vector<uint8_t> visible(static_cast<size_t>(Tk), 1);
      visible[static_cast<size_t>(result.key)] = 0;
      AttentionOptions hidden = test.options;
      hidden.mask = TensorView(visible.data(), {1, 1, 1, Tk});
      Tensor zeroed = converted(test.v, DType::f64);
      for (int64_t c = 0; c < Dv; ++c) {
        static_cast<double*>(zeroed.mutable_view().data())[result.key * Dv + c] = 0;
      }
      const Tensor without_key = forward(test.v, hidden);
      const Tensor without_value = forward(zeroed.view(), test.options);
      for (int64_t c = 0; c < Dv; ++c) {
        const int64_t at = (h * test.spec.Tq + query) * Dv + c;
        const double out = element(before.view(), at);
        EXPECT_NEAR(result.hide_key[static_cast<size_t>(c)], element(without_key.view(), at) - out, bound);
        EXPECT_NEAR(result.zero_value[static_cast<size_t>(c)], element(without_value.view(), at) - out, bound);
      }
    }
  }
}

TEST(edges, are_the_changes_of_attention_forward) {
  for (const uint32_t features : {0u, uint32_t{kSinks}, uint32_t{kDropout}, uint32_t{kDropout | kSinks | kSlopes},
                                  uint32_t{kCausalTopLeft | kSoftcap}, uint32_t{kBias | kWindow}}) {
    expect_forward_changes(features);
  }
}

std::vector<double> values_of(const Tensor& tensor) { return elements(tensor.view()); }

void expect_near(const Tensor& result, const std::vector<double>& expected, double bound) {
  const std::vector<double> values = values_of(result);
  ASSERT_EQ(values.size(), expected.size());
  for (size_t n = 0; n < values.size(); ++n) EXPECT_NEAR(values[n], expected[n], bound) << n;
}

TEST(edges, hiding_a_key_differs_from_zeroing_its_value) {
  const SmallProblem problem({.Dv = 2, .q = {1}, .k = {0, std::log(2.0), std::log(3.0)}, .v = {2, 0, 0, 3, 4, 2}});
  const AttentionEdges edges = attention_edges(problem.q, problem.k, problem.v, problem.options, 0, 3);
  EXPECT_EQ(values_of(edges.keys), (std::vector<double>{2, 1, 0}));
  // out = (7/3, 2); without the third key (2/3, 2), without its value (1/3, 1).
  expect_near(edges.zero_value, {-2, -1, 0, -1, -1.0 / 3, 0}, 1e-15);
  expect_near(edges.hide_key, {-5.0 / 3, 0, 7.0 / 6, -0.5, 1.0 / 15, 0.4}, 1e-15);
}

TEST(edges, a_value_equal_to_the_output_has_no_effect_at_any_weight) {
  const SmallProblem problem({.q = {1}, .k = {0, 0, std::log(5.0)}, .v = {1, 3, 2}});
  const AttentionEdges edges = attention_edges(problem.q, problem.k, problem.v, problem.options, 0, 1);
  EXPECT_EQ(values_of(edges.keys), (std::vector<double>{2}));
  EXPECT_NEAR(values_of(edges.hide_key)[0], 0, 2 * 0x1p-52);
}

TEST(edges, hiding_the_only_key_takes_the_whole_output) {
  SmallProblem problem({.q = {1}, .k = {5, 1}, .v = {7, 100}});
  const int64_t length[] = {1};
  problem.options.key_lengths = TensorView(length, {1});
  const AttentionEdges edges = attention_edges(problem.q, problem.k, problem.v, problem.options, 0, 3);
  EXPECT_EQ(values_of(edges.keys), (std::vector<double>{0, -1, -1}));
  EXPECT_EQ(values_of(edges.zero_value), (std::vector<double>{-7, 0, 0}));
  EXPECT_EQ(values_of(edges.hide_key), (std::vector<double>{-7, 0, 0}));
}

TEST(edges, a_sink_keeps_its_share_when_the_only_key_goes) {
  SmallProblem problem({.q = {1}, .k = {std::log(3.0)}, .v = {8}});
  const double sink[] = {0};
  problem.options.sinks = TensorView(sink, {1});
  const AttentionEdges edges = attention_edges(problem.q, problem.k, problem.v, problem.options, 0, 1);
  expect_near(edges.zero_value, {-6}, 4 * 0x1p-52);
  expect_near(edges.hide_key, {-6}, 4 * 0x1p-52);  // 0.75 / 0.25 * (6 - 8)
}

/// 1 - a_j is far below an ulp of 1, and the others' exponentials relative to the largest are 0 in f32 and f64.
TEST(edges, hiding_a_key_that_is_all_but_alone_leaves_the_others_distribution) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const double lead : {20.0, 50.0, 200.0, 5000.0}) {
      const SmallProblem problem({.dtype = dtype, .q = {1}, .k = {0, lead, 1}, .v = {1, 10, 3}});
      const AttentionEdges edges = attention_edges(problem.q, problem.k, problem.v, problem.options, 0, 1);
      const double share = 1 / (1 + std::exp(1.0));
      const double without = share * 1 + (1 - share) * 3;
      const double others = std::exp(-lead) + std::exp(1 - lead);
      const double out = (10 + others * without) / (1 + others);
      const double ulp = dtype == DType::f64 ? 0x1p-52 : 0x1p-23;
      EXPECT_NEAR(values_of(edges.hide_key)[0], without - out, 16 * ulp) << lead;
    }
  }
}

TEST(edges, equal_weights_come_by_key) {
  const SmallProblem problem({.q = {1, 0}, .k = {1, 2, 1, 2, 2}, .v = {1, 2, 3, 4, 5}});
  const AttentionEdges edges = attention_edges(problem.q, problem.k, problem.v, problem.options, 0, 5);
  EXPECT_EQ(values_of(edges.keys), (std::vector<double>{1, 3, 4, 0, 2}));
  const AttentionEdges uniform = attention_edges(problem.q, problem.k, problem.v, problem.options, 1, 4);
  EXPECT_EQ(values_of(uniform.keys), (std::vector<double>{0, 1, 2, 3}));
}

TEST(edges, a_nan_row_gives_nan_and_what_is_hidden_gives_nothing) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  SmallProblem problem({.q = {1, 1}, .k = {0, 1, nan}, .v = {1, 2, nan}});
  problem.options.causal = Causal::with_offset(1);
  const AttentionEdges clean = attention_edges(problem.q, problem.k, problem.v, problem.options, 0, 3);
  EXPECT_EQ(values_of(clean.keys), (std::vector<double>{1, 0, -1}));
  for (const Tensor* effect : {&clean.zero_value, &clean.hide_key}) {
    for (const double value : values_of(*effect)) EXPECT_TRUE(std::isfinite(value));
  }
  const AttentionEdges spoilt = attention_edges(problem.q, problem.k, problem.v, problem.options, 1, 2);
  EXPECT_EQ(values_of(spoilt.keys), (std::vector<double>{0, 1}));
  for (const Tensor* effect : {&spoilt.zero_value, &spoilt.hide_key}) {
    for (const double value : values_of(*effect)) EXPECT_TRUE(std::isnan(value));
  }
}

TEST(edges, hidden_nan_changes_no_bit) {
  TestProblem problem({.seed = 4, .H = 4, .Hkv = 2, .Tq = 9, .Tk = 70, .features = kMask | kWindow | kBias});
  const AttentionEdges before = attention_edges(problem.q, problem.k, problem.v, problem.options, 3, 8);
  ASSERT_GT(problem.poison_hidden(), 0);
  const AttentionEdges after = attention_edges(problem.q, problem.k, problem.v, problem.options, 3, 8);
  EXPECT_TRUE(same_bits(after.keys, before.keys));
  EXPECT_TRUE(same_bits(after.zero_value, before.zero_value));
  EXPECT_TRUE(same_bits(after.hide_key, before.hide_key));
}

TEST(edges, do_not_depend_on_the_number_of_threads) {
  const TestProblem problem({.B = 2, .H = 4, .Hkv = 2, .Tq = 9, .Tk = 2000, .D = 64, .features = kSinks | kDropout});
  AttentionOptions options = problem.options;
  options.threads = 1;
  const AttentionEdges alone = attention_edges(problem.q, problem.k, problem.v, options, 3, 8);
  for (const int threads : {2, 8}) {
    options.threads = threads;
    const AttentionEdges shared = attention_edges(problem.q, problem.k, problem.v, options, 3, 8);
    EXPECT_TRUE(same_bits(shared.keys, alone.keys));
    EXPECT_TRUE(same_bits(shared.zero_value, alone.zero_value));
    EXPECT_TRUE(same_bits(shared.hide_key, alone.hide_key));
  }
}

TEST(edges, have_the_axes_of_q) {
  for (const int rank : {4, 3, 2}) {
    const TestProblem problem({.rank = rank, .B = 2, .H = 4, .Hkv = 2, .Dv = 3});
    const AttentionEdges edges = attention_edges(problem.q, problem.k, problem.v, problem.options, 1, 5);
    const Dims keys = rank == 4 ? Dims{2, 4, 5} : rank == 3 ? Dims{4, 5} : Dims{5};
    Dims effects = keys;
    effects.push_back(3);
    EXPECT_EQ(edges.keys.shape(), keys);
    EXPECT_EQ(edges.zero_value.shape(), effects);
    EXPECT_EQ(edges.hide_key.shape(), effects);
    EXPECT_EQ(edges.keys.dtype(), DType::i64);
    EXPECT_EQ(edges.hide_key.dtype(), DType::f32);
  }
  const TestProblem packed({.B = 3, .H = 4, .Hkv = 2, .Tq = 20, .Tk = 30, .features = kPacked});
  EXPECT_EQ(attention_edges(packed.q, packed.k, packed.v, packed.options, 0, 5).keys.shape(), (Dims{3, 4, 5}));
}

}  // namespace
}  // namespace qkv::test
