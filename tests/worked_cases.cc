// SPDX-License-Identifier: Apache-2.0
#include "worked_cases.h"

#include <cmath>
#include <limits>

namespace qkv::test {
namespace {

const double kLn2 = std::log(2.0);
const double kLn3 = std::log(3.0);
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Weights 1/6, 1/3, 1/2 of the values (2, 0), (0, 3), (4, 2).
WorkedCase thirds() {
  return {.name = "weights_of_one_two_three_sixths",
          .Tk = 3,
          .Dv = 2,
          .q = {1},
          .k = {0, kLn2, kLn3},
          .v = {2, 0, 0, 3, 4, 2},
          .out = {7.0 / 3, 2},
          .lse = {std::log(6.0)}};
}

void add_issue_cases(std::vector<WorkedCase>& cases) {
  cases.push_back(thirds());
  WorkedCase hidden = thirds();
  hidden.name = "third_key_hidden";
  hidden.mask = {1, 1, 0};
  hidden.out = {2.0 / 3, 2};
  hidden.lse = {kLn3};
  cases.push_back(hidden);
  hidden.name = "third_key_hidden_holds_nan";
  hidden.k[2] = hidden.v[4] = hidden.v[5] = kNan;
  cases.push_back(hidden);
  hidden.name = "third_key_hidden_by_a_bias_of_minus_infinity";
  hidden.mask = {};
  hidden.bias = {0, 0, -kInfinity};
  cases.push_back(hidden);
  WorkedCase zeroed = thirds();
  zeroed.name = "third_value_zero_is_not_third_key_hidden";
  zeroed.v[4] = zeroed.v[5] = 0;
  zeroed.out = {1.0 / 3, 1};
  cases.push_back(zeroed);
  const double e = std::exp(1 / std::sqrt(2.0));
  const double y = 10 * (e - 1 / e) / (e + 1 + 1 / e);  // 4.36
  cases.push_back({.name = "three_directions",
                   .Tk = 3,
                   .D = 2,
                   .q = {1, 0},
                   .k = {1, 0, 0, 1, -1, 0},
                   .v = {10, 0, -10},
                   .out = {y}});
  cases.push_back({.name = "derivative_of_logits_0_ln3",
                   .Tk = 2,
                   .q = {1},
                   .k = {0, kLn3},
                   .v = {0, 1},
                   .d_out = {1},
                   .out = {0.75},
                   .d_k = {-3.0 / 16, 3.0 / 16},
                   .d_v = {0.25, 0.75}});
  const double d4 = 81.0 / (82.0 * 82.0);
  cases.push_back({.name = "derivative_of_logits_times_four",
                   .Tk = 2,
                   .q = {1},
                   .k = {0, kLn3},
                   .v = {0, 1},
                   .options = {.scale = 4.0},
                   .d_out = {1},
                   .out = {81.0 / 82},
                   .d_q = {4 * kLn3 * d4},
                   .d_k = {-4 * d4, 4 * d4},
                   .d_scale = {kLn3 * d4}});
  // dy/ds_j = a_j (v_j - y), for both columns of y at once: dO = (1, 10).
  WorkedCase slopes_of_scores = thirds();
  slopes_of_scores.name = "derivative_by_score_is_weight_times_value_minus_output";
  slopes_of_scores.bias = {0, 0, 0};
  slopes_of_scores.d_out = {1, 10};
  slopes_of_scores.d_bias = {(-1.0 / 3 - 20) / 6, (-7.0 / 3 + 10) / 3, (5.0 / 3 + 0) / 2};
  cases.push_back(slopes_of_scores);
  for (const double logit : {0.0, kLn2, 5.0, -3.0}) {
    cases.push_back({.name = "value_equal_to_output_has_no_effect",
                     .Tk = 3,
                     .q = {1},
                     .k = {0, 0, logit},
                     .v = {1, 3, 2},
                     .bias = {0, 0, 0},
                     .d_out = {1},
                     .out = {2},
                     .d_bias = {-1 / (2 + std::exp(logit)), 1 / (2 + std::exp(logit)), 0}});
  }
}

/// Every score 0: rows are means of the visible values 1, 2, 4, 8, 16, so that a mean names its keys.
WorkedCase uniform(const std::string& name, int64_t Tq, int64_t Tk, const AttentionOptions& options,
                   const std::vector<double>& out) {
  WorkedCase worked{.name = name, .Tq = Tq, .Tk = Tk};
  worked.q.assign(static_cast<size_t>(Tq), 0);
  worked.k.assign(static_cast<size_t>(Tk), 0);
  for (int64_t j = 0; j < Tk; ++j) worked.v.push_back(std::exp2(static_cast<double>(j)));
  worked.options = options;
  worked.out = out;
  return worked;
}

void add_mask_cases(std::vector<WorkedCase>& cases) {
  const double all = 31.0 / 5;
  cases.push_back(uniform("causal_top_left_wide", 2, 5, {.causal = Causal::top_left()}, {1, 1.5}));
  cases.push_back(uniform("causal_bottom_right_wide", 2, 5, {.causal = Causal::bottom_right()}, {15.0 / 4, all}));
  cases.push_back(uniform("causal_top_left_tall", 5, 2, {.causal = Causal::top_left()}, {1, 1.5, 1.5, 1.5, 1.5}));
  cases.push_back(uniform("causal_bottom_right_tall", 5, 2, {.causal = Causal::bottom_right()}, {0, 0, 0, 1, 1.5}));
  cases.push_back(uniform("causal_negative_offset", 3, 3, {.causal = Causal::with_offset(-1)}, {0, 1, 1.5}));
  cases.push_back(uniform("window", 5, 5, {.window = {1, 1}}, {1.5, 7.0 / 3, 14.0 / 3, 28.0 / 3, 12}));
  cases.push_back(uniform("window_left_only", 3, 3, {.window = {0, std::nullopt}}, {7.0 / 3, 3, 4}));
  cases.push_back(
      uniform("window_right_only_with_offset", 2, 4, {.window = {std::nullopt, 0}, .offset = 1}, {1.5, 7.0 / 3}));
  cases.push_back(uniform("window_and_causal", 3, 3, {.causal = Causal::top_left(), .window = {1, 2}}, {1, 1.5, 3}));
}

void add_sink_cases(std::vector<WorkedCase>& cases) {
  // A sink is a key of its own without a value: logits 0, ln 2 and a sink of ln 3 share 1 : 2 : 3.
  // delta = 1/6 * 6 + 1/3 * 3 - dLSE = 2 - 1; dSink = -1/2 * 1.
  cases.push_back({.name = "sink",
                   .Tk = 2,
                   .q = {1},
                   .k = {0, kLn2},
                   .v = {6, 3},
                   .sinks = {kLn3},
                   .d_out = {1},
                   .d_lse = {1},
                   .out = {2},
                   .lse = {std::log(6.0)},
                   .d_k = {5.0 / 6, 2.0 / 3},
                   .d_v = {1.0 / 6, 1.0 / 3},
                   .d_sinks = {-0.5}});
  cases.push_back({.name = "sink_of_an_empty_row_keeps_its_derivative",
                   .Tk = 2,
                   .q = {1},
                   .k = {0, kLn2},
                   .v = {6, 3},
                   .mask = {0, 0},
                   .sinks = {kLn3},
                   .d_out = {7},
                   .d_lse = {5},
                   .out = {0},
                   .lse = {kLn3},
                   .d_q = {0},
                   .d_k = {0, 0},
                   .d_v = {0, 0},
                   .d_sinks = {5}});
  cases.push_back({.name = "empty_row",
                   .Tk = 2,
                   .q = {kNan},
                   .k = {0, kLn2},
                   .v = {6, 3},
                   .mask = {0, 0},
                   .d_out = {7},
                   .d_lse = {5},
                   .out = {0},
                   .lse = {-kInfinity},
                   .d_q = {0},
                   .d_k = {0, 0},
                   .d_v = {0, 0},
                   .d_scale = {0}});
  cases.push_back({.name = "no_keys", .Tk = 0, .q = {1}, .d_out = {7}, .out = {0}, .lse = {-kInfinity}, .d_q = {0}});
}

void add_position_cases(std::vector<WorkedCase>& cases) {
  // Distances 2, 1, 0 at slope ln 2 give 1 : 2 : 4. dS = a (v - y) = (0, 0, 7) - ... at y = 4.
  cases.push_back({.name = "alibi",
                   .Tk = 3,
                   .q = {0},
                   .k = {1, 2, 3},
                   .v = {0, 0, 7},
                   .options = {.offset = 2},
                   .slopes = {kLn2},
                   .d_out = {1},
                   .out = {4},
                   .lse = {std::log(7.0 / 4)},
                   .d_slopes = {2 * 4.0 / 7 + 8.0 / 7}});
  // Keys at distances 1, 0, -1 of bidirectional buckets: past 1, exact 0, and the upper half for the future.
  cases.push_back({.name = "table_bidirectional",
                   .Tk = 3,
                   .q = {0},
                   .k = {0, 0, 0},
                   .v = {6, 12, 24},
                   .options = {.offset = 1, .buckets = {Buckets::Kind::bidirectional, 20}},
                   .table = {kLn2, 0, 9, 9, 9, kLn3, 9, 9},
                   .d_out = {1},
                   .out = {17},
                   .d_table = {-5.0 / 3, -11.0 / 6, 0, 0, 0, 3.5, 0, 0}});
  cases.push_back({.name = "table_causal_future_is_distance_0",
                   .Tk = 3,
                   .q = {0},
                   .k = {0, 0, 0},
                   .v = {5, 10, 15},
                   .options = {.offset = 1, .buckets = {Buckets::Kind::causal, 20}},
                   .table = {kLn2, 0, 9, 9},
                   .out = {11}});
}

void add_score_cases(std::vector<WorkedCase>& cases) {
  // 2 tanh(s / 2) = ln 3, so weights 1/4 and 3/4; its derivative is 1 - (ln 3 / 2)^2 there and 1 at 0.
  const double capped = 2 * std::atanh(kLn3 / 2);
  const double slope = 3.0 / 16 * (1 - kLn3 * kLn3 / 4);
  cases.push_back({.name = "softcap",
                   .Tk = 2,
                   .q = {1},
                   .k = {0, capped},
                   .v = {0, 1},
                   .options = {.softcap = 2},
                   .d_out = {1},
                   .out = {0.75},
                   .d_q = {capped * slope},
                   .d_k = {-3.0 / 16, slope}});
  // The soft-cap comes before the bias: a bias of ln 3 is not capped by 0.5.
  cases.push_back({.name = "softcap_before_bias",
                   .Tk = 2,
                   .q = {0},
                   .k = {0, 0},
                   .v = {0, 1},
                   .options = {.softcap = 0.5},
                   .bias = {0, kLn3},
                   .out = {0.75}});
  cases.push_back(
      {.name = "no_width_makes_every_score_zero", .Tk = 2, .D = 0, .v = {1, 2}, .out = {1.5}, .lse = {kLn2}});
  cases.push_back({.name = "equal_finite_biases_however_negative_are_uniform",
                   .Tk = 4,
                   .q = {0},
                   .k = {0, 0, 0, 0},
                   .v = {1, 2, 3, 6},
                   .bias = {-3e4, -3e4, -3e4, -3e4},
                   .d_out = {1},
                   .out = {3},
                   .d_v = {0.25, 0.25, 0.25, 0.25},
                   .d_bias = {-0.5, -0.25, 0, 0.75}});
}

}  // namespace

std::vector<WorkedCase> worked_cases() {
  std::vector<WorkedCase> cases;
  add_issue_cases(cases);
  add_mask_cases(cases);
  add_sink_cases(cases);
  add_position_cases(cases);
  add_score_cases(cases);
  return cases;
}

TensorView WorkedProblem::make(DType dtype, const Dims& shape, const std::vector<double>& values) {
  StridedTensor& tensor = memory_.emplace_back(dtype, shape, Layout::contiguous);
  tensor.fill([&](int64_t index) { return values[static_cast<size_t>(index)]; });
  return tensor.view();
}

WorkedProblem::WorkedProblem(const WorkedCase& worked, DType dtype) : options(worked.options) {
  const DType number = dtype == DType::f64 ? DType::f64 : DType::f32;
  q = make(dtype, {worked.Tq, worked.D}, worked.q);
  k = make(dtype, {worked.Tk, worked.D}, worked.k);
  v = make(dtype, {worked.Tk, worked.Dv}, worked.v);
  const auto rows = [&](const std::vector<double>& values) { return static_cast<int64_t>(values.size()) / worked.Tk; };
  if (!worked.bias.empty()) options.bias = make(dtype, {rows(worked.bias), worked.Tk}, worked.bias);
  if (!worked.mask.empty()) options.mask = make(DType::boolean, {rows(worked.mask), worked.Tk}, worked.mask);
  if (!worked.slopes.empty()) options.slopes = make(number, {1}, worked.slopes);
  if (!worked.sinks.empty()) options.sinks = make(number, {1}, worked.sinks);
  if (!worked.table.empty()) {
    options.table = make(number, {1, static_cast<int64_t>(worked.table.size())}, worked.table);
  }
  if (!worked.d_out.empty()) d_out = make(dtype, {worked.Tq, worked.Dv}, worked.d_out);
  if (!worked.d_lse.empty()) d_lse = make(number, {worked.Tq}, worked.d_lse);
}

double worked_bound(DType dtype) {
  switch (dtype) {
    case DType::f64: return 64 * 0x1p-52;
    case DType::bf16: return 64 * 0x1p-8;
    case DType::f16: return 64 * 0x1p-11;
    default: return 64 * 0x1p-23;
  }
}

}  // namespace qkv::test
