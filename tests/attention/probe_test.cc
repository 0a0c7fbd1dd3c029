// SPDX-License-Identifier: Apache-2.0
//
// Statistics and tiles of weights against the definition, on every option, dtype and instruction set.
#include "qkv/attention/probe.h"

#include "probe_reference.h"
#include "probe_run.h"
#include "qkv/support/error.h"
#include "random_stream.h"

namespace qkv::test {
namespace {

/// Promise 3's rule: twice the error of the plain formula and a few units in the last place of the largest term.
template <class Wide, class Plain>
void expect_close(const std::string& what, const Tensor& result, const std::vector<Wide>& reference,
                  const std::vector<Plain>& plain, const std::vector<double>& terms, double ulp) {
  const std::vector<double> values = elements(result.view());
  ASSERT_EQ(values.size(), reference.size()) << what;
  double plain_error = 0;
  for (size_t n = 0; n < values.size(); ++n) {
    plain_error = std::max(plain_error, std::fabs(static_cast<double>(static_cast<Wide>(plain[n]) - reference[n])));
  }
  for (size_t n = 0; n < values.size(); ++n) {
    const double error = std::fabs(static_cast<double>(static_cast<Wide>(values[n]) - reference[n]));
    const double smallest = ulp == 0x1p-52 ? 0x1p-1074 : 0x1p-149;
    EXPECT_LE(error, 2 * plain_error + 4 * std::max(ulp * terms[n], smallest))
        << what << "[" << n << "] = " << values[n] << ", reference " << static_cast<double>(reference[n]);
  }
}

template <class Wide, class Plain>
void expect_accurate(const TestProblem& test) {
  const Problem problem = check_problem(test.q, test.k, test.v, test.options);
  const ProbeReference<Wide> reference(problem);
  const ProbeReference<Plain> plain(problem);
  const double ulp = unit(test);
  on_each_target([&](const std::string&) {
    const Statistics results = run_statistics(test);
    expect_close("row_entropy", results.row_entropy, reference.row_entropy, plain.row_entropy, reference.entropy_term,
                 ulp);
    expect_close("row_max", results.row_max, reference.row_max, plain.row_max, reference.max_term, ulp);
    expect_close("key_mass", results.key_mass, reference.key_mass, plain.key_mass, reference.mass_term, ulp);
    for (int64_t n = 0; n < problem.rows(); ++n) {
      const int64_t top = static_cast<int64_t>(element(results.row_top.view(), n));
      ASSERT_EQ(top < 0, reference.empty[static_cast<size_t>(n)]) << "row_top of row " << n;
      if (top < 0) continue;
      // The heaviest key by the definition is no heavier than what rounding explains.
      const double lead =
          static_cast<double>(reference.row_max[static_cast<size_t>(n)] - reference.weights[reference.pair(n, top)]);
      const double rounding = problem.is_f64() ? 16 : 16 + static_cast<double>(problem.D);
      EXPECT_LE(lead, rounding * ulp * reference.max_term[static_cast<size_t>(n)]) << "row_top of row " << n;
    }
    if (problem.packed) return;
    const Tensor weights = run_weights(test);
    expect_close("weights", weights, reference.weights, plain.weights, reference.weight_term, ulp);
    for (int64_t n = 0; n < problem.rows(); ++n) {
      const int64_t top = static_cast<int64_t>(element(results.row_top.view(), n));
      if (top < 0) continue;
      EXPECT_EQ(element(results.row_max.view(), n), element(weights.view(), n * problem.Tk + top))
          << "row_max is the weight of row_top, row " << n;
    }
  });
}

void expect_accurate(const TestProblem& test) {
  SCOPED_TRACE(name(test.spec));
  if (test.spec.dtype == DType::f64) {
    expect_accurate<long double, double>(test);
  } else {
    expect_accurate<double, float>(test);
  }
}

class ProbeFeature : public testing::TestWithParam<Spec> {};

TEST_P(ProbeFeature, statistics_and_weights_are_accurate) { expect_accurate(TestProblem(GetParam())); }

std::vector<Spec> features(DType dtype) {
  return each_feature_alone(
      {.seed = 5, .dtype = dtype, .B = 2, .H = 2, .Hkv = 1, .Tq = 101, .Tk = 139, .D = 24, .Dv = 8, .threads = 2});
}
std::string test_name(const testing::TestParamInfo<Spec>& info) { return name(info.param); }
INSTANTIATE_TEST_SUITE_P(f32, ProbeFeature, testing::ValuesIn(features(DType::f32)), test_name);
INSTANTIATE_TEST_SUITE_P(f64, ProbeFeature, testing::ValuesIn(features(DType::f64)), test_name);
INSTANTIATE_TEST_SUITE_P(bf16, ProbeFeature, testing::ValuesIn(features(DType::bf16)), test_name);
INSTANTIATE_TEST_SUITE_P(f16, ProbeFeature, testing::ValuesIn(features(DType::f16)), test_name);

void sweep(uint64_t first, uint64_t last, int64_t largest) {
  for (uint64_t seed = first; seed < last && !testing::Test::HasFailure(); ++seed) {
    expect_accurate(TestProblem(random_spec(seed, largest)));
  }
}

/// Rows whose summaries merge from several key blocks, of 512 keys here.
TEST(probe, rows_of_several_key_blocks_are_accurate) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    for (const uint32_t features : {0u, uint32_t{kSinks}, uint32_t{kBias | kSlopes}, uint32_t{kWindow | kOffset},
                                    uint32_t{kMask | kSinks}, uint32_t{kPacked | kCausalBottomRight}}) {
      expect_accurate(TestProblem({.seed = 11, .dtype = dtype, .Tq = 9, .Tk = 1700, .D = 40, .features = features}));
    }
    expect_accurate(TestProblem({.seed = 12, .dtype = dtype, .Tq = 9, .Tk = 1700, .values = Values::large_scores}));
  }
}

TEST(probe, random_problems) { sweep(1, 150, 100); }
TEST(probe, random_problems_of_several_blocks) { sweep(5'000, 5'008, 600); }
TEST(LongProbe, random_problems) { sweep(10'000, 12'000, 130); }
TEST(LongProbe, random_problems_of_several_blocks) { sweep(20'000, 20'100, 600); }

TEST(probe, does_not_depend_on_the_number_of_threads) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    Spec spec = random_spec(seed);
    spec.Tq = 301;
    spec.Tk = 645;
    spec.B = spec.rank == 4 ? 2 : 1;
    const TestProblem problem(spec);
    const bool packed = (problem.spec.features & kPacked) != 0;
    AttentionOptions options = problem.options;
    options.threads = 1;
    const Statistics alone = run_statistics(problem, options);
    const Range queries{17, 290};
    const Range keys{100, 640};
    const Tensor weights = packed ? Tensor() : run_weights(problem, options, queries, keys);
    for (const int threads : {2, 3, 8}) {
      options.threads = threads;
      const std::string what = concat(name(problem.spec), " with ", threads, " threads");
      expect_same_bits(run_statistics(problem, options), alone, what);
      if (packed) continue;
      EXPECT_TRUE(same_bits(run_weights(problem, options, queries, keys), weights)) << what;
    }
  }
}

TEST(probe, a_tile_of_weights_is_a_part_of_all_weights) {
  Stream stream(3);
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Spec spec = random_spec(seed, 300);
    spec.features &= ~uint32_t{kPacked};
    const TestProblem problem(spec);
    const Tensor all = run_weights(problem);
    const Range queries{stream.integer(0, spec.Tq), spec.Tq};
    const int64_t first_key = stream.integer(0, spec.Tk);
    const Range keys{first_key, stream.integer(first_key, spec.Tk)};
    const Tensor tile = run_weights(problem, problem.options, queries, keys);
    const int64_t heads = problem.spec.B * problem.spec.H;
    const int64_t columns = keys.end - keys.begin;
    for (int64_t n = 0; n < tile.view().elements(); ++n) {
      const int64_t row = n / columns % (queries.end - queries.begin) + queries.begin;
      const int64_t head = n / columns / (queries.end - queries.begin);
      ASSERT_LT(head, heads);
      EXPECT_EQ(element(tile.view(), n),
                element(all.view(), (head * spec.Tq + row) * spec.Tk + keys.begin + n % columns))
          << name(problem.spec) << " at " << n;
    }
  }
}

TEST(probe, outputs_of_any_strides_are_written_and_nothing_beside_them) {
  const TestProblem problem({.B = 2, .H = 4, .Hkv = 2, .Tq = 33, .Tk = 65, .features = kCausalBottomRight});
  const Statistics expected = run_statistics(problem);
  const Tensor weights = run_weights(problem);
  for (const Layout layout :
       {Layout::token_major, Layout::reversed, Layout::padded, Layout::strided, Layout::transposed}) {
    StridedTensor entropy(DType::f32, problem.lse_shape(), layout);
    StridedTensor largest(DType::f32, problem.lse_shape(), layout);
    StridedTensor top(DType::i64, problem.lse_shape(), layout);
    StridedTensor mass(DType::f32, key_shape(problem), layout);
    StridedTensor tile(DType::f32, weights.shape(), layout);
    attention_statistics(problem.q, problem.k, problem.v, problem.options,
                         {entropy.view(), largest.view(), top.view(), mass.view()});
    attention_weights(problem.q, problem.k, problem.v, problem.options, {0, 33}, {0, 65}, tile.view());
    EXPECT_EQ(elements(entropy.view()), elements(expected.row_entropy.view())) << name(layout);
    EXPECT_EQ(elements(largest.view()), elements(expected.row_max.view())) << name(layout);
    EXPECT_EQ(elements(top.view()), elements(expected.row_top.view())) << name(layout);
    EXPECT_EQ(elements(mass.view()), elements(expected.key_mass.view())) << name(layout);
    EXPECT_EQ(elements(tile.view()), elements(weights.view())) << name(layout);
    for (const StridedTensor* output : {&entropy, &largest, &top, &mass, &tile}) EXPECT_TRUE(output->padding_intact());
  }
}

TEST(probe, single_statistics_are_those_of_all_together) {
  const TestProblem problem({.Tq = 70, .Tk = 200, .features = kSinks | kWindow});
  const Statistics all = run_statistics(problem);
  Statistics single = run_statistics(problem);
  for (Tensor* tensor : {&single.row_entropy, &single.row_max, &single.row_top, &single.key_mass}) {
    fill_zero(tensor->mutable_view());
  }
  attention_statistics(problem.q, problem.k, problem.v, problem.options,
                       {.row_entropy = single.row_entropy.mutable_view()});
  attention_statistics(problem.q, problem.k, problem.v, problem.options, {.row_max = single.row_max.mutable_view()});
  attention_statistics(problem.q, problem.k, problem.v, problem.options, {.row_top = single.row_top.mutable_view()});
  attention_statistics(problem.q, problem.k, problem.v, problem.options, {.key_mass = single.key_mass.mutable_view()});
  attention_statistics(problem.q, problem.k, problem.v, problem.options, {});
  expect_same_bits(single, all, "one by one");
}

}  // namespace
}  // namespace qkv::test
