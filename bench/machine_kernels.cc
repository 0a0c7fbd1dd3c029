// SPDX-License-Identifier: Apache-2.0
// The denominator of every share of peak: chains of multiply-adds that never leave the registers.
// A core starts up to 2 (x86) or 4 (Arm) vector multiply-adds a cycle with a latency of 4, so 8 to 16 independent
// chains fill the pipes. With 32 registers there are 16 chains, with 16 registers 12: both leave room for the two
// operands, and no compiler leaves a loop of 16 rolled, which would send the chains through memory.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "machine_kernels.cc"  // NOLINT
#include "kernels/disabled_targets.h"
// disabled_targets.h must come first, then foreach_target.h.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "dot_bf16.h"
#include "machine_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SSE2
constexpr size_t kChains = 12;
#else
constexpr size_t kChains = 16;
#endif

template <class T>
HWY_NOINLINE double multiply_add(int64_t iterations) {
  const hn::ScalableTag<T> tag;
  using Vector = hn::Vec<decltype(tag)>;
  const Vector factor = hn::Set(tag, static_cast<T>(0.75));
  const Vector term = hn::Set(tag, static_cast<T>(0.25));
  Vector sums[kChains];
  for (size_t c = 0; c < kChains; ++c) sums[c] = hn::Set(tag, static_cast<T>(c + 1));
  for (int64_t i = 0; i < iterations; ++i) {
    for (size_t c = 0; c < kChains; ++c) sums[c] = hn::MulAdd(sums[c], factor, term);  // tends to 1: no slow numbers
  }
  Vector total = hn::Zero(tag);
  for (size_t c = 0; c < kChains; ++c) total = hn::Add(total, sums[c]);
  return static_cast<double>(hn::GetLane(total));
}

HWY_NOINLINE uint64_t read_in_order(const void* block) {
  const hn::ScalableTag<float> tag;
  constexpr size_t kPage = static_cast<size_t>(kReadPage) / sizeof(float);
  const size_t lanes = hn::Lanes(tag);
  const float* words = static_cast<const float*>(block);
  hn::Vec<decltype(tag)> sum = hn::Zero(tag);
  for (size_t page = 0; page < static_cast<size_t>(kReadBlock) / sizeof(float); page += kPage) {
    __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(words + page) + kReadAhead));
    for (size_t w = page; w < page + kPage; w += lanes) sum = hn::Add(sum, hn::Load(tag, words + w));
  }
  return static_cast<uint64_t>(hn::GetLane(sum));
}

HWY_NOINLINE uint64_t read_in_streams(const void* block) {
  const hn::ScalableTag<uint64_t> tag;
  using Vector = hn::Vec<decltype(tag)>;
  constexpr size_t kStreams = static_cast<size_t>(kReadStreams);
  constexpr size_t kDistance = static_cast<size_t>(kReadBlock / kReadStreams) / sizeof(uint64_t);
  constexpr size_t kLine = 64 / sizeof(uint64_t);
  const size_t lanes = hn::Lanes(tag);
  const uint64_t* words = static_cast<const uint64_t*>(block);
  Vector sums[kStreams];
  for (size_t s = 0; s < kStreams; ++s) sums[s] = hn::Zero(tag);
  for (size_t w = 0; w < kDistance; w += kLine) {
    for (size_t s = 0; s < kStreams; ++s) {
      const uint64_t* line = words + s * kDistance + w;
      for (size_t l = 0; l < kLine; l += lanes) sums[s] = hn::Add(sums[s], hn::Load(tag, line + l));
    }
  }
  Vector total = hn::Zero(tag);
  for (size_t s = 0; s < kStreams; ++s) total = hn::Add(total, sums[s]);
  return hn::GetLane(total);
}

MachineKernels kernels() {
  const auto operations = [](size_t lanes) { return static_cast<int64_t>(2 * kChains * lanes); };
  MachineKernels result{};
  result.target = hwy::TargetName(HWY_TARGET);
  result.multiply_add_f32 = &multiply_add<float>;
  result.operations_f32 = operations(hn::Lanes(hn::ScalableTag<float>()));
#if HWY_HAVE_FLOAT64
  result.multiply_add_f64 = &multiply_add<double>;
  result.operations_f64 = operations(hn::Lanes(hn::ScalableTag<double>()));
#endif
  result.read_in_order = &read_in_order;
  result.read_in_streams = &read_in_streams;
  return result;
}

}  // namespace qkv::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::bench {

HWY_EXPORT(kernels);

MachineKernels machine_kernels(const std::string& target) {
  // Better instruction sets have lower bits. Asking for all bits from the named one upwards selects the best loop at or
  // below it, without touching the choice that the library has made.
  int64_t allowed = hwy::SupportedTargets();
  for (int64_t rest = allowed; rest != 0; rest &= rest - 1) {
    const int64_t bit = rest & -rest;
    const std::string name = hwy::TargetName(bit);
    if (target == name || target == name + "_BF16") allowed = rest;  // a set of ours; its other products are the same
  }
  hwy::ChosenTarget choice;
  choice.Update(allowed);
  constexpr size_t kEntries = sizeof(HWY_DISPATCH_TABLE(kernels)) / sizeof(HWY_DISPATCH_TABLE(kernels)[0]);
  MachineKernels result = HWY_DISPATCH_TABLE(kernels)[kEntries == 1 ? 0 : choice.GetIndex()]();
  if (has_dot_bf16(target)) {
    result.dot_bf16 = &dot_bf16;
    result.operations_bf16 = kDotBf16Operations;
  }
  return result;
}

}  // namespace qkv::bench
#endif  // HWY_ONCE
