// SPDX-License-Identifier: Apache-2.0
#include "qkv/generate/stop_text.h"

#include <gtest/gtest.h>

#include "qkv/support/error.h"
#include "random_stream.h"

namespace qkv {
namespace {

TEST(StopText, HoldsBackWhatCouldBeTheBeginningOfAStop) {
  StopText stop({"\n\n", "END"});
  EXPECT_EQ(stop.add("one\n"), "one");
  EXPECT_EQ(stop.add("two E"), "\ntwo ");
  EXPECT_EQ(stop.add("N"), "");
  EXPECT_EQ(stop.add("E"), "EN");
  EXPECT_EQ(stop.add("NDING"), "");
  EXPECT_TRUE(stop.stopped());
  EXPECT_EQ(stop.add("more"), "");
  EXPECT_EQ(stop.finish(), "");
}

TEST(StopText, GivesWhatItHeldAtTheEnd) {
  StopText stop({"abc"});
  EXPECT_EQ(stop.add("xab"), "x");
  EXPECT_EQ(stop.finish(), "ab");
  EXPECT_FALSE(stop.stopped());
}

TEST(StopText, AnOverlappingBeginningIsNotLost) {
  StopText stop({"aab"});
  EXPECT_EQ(stop.add("aa"), "");
  EXPECT_EQ(stop.add("a"), "a");
  EXPECT_EQ(stop.add("b"), "");
  EXPECT_TRUE(stop.stopped());
}

TEST(StopText, WithoutStopsEverythingPasses) {
  StopText stop({});
  EXPECT_EQ(stop.add("abc"), "abc");
  EXPECT_EQ(stop.finish(), "");
}

TEST(StopText, AnEmptyStopIsRefused) { EXPECT_THROW(StopText({"a", ""}), Error); }

/// What comes before the stop text that ends first.
std::string before_stop(const std::string& text, const std::vector<std::string>& stops, bool* stopped) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::string shortest;
    for (const std::string& stop : stops) {
      if (end < stop.size() || text.substr(end - stop.size(), stop.size()) != stop) continue;
      if (!*stopped || end - stop.size() < shortest.size()) shortest = text.substr(0, end - stop.size());
      *stopped = true;
    }
    if (*stopped) return shortest;
  }
  return text;
}

TEST(StopText, TheResultDoesNotDependOnHowTheTextIsCut) {
  test::Stream random(3);
  const auto word = [&](int64_t least, int64_t most) {
    std::string text;
    for (int64_t n = random.integer(least, most); n > 0; --n) text += static_cast<char>('a' + random.integer(0, 1));
    return text;
  };
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> stops;
    for (int64_t n = random.integer(0, 3); n > 0; --n) stops.push_back(word(1, 6));
    const std::string text = word(0, 20);
    StopText stop(stops);
    std::string result;
    for (size_t at = 0; at < text.size();) {
      const auto size = static_cast<size_t>(random.integer(0, 4));
      result += stop.add(text.substr(at, size));
      at += size;
    }
    result += stop.finish();
    bool stopped = false;
    EXPECT_EQ(result, before_stop(text, stops, &stopped)) << text;
    EXPECT_EQ(stop.stopped(), stopped) << text;
  }
}

}  // namespace
}  // namespace qkv
