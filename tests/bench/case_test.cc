// SPDX-License-Identifier: Apache-2.0
#include "case.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "qkv/support/error.h"

namespace qkv::bench {
namespace {

/// Reads a text as a case file.
std::vector<Case> cases_of(const std::string& text) {
  const std::string path = (std::filesystem::temp_directory_path() / concat("qkv_cases-", getpid(), ".txt")).string();
  std::ofstream(path) << text;
  struct Remover {
    const std::string& path;
    ~Remover() { std::filesystem::remove(path); }
  } remover{path};
  return read_cases(path);
}

std::string error_of(const std::string& text) {
  try {
    cases_of(text);
  } catch (const Error& error) {
    const std::string message = error.what();
    return message.substr(message.find(".txt") + 5);  // without the path
  }
  return "";
}

TEST(CaseFile, SizesFollowTheirNamesakes) {
  const std::vector<Case> cases = cases_of("# a comment\n\none b=2 h=8 t=64 d=32   # and another\n");
  ASSERT_EQ(cases.size(), 1u);
  const Case& one = cases[0];
  EXPECT_EQ(one.name, "one");
  EXPECT_EQ(one.B, 2);
  EXPECT_EQ(one.Hkv, 8);
  EXPECT_EQ(one.Tq, 64);
  EXPECT_EQ(one.Tk, 64);
  EXPECT_EQ(one.Dv, 32);
  EXPECT_EQ(one.modes, std::vector<Mode>{Mode::forward});
  EXPECT_TRUE(one.threads.empty());
}

TEST(CaseFile, WhatIsGivenWinsWhereverItStands) {
  const Case one = cases_of("one dv=48 hkv=2 h=8 d=32 tq=1 tk=9 threads=1,2 mode=backward,both dtype=bf16\n").at(0);
  EXPECT_EQ(one.Hkv, 2);
  EXPECT_EQ(one.Dv, 48);
  EXPECT_EQ(one.Tq, 1);
  EXPECT_EQ(one.Tk, 9);
  EXPECT_EQ(one.dtype, DType::bf16);
  EXPECT_EQ(one.threads, (std::vector<int>{1, 2}));
  EXPECT_EQ(one.modes, (std::vector<Mode>{Mode::backward, Mode::both}));
}

TEST(CaseFile, KeysAreKeptAsWritten) {
  const Case one = cases_of("one t=8 causal=bottom_right window=3,-\n").at(0);
  EXPECT_EQ(one.keys, (std::map<std::string, std::string>{{"t", "8"}, {"causal", "bottom_right"}, {"window", "3,-"}}));
}

TEST(CaseFile, MistakesNameLineAndKey) {
  EXPECT_EQ(error_of("one t=8\ntwo t=eight\n"), "2: t: expected a number, got 'eight'");
  EXPECT_EQ(error_of("one t=-8\n"), "1: t: expected a size, got '-8'");
  EXPECT_EQ(error_of("one size=8\n"), "1: unknown key 'size'");
  EXPECT_EQ(error_of("one eight\n"), "1: expected key=value, got 'eight'");
  EXPECT_EQ(error_of("one t=8\none t=9\n"), "2: a second case named one");
  EXPECT_EQ(error_of("one window=5\n"), "1: window: expected LEFT,RIGHT, got '5'");
  EXPECT_EQ(error_of("one t=8 against=two\n"), " one is compared with two, which is not in the file");
}

TEST(CaseFile, EveryKeyIsExplained) {
  const std::string help = case_help();
  for (const char* key : {"hkv", "causal", "trainable", "against", "dtype"}) {
    EXPECT_NE(help.find(concat("\n  ", key, ' ')), std::string::npos) << key;
  }
}

}  // namespace
}  // namespace qkv::bench
