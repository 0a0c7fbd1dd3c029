// SPDX-License-Identifier: Apache-2.0
//
// Which problems there are: names of options and distributions, which exclude one another, and random choices.
#include <algorithm>

#include "problems.h"
#include "qkv/support/error.h"
#include "random_stream.h"

namespace qkv::test {
namespace {

struct NamedFeature {
  Feature feature;
  const char* name;
};
constexpr NamedFeature kFeatures[] = {
    {kScale, "scale"},
    {kSoftcap, "softcap"},
    {kBias, "bias"},
    {kSlopes, "slopes"},
    {kTable, "table"},
    {kSinks, "sinks"},
    {kCausalTopLeft, "causal_top_left"},
    {kCausalBottomRight, "causal_bottom_right"},
    {kCausalOffset, "causal_offset"},
    {kCausalOffsets, "causal_offsets"},
    {kOffset, "offset"},
    {kOffsets, "offsets"},
    {kWindow, "window"},
    {kKeyLengths, "key_lengths"},
    {kQueryLengths, "query_lengths"},
    {kMask, "mask"},
    {kSegments, "segments"},
    {kBlockMask, "block_mask"},
    {kPacked, "packed"},
    {kDropout, "dropout"},
    {kDLse, "d_lse"},
};

}  // namespace

const char* name(Feature feature) {
  for (const NamedFeature& known : kFeatures) {
    if (known.feature == feature) return known.name;
  }
  return "unknown";
}

const char* name(Values values) {
  switch (values) {
    case Values::normal: return "normal";
    case Values::large_scores: return "large_scores";
    case Values::nearly_equal: return "nearly_equal";
    case Values::offset_keys: return "offset_keys";
    case Values::tiny: return "tiny";
    case Values::huge: return "huge";
  }
  return "unknown";
}

std::string name(const Spec& spec) {
  std::string text(qkv::name(spec.dtype));
  const auto add = [&](const std::string& part) { text.append("_").append(part); };
  for (const NamedFeature& known : kFeatures) {
    if ((spec.features & known.feature) != 0) add(known.name);
  }
  if (spec.values != Values::normal) add(name(spec.values));
  if (spec.layout != Layout::contiguous) add(name(spec.layout));
  if (spec.rank != 4) add(concat("rank", spec.rank));
  if (spec.B != 1) add(concat("b", spec.B));
  if (spec.H != 1) add(concat("h", spec.H));
  if (spec.Hkv != spec.H) add(concat("gqa", spec.Hkv == 0 ? 0 : spec.H / spec.Hkv));
  add(concat("tq", spec.Tq));
  add(concat("tk", spec.Tk));
  add(concat("d", spec.D));
  if (spec.Dv != spec.D) add(concat("dv", spec.Dv));
  if (spec.threads != 1) add(concat("threads", spec.threads));
  add(concat("seed", spec.seed));
  return text;
}

Spec compatible(Spec spec) {
  const auto keep_first = [&](uint32_t group) {  // of features that say the same thing
    const uint32_t present = spec.features & group;
    spec.features = (spec.features & ~group) | (present & (~present + 1));
  };
  keep_first(kCausalTopLeft | kCausalBottomRight | kCausalOffset | kCausalOffsets | kOffset | kOffsets);
  if ((spec.features & kPacked) != 0) {
    spec.features &= ~uint32_t{kBias | kMask | kBlockMask | kKeyLengths | kQueryLengths | kSegments};
    spec.rank = 3;
    spec.B = std::max<int64_t>(spec.B, spec.Tq + spec.Tk > 0 ? 1 : 0);
  } else {
    if (spec.rank < 4) spec.B = 1;
    if (spec.rank < 3) spec.H = spec.Hkv = 1;
  }
  return spec;
}

std::vector<Spec> each_feature_alone(const Spec& base) {
  std::vector<Spec> specs = {base};
  for (const NamedFeature& known : kFeatures) {
    Spec spec = base;
    spec.features |= known.feature;
    specs.push_back(compatible(spec));
  }
  return specs;
}

Spec random_spec(uint64_t seed, int64_t largest) {
  Stream stream(seed ^ 0x5bec);
  constexpr int64_t kSizes[] = {0,  1,  2,   3,   5,   8,   15,  16,  17,  31,  33,  48,  63,  64,
                                65, 96, 127, 128, 129, 191, 193, 200, 255, 257, 511, 513, 769, 1025};
  constexpr int64_t kWidths[] = {0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 24, 32, 33, 40, 64, 65, 80, 128};
  constexpr DType kDTypes[] = {DType::f32, DType::f32, DType::bf16, DType::f16, DType::f64};
  const auto size = [&] {
    int64_t value = stream.pick(kSizes);
    while (value > largest || (value == 0 && stream.chance(0.7))) value = stream.pick(kSizes);
    return value;
  };
  Spec spec;
  spec.seed = seed;
  spec.dtype = stream.pick(kDTypes);
  spec.rank = stream.pick({4, 4, 4, 3, 2});
  spec.B = stream.pick({1, 1, 2, 3});
  spec.Hkv = stream.pick({1, 1, 2, 3});
  spec.H = spec.Hkv * stream.pick({1, 1, 2, 4});
  spec.Tq = size();
  spec.Tk = size();
  spec.D = stream.pick(kWidths);
  spec.Dv = stream.chance(0.6) ? spec.D : stream.pick(kWidths);
  const double density = stream.pick({0.0, 0.08, 0.08, 0.2, 0.5});
  for (const NamedFeature& known : kFeatures) {
    if (stream.chance(known.feature == kPacked ? density / 2 : density)) spec.features |= known.feature;
  }
  spec.layout = static_cast<Layout>(stream.integer(0, static_cast<int64_t>(Layout::expanded)));
  spec.values =
      stream.chance(0.5) ? Values::normal : static_cast<Values>(stream.integer(1, static_cast<int64_t>(Values::huge)));
  spec.threads = stream.pick({1, 1, 2, 3});
  return compatible(spec);
}

}  // namespace qkv::test
