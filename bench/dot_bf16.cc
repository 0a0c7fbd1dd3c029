// SPDX-License-Identifier: Apache-2.0
// Highway 1.0.3 has no target with bf16 dot products, hence intrinsics behind a check at run time.
#include "dot_bf16.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

namespace qkv::bench {

bool has_dot_bf16(const std::string& target) {
  return target.rfind("AVX3", 0) == 0 && __builtin_cpu_supports("avx512bf16") != 0;
}

__attribute__((target("avx512f,avx512vl,avx512bf16"), noinline)) double dot_bf16(int64_t iterations) {
  constexpr int kChains = 16;
  static_assert(kDotBf16Operations == kChains * 16 * 4);
  // Pairs of 0.5 and 0.25 against 0: sums stay what they are, so that no number becomes slow.
  const __m512bh factors = (__m512bh)_mm512_set1_epi32(0x3F003E80), zeros = (__m512bh)_mm512_setzero_si512();
  __m512 sums[kChains];
  for (int c = 0; c < kChains; ++c) sums[c] = _mm512_set1_ps(static_cast<float>(c + 1));
  for (int64_t i = 0; i < iterations; ++i) {
    for (int c = 0; c < kChains; ++c) sums[c] = _mm512_dpbf16_ps(sums[c], factors, zeros);
  }
  __m512 total = _mm512_setzero_ps();
  for (int c = 0; c < kChains; ++c) total = _mm512_add_ps(total, sums[c]);
  return static_cast<double>(_mm512_cvtss_f32(total));
}

}  // namespace qkv::bench

#else

namespace qkv::bench {

bool has_dot_bf16(const std::string&) { return false; }
double dot_bf16(int64_t) { return 0; }

}  // namespace qkv::bench

#endif
