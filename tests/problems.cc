// SPDX-License-Identifier: Apache-2.0
#include "problems.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "attention/check.h"
#include "attention/mask.h"
#include "random_stream.h"

namespace qkv::test {
namespace {

/// Largest magnitudes that keep every product of a problem within f32 (and its inputs within the dtype).
struct Magnitudes {
  double query = 1, key = 1, value = 1, d_out = 1;
};

Magnitudes magnitudes(const Spec& spec) {
  const bool half = spec.dtype == DType::f16;
  switch (spec.values) {
    case Values::large_scores: return {20, 20, 1, 1};
    case Values::tiny: return half ? Magnitudes{3e-4, 3e-4, 3e-6, 3e-4} : Magnitudes{1e-10, 1e-10, 1e-14, 1e-8};
    case Values::huge: return half ? Magnitudes{600, 600, 8000, 30} : Magnitudes{3e4, 3e4, 3e9, 3e9};
    default: return {};
  }
}

}  // namespace

/// Fills a TestProblem from its spec.
class Generator {
 public:
  explicit Generator(TestProblem& problem) : problem_(problem), spec_(problem.spec), stream_(problem.spec.seed) {}

  void run() {
    make_tensors();
    make_terms();
    make_positions();
    make_masks();
    if (has(kPacked)) make_starts();
    AttentionOptions& options = problem_.options;
    if (has(kScale)) options.scale = stream_.uniform() * (spec_.values == Values::huge ? 1e-3 : 0.5);
    if (has(kSoftcap)) options.softcap = stream_.pick({2.0, 30.0, 50.0});
    if (has(kDropout)) {
      options.dropout = stream_.pick({0.1, 0.5, 0.9});
      options.seed = stream_.bits();
    }
    options.threads = spec_.threads;
  }

 private:
  bool has(uint32_t features) const { return (spec_.features & features) != 0; }

  template <class F>
  TensorView make(DType dtype, const Dims& shape, Layout layout, F value) {
    StridedTensor& tensor = problem_.memory_.emplace_back(dtype, shape, layout);
    tensor.fill(value);
    return tensor.view();
  }

  /// [B, H, T, width], its end, or [T, H, width] when packed.
  Dims tensor_shape(int64_t heads, int64_t rows, int64_t width) const {
    if (has(kPacked)) return {rows, heads, width};
    if (spec_.rank == 4) return {spec_.B, heads, rows, width};
    if (spec_.rank == 3) return {heads, rows, width};
    return {rows, width};
  }

  void make_tensors() {
    const Magnitudes size = magnitudes(spec_);
    const bool equal = spec_.values == Values::nearly_equal;
    const double common_key = spec_.values == Values::offset_keys ? (spec_.dtype == DType::f16 ? 300 : 1000) : 0;
    const double noise = equal ? 1e-3 : 1;
    const auto normal = [&](double magnitude) {
      return [this, magnitude](int64_t) { return magnitude * stream_.normal(); };
    };
    problem_.q = make(spec_.dtype, tensor_shape(spec_.H, spec_.Tq, spec_.D), spec_.layout, normal(size.query));
    problem_.k = make(spec_.dtype, tensor_shape(spec_.Hkv, spec_.Tk, spec_.D), spec_.layout,
                      [&](int64_t) { return size.key * noise * stream_.normal() + common_key + (equal ? 1 : 0); });
    problem_.v = make(spec_.dtype, tensor_shape(spec_.Hkv, spec_.Tk, spec_.Dv), spec_.layout,
                      [&](int64_t) { return size.value * noise * stream_.normal() + (equal ? 10 : 0); });
    problem_.d_out = make(spec_.dtype, tensor_shape(spec_.H, spec_.Tq, spec_.Dv), spec_.layout, normal(size.d_out));
    if (has(kDLse)) {
      problem_.d_lse =
          make(problem_.lse_dtype(), problem_.lse_shape(), small_layout(), normal(size.d_out * size.value));
    }
  }

  /// Vectors and tables: expanded ones would not be gradients' twins, transposed ones are not different.
  Layout small_layout() const { return spec_.layout == Layout::expanded ? Layout::contiguous : spec_.layout; }

  /// Shape of a bias or mask: each axis full or 1, of q's rank or 4.
  Dims broadcast_shape(int64_t rows, int64_t keys, bool broadcast_inner) {
    const std::array<int64_t, 4> full = {spec_.B, spec_.H, rows, keys};
    const int first = stream_.chance(0.5) ? 4 - spec_.rank : 0;
    Dims shape;
    for (int axis = first; axis < 4; ++axis) {
      const bool may_shrink = axis < 2 || broadcast_inner;
      shape.push_back(may_shrink && stream_.chance(0.4) ? 1 : full[static_cast<size_t>(axis)]);
    }
    return shape;
  }

  void make_terms() {
    AttentionOptions& options = problem_.options;
    const DType number = problem_.lse_dtype();
    const auto normal = [this](int64_t) { return stream_.normal(); };
    if (has(kBias)) {
      const DType dtype = stream_.chance(0.5) ? spec_.dtype : DType::f32;
      options.bias = make(dtype, broadcast_shape(spec_.Tq, spec_.Tk, true), spec_.layout, [this](int64_t) {
        return stream_.chance(0.03) ? -std::numeric_limits<double>::infinity() : stream_.normal();
      });
    }
    if (has(kSlopes)) {
      options.slopes = make(number, {spec_.H}, small_layout(), [&](int64_t h) {
        return std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(spec_.H));
      });
    }
    if (has(kTable)) {
      const bool causal = stream_.chance(0.5);
      options.buckets.kind = causal ? Buckets::Kind::causal : Buckets::Kind::bidirectional;
      const int64_t buckets = causal ? stream_.pick({1, 7, 32}) : stream_.pick({2, 8, 32});
      options.buckets.max_distance = stream_.pick({17, 20, 128});
      options.table = make(number, {spec_.H, buckets}, small_layout(), normal);
    }
    if (has(kSinks)) options.sinks = make(number, {spec_.H}, small_layout(), normal);
  }

  int64_t batch() const { return spec_.rank == 4 || has(kPacked) ? spec_.B : 1; }

  TensorView make_integers(const Dims& shape, const std::vector<int64_t>& values) {
    const DType dtype = stream_.chance(0.5) ? DType::i64 : DType::i32;
    return make(dtype, shape, small_layout(),
                [&](int64_t i) { return static_cast<double>(values[static_cast<size_t>(i)]); });
  }

  std::vector<int64_t> random_integers(int64_t count, int64_t low, int64_t high) {
    std::vector<int64_t> values(static_cast<size_t>(count));
    for (int64_t& value : values) value = stream_.integer(low, high);
    return values;
  }

  void make_positions() {
    AttentionOptions& options = problem_.options;
    const int64_t reach = std::max(spec_.Tq, spec_.Tk) / 2 + 1;
    if (has(kCausalTopLeft)) options.causal = Causal::top_left();
    if (has(kCausalBottomRight)) options.causal = Causal::bottom_right();
    if (has(kCausalOffset)) options.causal = Causal::with_offset(stream_.integer(-reach / 2, reach));
    if (has(kCausalOffsets)) options.causal = Causal::with_offsets();
    if (has(kOffset)) options.offset = stream_.integer(-reach / 2, reach);
    if (has(kCausalOffsets | kOffsets)) {
      options.offsets = make_integers({batch()}, random_integers(batch(), -reach / 2, reach));
    }
    if (!has(kWindow)) return;
    const int64_t form = stream_.integer(0, 3);
    const int64_t side = std::max<int64_t>(spec_.Tk / 4, 1);
    if (form != 0) options.window.left = stream_.integer(0, side);
    if (form != 1) options.window.right = stream_.integer(0, side);
  }

  void make_masks() {
    AttentionOptions& options = problem_.options;
    const int64_t B = batch();
    if (has(kKeyLengths)) options.key_lengths = make_integers({B}, random_integers(B, 0, spec_.Tk));
    if (has(kQueryLengths)) options.query_lengths = make_integers({B}, random_integers(B, 0, spec_.Tq));
    if (has(kMask)) {
      const double shown = stream_.pick({0.2, 0.7, 0.95});
      options.mask = make(stream_.chance(0.5) ? DType::boolean : DType::u8, broadcast_shape(spec_.Tq, spec_.Tk, true),
                          spec_.layout, [&](int64_t) { return stream_.chance(shown) ? 1 : 0; });
    }
    if (has(kSegments)) {
      options.query_segment = make_integers({B, spec_.Tq}, segments(B, spec_.Tq));
      options.key_segment = make_integers({B, spec_.Tk}, segments(B, spec_.Tk));
    }
    if (!has(kBlockMask)) return;
    options.block = {stream_.pick({1, 3, 16, 64}), stream_.pick({1, 5, 16, 128})};
    const auto blocks = [](int64_t size, int64_t side) { return (size + side - 1) / side; };
    const Dims shape =
        broadcast_shape(blocks(spec_.Tq, options.block.queries), blocks(spec_.Tk, options.block.keys), false);
    options.block_mask = make(stream_.chance(0.5) ? DType::boolean : DType::u8, shape, spec_.layout,
                              [&](int64_t) { return stream_.chance(0.6) ? 1 : 0; });
  }

  /// Packed documents: runs of ids that rise, and now and then an id that nobody shares.
  std::vector<int64_t> segments(int64_t rows, int64_t columns) {
    std::vector<int64_t> ids;
    for (int64_t row = 0; row < rows; ++row) {
      int64_t id = 0;
      for (int64_t column = 0; column < columns; ++column) {
        if (stream_.chance(4.0 / static_cast<double>(columns + 4))) ++id;
        ids.push_back(stream_.chance(0.02) ? -1 - column : id);
      }
    }
    return ids;
  }

  void make_starts() {
    const auto starts = [&](int64_t total) {
      std::vector<int64_t> cuts = random_integers(spec_.B + 1, 0, total);
      cuts.front() = 0;
      cuts.back() = total;
      std::sort(cuts.begin(), cuts.end());
      return cuts;
    };
    problem_.options.query_starts = make_integers({spec_.B + 1}, starts(spec_.Tq));
    problem_.options.key_starts = make_integers({spec_.B + 1}, starts(spec_.Tk));
  }

  TestProblem& problem_;
  const Spec& spec_;
  Stream stream_;
};

TestProblem::TestProblem(const Spec& wanted) : spec(compatible(wanted)) { Generator(*this).run(); }

Dims TestProblem::lse_shape() const {
  Dims shape;
  for (int axis = 0; axis + 1 < q.rank(); ++axis) shape.push_back(q.size(axis));
  return shape;
}

int64_t TestProblem::poison_hidden() {
  const Problem problem = check_problem(q, k, v, options);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  int64_t poisoned = 0;
  const auto poison_row = [&](const Operand& tensor, int64_t b, int64_t h, int64_t row, int64_t width) {
    for (int64_t c = 0; c < width; ++c) store_from_double(tensor.dtype, tensor.mutable_at(b, h, row, c), nan);
  };
  for (int64_t b = 0; b < problem.B; ++b) {
    const Sequence& sequence = problem.sequence(b);
    for (int64_t hkv = 0; hkv < problem.Hkv; ++hkv) {
      for (int64_t j = 0; j < sequence.Tk; ++j) {
        bool seen = false;
        for (int64_t h = hkv * problem.group(); h < (hkv + 1) * problem.group(); ++h) {
          for (int64_t i = 0; i < sequence.Tq; ++i) seen = seen || mask_shows(problem, b, h, i, j);
        }
        if (seen) continue;
        poison_row(problem.k, b, hkv, sequence.k_begin + j, problem.D);
        poison_row(problem.v, b, hkv, sequence.k_begin + j, problem.Dv);
        ++poisoned;
      }
    }
  }
  // A bias element may serve many pairs: it is hidden when all of them are. First all that are seen, then the others.
  if (!problem.bias) return poisoned;
  std::vector<const void*> seen;
  std::vector<void*> hidden;
  for (int64_t b = 0; b < problem.B; ++b) {
    for (int64_t h = 0; h < problem.H; ++h) {
      for (int64_t i = 0; i < problem.Tq; ++i) {
        for (int64_t j = 0; j < problem.Tk; ++j) {
          if (mask_shows(problem, b, h, i, j)) {
            seen.push_back(problem.bias.at(b, h, i, j));
          } else {
            hidden.push_back(problem.bias.mutable_at(b, h, i, j));
          }
        }
      }
    }
  }
  std::sort(seen.begin(), seen.end());
  for (void* bias : hidden) {
    if (std::binary_search(seen.begin(), seen.end(), bias)) continue;
    store_from_double(problem.bias.dtype, bias, nan);
    ++poisoned;
  }
  return poisoned;
}

}  // namespace qkv::test
