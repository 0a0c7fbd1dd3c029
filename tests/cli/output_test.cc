// SPDX-License-Identifier: Apache-2.0
#include "cli/output.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "cli/verbs.h"
#include "qkv/support/error.h"

namespace qkv::cli {
namespace {

namespace fs = std::filesystem;

/// An empty folder for one test.
class OutputTest : public testing::Test {
 protected:
  OutputTest() : folder_(fs::temp_directory_path() / concat("qkv-output-test-", ::getpid())) {
    fs::create_directory(folder_);
    arrays_["lse"] = Tensor(DType::f32, {3});
    arrays_["out"] = Tensor(DType::f32, {3, 2});
  }
  ~OutputTest() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(folder_ / name) << text; }
  std::string read(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(folder_ / name).rdbuf();
    return text.str();
  }
  size_t entries(const std::string& name) const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_ / name), fs::directory_iterator()));
  }

  fs::path folder_;
  Arrays arrays_;
};

TEST_F(OutputTest, AFolderGetsItsArraysBackWhenOneCannotBeReplaced) {
  fs::create_directory(folder_ / "results");
  write("results/lse.npy", "old lse");
  const Output output(path("results"), {}, arrays_);
  fs::create_directories(folder_ / "results/out.npy/in the way");  // since the check
  EXPECT_THROW(output.write(arrays_), SystemError);
  EXPECT_EQ(read("results/lse.npy"), "old lse");
  EXPECT_TRUE(fs::is_directory(folder_ / "results/out.npy/in the way"));
  EXPECT_EQ(entries("results"), 2u);
}

TEST_F(OutputTest, AFolderLosesNewArraysWhenOneCannotBeReplaced) {
  fs::create_directory(folder_ / "results");
  const Output output(path("results"), {}, arrays_);
  fs::create_directories(folder_ / "results/out.npy/in the way");
  EXPECT_THROW(output.write(arrays_), SystemError);
  EXPECT_EQ(entries("results"), 1u);
}

TEST_F(OutputTest, AFolderThatAppearsMeanwhileIsNotReplaced) {
  const Output output(path("results"), {}, arrays_);
  fs::create_directory(folder_ / "results");
  write("results/notes.txt", "mine");
  output.write(arrays_);
  EXPECT_EQ(read("results/notes.txt"), "mine");
  EXPECT_EQ(entries("results"), 3u);
}

TEST_F(OutputTest, ResultsThatBreakThePromiseAreReportedAndNotWritten) {
  Call call;
  call.output = path("out.safetensors");
  call.check = true;
  for (const char* name : {"q", "k", "v"}) {
    call.source.flags[name] = path(std::string(name) + ".npy");
    Output(call.source.flags[name], {}, {{"out", Tensor(DType::f32, {3, 2})}})
        .write({{"out", Tensor(DType::f32, {3, 2})}});
  }
  const ProblemFile problem(call.source, std::nullopt, Reads::nothing_else);
  const Output output(call.output, problem.paths(), arrays_);
  Summary summary{.verb = "attend", .target = "any"};
  summary.comparisons = {{.name = "out", .error = 1, .plain_error = 0.25, .allowance = 0.125},
                         {.name = "lse", .error = 0.5, .plain_error = 0.25, .allowance = 0.125}};
  testing::internal::CaptureStdout();
  try {
    finish(call, problem, arrays_, output, summary);
    ADD_FAILURE() << "out is 4 times as wrong as the plain formula";
  } catch (const SystemError& error) {
    EXPECT_EQ(std::string(error.what()), "check: out: error 1, plain formula's 0.25, bound 2 x that + 0.125");
  }
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_NE(text.find("BROKEN"), std::string::npos);
  EXPECT_EQ(text.find("BROKEN"), text.rfind("BROKEN")) << "lse kept its promise";
  EXPECT_FALSE(fs::exists(call.output));

  summary.comparisons[0].error = 0.625;  // just what is allowed
  testing::internal::CaptureStdout();
  finish(call, problem, arrays_, output, summary);
  EXPECT_EQ(testing::internal::GetCapturedStdout().find("BROKEN"), std::string::npos);
  EXPECT_TRUE(fs::exists(call.output));
}

}  // namespace
}  // namespace qkv::cli
