// SPDX-License-Identifier: Apache-2.0
#include "qkv/kernels/targets.h"

#include <hwy/targets.h>

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
  table().push_back({target, hwy::TargetName(target), nullptr, nullptr});
  return table().back();
}

/// Sets this machine can run, best first.
std::vector<const KernelSet*> supported() {
  link_attention_f32();
  link_attention_f64();
  std::vector<const KernelSet*> sets;
  for (const KernelSet& set : table()) {
    if ((set.target & hwy::SupportedTargets()) != 0) sets.push_back(&set);
  }
  std::sort(sets.begin(), sets.end(), [](const KernelSet* a, const KernelSet* b) { return a->target < b->target; });
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

/// What QKV_TARGET names, read once; null when it is not set.
const char* environment_target() {
  static const char* const name = std::getenv("QKV_TARGET");  // NOLINT(concurrency-mt-unsafe)
  return name;
}

std::atomic<const KernelSet*> chosen{nullptr};

}  // namespace

RegisterKernels::RegisterKernels(int64_t target, const AttentionKernels<float>* f32) { entry(target).f32 = f32; }
RegisterKernels::RegisterKernels(int64_t target, const AttentionKernels<double>* f64) { entry(target).f64 = f64; }

const KernelSet& kernels() {
  const KernelSet* set = chosen.load(std::memory_order_acquire);
  if (set == nullptr) {
    const char* name = environment_target();
    set = name != nullptr && *name != '\0' ? find(name) : supported().front();
    chosen.store(set, std::memory_order_release);
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
