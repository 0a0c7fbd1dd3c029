// SPDX-License-Identifier: Apache-2.0
//
// Instruction sets: which there are, that the one asked for is the one that runs, and what a wrong name says.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "kernels/attention_kernels.h"
#include "operation.h"
#include "qkv/support/error.h"

namespace qkv::test {
namespace {

TEST(targets, the_best_one_is_chosen_first) {
  const std::vector<std::string> names = supported_targets();
  ASSERT_FALSE(names.empty());
  // What QKV_TARGET names wins; this test runs without it.
  if (std::getenv("QKV_TARGET") == nullptr) {
    EXPECT_EQ(chosen_target(), names.front());
  }
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
}

TEST(targets, forcing_one_runs_its_own_code) {
  // AVX3_BF16 differs from AVX3 in bf16 alone.
  std::set<std::pair<const void*, const void*>> tables;
  for_each_target([&](const std::string& target) {
    EXPECT_EQ(kernels().name, target);
    EXPECT_EQ(kernels().f32->panel_width % kernels().f32->lanes, 0);
    EXPECT_EQ(kernels().bf16 != nullptr, target == "AVX3_BF16");
    tables.insert({kernels().f32, kernels().bf16});
    tables.insert({kernels().f64, kernels().bf16});
  });
  EXPECT_EQ(tables.size(), 2 * supported_targets().size()) << "two names share one table";
}

TEST(targets, an_unknown_or_unsupported_name_is_an_error_that_lists_the_known_ones) {
  const std::string before = chosen_target();
  for (const char* name : {"AVX9", "avx2", "", "SVE"}) {
    try {
      choose_target(name);
      FAIL() << name;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(supported_targets().back()), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(std::string("'") + name + "'"), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(chosen_target(), before);
}

}  // namespace
}  // namespace qkv::test
