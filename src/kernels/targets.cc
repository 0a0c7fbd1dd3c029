// SPDX-License-Identifier: Apache-2.0
#include "qkv/kernels/targets.h"

#include <hwy/targets.h>

#if HWY_ARCH_X86
#include <cpuid.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <list>

#include "kernels/registry.h"
#include "qkv/support/error.h"

namespace qkv {
namespace {

std::list<KernelSet>& table() {
  static std::list<KernelSet> sets;
  return sets;
}

KernelSet& entry(int64_t target) {
  for (KernelSet& set : table()) {
    if (set.target == target) return set;
  }
  table().push_back({target, hwy::TargetName(target)});
  return table().back();
}

/// The set that Highway does not know: AVX3 and the bf16 dot product. Its f32 and f64 tables are AVX3's.
KernelSet& avx3_bf16() {
  static KernelSet set{HWY_AVX3, "AVX3_BF16"};
  return set;
}

/// CPUID says whether the processor has the instruction. That the system keeps its registers is Highway's condition for
/// AVX3.
bool has_bf16_products() {
#if HWY_ARCH_X86
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kBf16Bit = 1U << 5;  // leaf 7, subleaf 1, EAX
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & kBf16Bit) != 0;
#else
  return false;
#endif
}

/// Sets this machine can run, best first.
std::vector<const KernelSet*> supported() {
  link_attention_f32();
  link_attention_f64();
  link_attention_bf16();
  link_matmul_f32();
  link_matmul_f64();
  link_matmul_bf16();
  link_derivatives_f32();
  link_derivatives_f64();
  link_layers_f32();
  link_layers_f64();
  std::vector<const KernelSet*> sets;
  for (const KernelSet& set : table()) {
    if ((set.target & hwy::SupportedTargets()) != 0) sets.push_back(&set);
  }
  std::sort(sets.begin(), sets.end(), [](const KernelSet* a, const KernelSet* b) { return a->target < b->target; });
  static const bool bf16_products = has_bf16_products();
  const auto avx3 =
      std::find_if(sets.begin(), sets.end(), [](const KernelSet* set) { return set->target == HWY_AVX3; });
  if (bf16_products && avx3_bf16().bf16 != nullptr && avx3 != sets.end()) {
    avx3_bf16().f32 = (*avx3)->f32;
    avx3_bf16().f64 = (*avx3)->f64;
    avx3_bf16().matmul_f32 = (*avx3)->matmul_f32;
    avx3_bf16().matmul_f64 = (*avx3)->matmul_f64;
    avx3_bf16().derivatives_f32 = (*avx3)->derivatives_f32;
    avx3_bf16().derivatives_f64 = (*avx3)->derivatives_f64;
    avx3_bf16().layers_f32 = (*avx3)->layers_f32;
    avx3_bf16().layers_f64 = (*avx3)->layers_f64;
    sets.insert(sets.begin(), &avx3_bf16());
  }
  return sets;
}

const KernelSet* find(const std::string& target) {
  std::string known;
  for (const KernelSet* set : supported()) {
    if (set->name == target) return set;
    known += known.empty() ? "" : ", ";
    known += set->name;
  }
  fail("target: expected one of ", known, " on this machine, got '", target, "'");
}

/// What QKV_TARGET names, "" when it is not set. A copy: later calls of setenv() may move the environment.
const std::string& environment_target() {
  static const std::string target = [] {
    const char* value = std::getenv("QKV_TARGET");  // NOLINT(concurrency-mt-unsafe)
    return std::string(value != nullptr ? value : "");
  }();
  return target;
}

/// Reads it at start-up, not when the first call comes.
[[maybe_unused]] const bool environment_read = (environment_target(), true);

std::atomic<const KernelSet*> chosen{nullptr};

}  // namespace

RegisterKernels::RegisterKernels(int64_t target, const AttentionKernels<float>* f32) { entry(target).f32 = f32; }
RegisterKernels::RegisterKernels(int64_t target, const AttentionKernels<double>* f64) { entry(target).f64 = f64; }
RegisterKernels::RegisterKernels(const PairKernels* bf16) { avx3_bf16().bf16 = bf16; }
RegisterKernels::RegisterKernels(int64_t target, const MatmulKernels<float>* f32) { entry(target).matmul_f32 = f32; }
RegisterKernels::RegisterKernels(int64_t target, const MatmulKernels<double>* f64) { entry(target).matmul_f64 = f64; }
RegisterKernels::RegisterKernels(const MatmulPairKernels* bf16) { avx3_bf16().matmul_bf16 = bf16; }
RegisterKernels::RegisterKernels(int64_t target, const DerivativeKernels<float>* f32) {
  entry(target).derivatives_f32 = f32;
}
RegisterKernels::RegisterKernels(int64_t target, const DerivativeKernels<double>* f64) {
  entry(target).derivatives_f64 = f64;
}
RegisterKernels::RegisterKernels(int64_t target, const LayerKernels<float>* f32) { entry(target).layers_f32 = f32; }
RegisterKernels::RegisterKernels(int64_t target, const LayerKernels<double>* f64) { entry(target).layers_f64 = f64; }

const KernelSet& kernels() {
  const KernelSet* set = chosen.load(std::memory_order_acquire);
  if (set == nullptr) {
    const std::string& target = environment_target();
    const KernelSet* first = target.empty() ? supported().front() : find(target);
    // A choice that another thread has made meanwhile stands.
    if (chosen.compare_exchange_strong(set, first, std::memory_order_acq_rel)) set = first;
  }
  return *set;
}

std::vector<std::string> supported_targets() {
  std::vector<std::string> names;
  for (const KernelSet* set : supported()) names.emplace_back(set->name);
  return names;
}

std::string chosen_target() { return kernels().name; }

void choose_target(const std::string& name) { chosen.store(find(name), std::memory_order_release); }

}  // namespace qkv
