// SPDX-License-Identifier: Apache-2.0
#include "text/utf8.h"

#include <gtest/gtest.h>

namespace qkv::text {
namespace {

TEST(Utf8, EncodesAndDecodesEveryCodePoint) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text = "x";
    utf8_append(text, c);
    ASSERT_EQ(utf8_decode(text.data() + 1), c);
    ASSERT_EQ(utf8_length(text[1]), text.size() - 1);
    ASSERT_EQ(utf8_first_invalid(text), std::string::npos);
    size_t begin = 0;
    ASSERT_EQ(utf8_before(text, text.size(), &begin), c);
    ASSERT_EQ(begin, 1U);
    ASSERT_EQ(utf8_count(text), 2U);
  }
}

struct Broken {
  const char* name;
  std::string text;
  size_t first_invalid;
  const char* repaired;
};

class Utf8Broken : public testing::TestWithParam<Broken> {};

TEST_P(Utf8Broken, IsFoundAndRepaired) {
  const Broken& broken = GetParam();
  EXPECT_EQ(utf8_first_invalid(broken.text), broken.first_invalid);
  EXPECT_EQ(utf8_repaired(broken.text), broken.repaired);
  // Behind enough text for the fast path, too.
  EXPECT_EQ(utf8_first_invalid("0123456789abcdef" + broken.text), 16 + broken.first_invalid);
}

// The replacements are those of the Unicode standard, chapter 3.9, which Rust's from_utf8_lossy makes as well.
INSTANTIATE_TEST_SUITE_P(
    , Utf8Broken,
    testing::Values(Broken{"continuation", "\x80", 0, "\uFFFD"}, Broken{"overlong", "a\xC0\xAF", 1, "a\uFFFD\uFFFD"},
                    Broken{"overlong_of_three", "\xE0\x80\xAF", 0, "\uFFFD\uFFFD\uFFFD"},
                    Broken{"surrogate", "\xED\xA0\x80z", 0, "\uFFFD\uFFFD\uFFFDz"},
                    Broken{"beyond", "\xF4\x91\x92\x93", 0, "\uFFFD\uFFFD\uFFFD\uFFFD"},
                    Broken{"cut_off", "\xE2\x82", 0, "\uFFFD"}, Broken{"cut_off_inside", "\xF0\x90\x8D|", 0, "\uFFFD|"},
                    Broken{"impossible", "ok\xFFok", 2, "ok\uFFFDok"}, Broken{"lead_alone", "\xC3", 0, "\uFFFD"}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace qkv::text
