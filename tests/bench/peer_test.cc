// SPDX-License-Identifier: Apache-2.0
// The protocol, with a shell in the place of another library.
#include "peer.h"

#include <gtest/gtest.h>

namespace qkv::bench {
namespace {

using nlohmann::json;

/// A peer that answers each kind of request with the given text.
std::vector<std::string> answering(const std::string& prepare, const std::string& time = "{}",
                                   const std::string& hello = R"({"engine": "fake", "version": "7"})") {
  return {"sh", "-c",
          concat("while read -r line; do case $line in *hello*) echo '", hello, "' ;; *prepare*) ", prepare,
                 " ;; *time*) echo '", time, "' ;; esac; done")};
}

std::string prepared(const std::string& answer) { return concat("echo '", answer, "'"); }

Run run_of(const std::string& keys) {
  Case spec;
  spec.name = "one";
  spec.H = spec.Hkv = 2;
  spec.Tq = spec.Tk = 8;
  spec.D = spec.Dv = 16;
  spec.keys = {{"t", "8"}, {"causal", keys}};
  return runs_of(make_subject(spec), {1}).front();
}

TEST(PeerProcess, AnswersOneObjectALine) {
  PeerProcess peer({"cat"});
  EXPECT_EQ(peer.ask({{"a", 1}}), json({{"a", 1}}));
  const std::string large(1 << 15, 'x');  // comes in several pieces
  EXPECT_EQ(peer.ask({{"a", large}})["a"], large);
}

TEST(PeerProcess, TellsHowAPeerFailed) {
  const auto failure = [](const std::string& script, double seconds = 60) {
    PeerProcess peer({"sh", "-c", script}, seconds);
    try {
      peer.ask({{"do", "hello"}});
    } catch (const PeerError& error) {
      EXPECT_THROW(peer.ask({{"do", "hello"}}), PeerError);
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(failure("read -r line; exit 3"), "bench: sh ended without an answer (exit code 3)");
  EXPECT_EQ(failure("read -r line; kill -9 $$"), "bench: sh ended without an answer (signal 9)");
  EXPECT_EQ(failure("read -r line; echo nonsense"),
            "bench: sh answered 'nonsense', which is no JSON object (exit code 0)");
  EXPECT_EQ(failure("read -r line; echo 5; read -r line"),
            "bench: sh answered '5', which is no JSON object (exit code 1)");
  EXPECT_EQ(failure("exec sleep 60", 0.05), "bench: sh gave no answer within 0.05 s (signal 9)");
}

TEST(PeerProcess, RefusesAProgramThatIsNotThere) {
  EXPECT_THROW(PeerProcess({"/nowhere/qkv-peer"}), PeerError);
  EXPECT_THROW(PeerProcess(std::vector<std::string>()), Error);
}

TEST(Peer, IsTimedByItself) {
  Peer peer(answering(prepared(R"({"id": 4, "how": "its way", "memory_growth": 4096, "error": 0})"),
                      R"({"seconds": 0.5, "cpu_seconds": 0.25})"));
  EXPECT_EQ(peer.engine(), "fake");
  EXPECT_EQ(peer.version(), "7");
  const bench::Run run = peer.prepare(run_of("top_left"), "unread");
  EXPECT_EQ(run.refused, "");
  EXPECT_EQ(run.how, "its way");
  EXPECT_EQ(run.memory_growth, 4096);
  EXPECT_EQ(run.label(), "one/forward/1");
  ASSERT_TRUE(run.remote);
  EXPECT_EQ(run.remote(3).seconds, 0.5);
  EXPECT_EQ(run.remote(3).cpu_seconds, 0.25);
}

TEST(Peer, SeesTheWordsOfTheCase) {
  Peer peer(answering(
      R"(case $line in *'"causal":"top_left"'*'"mode":"forward"'*'"threads":1'*) echo '{"refused": "seen"}' ;; )"
      R"(*) echo '{"refused": "not seen"}' ;; esac)"));
  EXPECT_EQ(peer.prepare(run_of("top_left"), "file").refused, "seen");
  EXPECT_EQ(peer.prepare(run_of("bottom_right"), "file").refused, "not seen");
}

TEST(Peer, IsNotTimedWhenItsResultDiffers) {
  for (const char* error : {"0.01", "null", "\"nan\""}) {
    Peer peer(answering(prepared(concat(R"({"id": 0, "how": "its way", "error": )", error, "}"))));
    EXPECT_NE(peer.prepare(run_of("top_left"), "file").refused, "") << error;
  }
}

TEST(Peer, ThatDiesLosesItsRunsAndNothingElse) {
  Peer peer(answering("exit 9"));
  EXPECT_EQ(peer.prepare(run_of("top_left"), "file").refused, "bench: sh ended without an answer (exit code 9)");
  EXPECT_EQ(peer.prepare(run_of("top_left"), "file").refused, "bench: sh has ended");
}

TEST(Peer, ThatDiesWhileTimedIsSaidToHave) {
  std::vector<bench::Run> runs = {run_of("top_left")};
  Peer peer(answering(prepared(R"({"id": 0, "how": "", "error": 0})"), "no JSON"));
  runs.push_back(peer.prepare(runs.front(), "file"));
  time_runs(runs, MachineMeter(), {1, 1});
  EXPECT_EQ(runs[0].seconds.size(), 1u);
  EXPECT_TRUE(runs[1].seconds.empty());
  EXPECT_NE(runs[1].refused.find("no JSON object"), std::string::npos) << runs[1].refused;
}

TEST(Peer, MustSayItsName) { EXPECT_THROW(Peer(answering("", "{}", "{}")), Error); }

TEST(Peers, FollowOursAndSkipTheAbsent) {
  const std::vector<std::shared_ptr<Peer>> peers = {
      std::make_shared<Peer>(answering(prepared(R"({"id": 0, "how": "", "error": 0})"))),
      std::make_shared<Peer>(answering("exit 1", "{}", R"({"engine": "gone", "refused": "not installed"})"))};
  EXPECT_EQ(peers[1]->absent(), "not installed");
  const std::vector<bench::Run> runs = with_peers({run_of("top_left")}, peers);
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].engine, "qkv");
  EXPECT_EQ(runs[1].engine, "fake");
}

/// A product's runs in every mode, each followed by that of the peer of plain loops.
std::vector<bench::Run> product_runs(const std::shared_ptr<Peer>& peer, DType dtype) {
  Case spec;
  spec.name = "product";
  spec.operation = Operation::matmul;
  spec.M = 5, spec.N = 7, spec.K = 11;
  spec.dtype = dtype;
  spec.modes = {Mode::forward, Mode::backward, Mode::both};
  spec.keys = {{"op", "matmul"}};
  return with_peers(runs_of(make_subject(spec), {1}), {peer});
}

TEST(ProductPeer, GivesOurResultsInEveryMode) {
  const auto peer = std::make_shared<Peer>(std::vector<std::string>{QKV_NAIVE_PEER});
  const std::vector<bench::Run> runs = product_runs(peer, DType::f32);
  ASSERT_EQ(runs.size(), 6u);
  for (size_t r = 1; r < runs.size(); r += 2) {
    EXPECT_EQ(runs[r].engine, "loops");
    EXPECT_EQ(runs[r].how, "three loops");
    ASSERT_EQ(runs[r].refused, "") << runs[r].label();
    const Sample sample = runs[r].remote(2);
    EXPECT_GT(sample.seconds, 0);
    EXPECT_GT(sample.cpu_seconds, 0);
  }
}

TEST(ProductPeer, SaysWhatItCannotDo) {
  const auto peer = std::make_shared<Peer>(std::vector<std::string>{QKV_NAIVE_PEER});
  EXPECT_EQ(product_runs(peer, DType::f64)[1].refused, "f32 only");
  EXPECT_EQ(peer->prepare(run_of("top_left"), "file").refused, "products only");
}

}  // namespace
}  // namespace qkv::bench
