// SPDX-License-Identifier: Apache-2.0
//
// qkv_demo FOLDER [KEYS]: exact attention on the sentence of FOLDER (demo/data), then on KEYS random keys.
// Exit code 1 when a result is not what it should be.
#include <charconv>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>

#include <qkv/kernels/targets.h>
#include <qkv/support/error.h>
#include <qkv/support/parallel.h>

#include "demo.h"

namespace demo {
namespace {

int64_t parse_keys(const char* text) {
  int64_t keys = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, keys);
  qkv::require(error == std::errc() && stop == end && keys >= 1 && keys <= 1 << 20, "keys must be 1 to 1048576, got ",
               text);
  return keys;
}

void print_sentence(const Sentence& s) {
  std::string line = "  ";
  for (int64_t i = 1; i + 1 < s.tokens(); ++i) {  // without [CLS] and [SEP]
    const std::string& word = s.word(i);
    if (line.size() + word.size() > 92) {
      std::printf("%s\n", line.c_str());
      line = "  ";
    }
    line += (word == "," || word == "." ? "" : " ") + word;
  }
  std::printf("%s\n", line.c_str());
}

bool show_all(const std::string& folder, int64_t keys) {
  const Sentence s = read_sentence(folder);
  std::printf("qkv: exact attention, out = softmax(q k^T / sqrt(D)) v, on %s with %d threads\n\n",
              qkv::chosen_target().c_str(), qkv::available_threads());
  print_sentence(s);
  std::printf(
      "\n   These are %d tokens as layer %d (counted from 0) of a real model, all-MiniLM-L6-v2, sees them:\n"
      "   %d heads of width %d. Small numbers tell apart words that come again.\n",
      static_cast<int>(s.tokens()), static_cast<int>(s.layer), static_cast<int>(s.heads()),
      static_cast<int>(s.width()));

  std::printf("\n1. Is it right? Output and gradients beside PyTorch's\n\n");
  bool good = show_agreement(s);
  std::printf("\n2. Which words does each word read?\n\n");
  show_heads(s);
  std::printf("\n3. Hiding a word is not zeroing its value\n\n");
  good &= show_removals(s);
  std::printf("\n4. The same operation at %lld queries and keys (random, 2 heads of width 64, f32)\n\n",
              static_cast<long long>(keys));
  std::fflush(stdout);
  good &= show_long(keys);
  std::printf(good ? "\nAll checks passed.\n" : "\nA check FAILED: see above.\n");
  return good;
}

}  // namespace
}  // namespace demo

int main(int argc, char** argv) {
  try {
    qkv::require(argc == 2 || argc == 3, "usage: qkv_demo FOLDER [KEYS]");
    return demo::show_all(argv[1], argc == 3 ? demo::parse_keys(argv[2]) : 16384) ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "qkv_demo: error: %s\n", error.what());
    return 1;
  }
}
