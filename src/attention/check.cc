// SPDX-License-Identifier: Apache-2.0
//
// docs/semantics.md as refusals: whatever passes here has a meaning, and no call is refused after it.
// Each function takes one group of options, reads it into the problem, and says what it refuses.
#include "attention/check.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>

#include "attention/check_view.h"
#include "attention/key_value_storage.h"
#include "qkv/support/error.h"

namespace qkv {
namespace {

constexpr std::array<bool, 4> kEveryAxis = {true, true, true, true};

/// "attention: v has 6 keys, k has 5"
void same(const char* name, int64_t size, const char* unit, const char* other_name, int64_t other) {
  require(size == other, "attention: ", name, " has ", unit, size, ", ", other_name, " has ", other);
}

void check_main_ranks(const TensorView& q, const TensorView& k, const TensorView& v, bool packed) {
  check_memory(q, "q");
  check_memory(k, "k");
  check_memory(v, "v");
  require_dtype(is_floating(q.dtype()), "attention: q must be f64, f32, bf16 or f16, got ", name(q.dtype()));
  require_dtype(k.dtype() == q.dtype(), "attention: k is ", name(k.dtype()), ", q is ", name(q.dtype()));
  require_dtype(v.dtype() == q.dtype(), "attention: v is ", name(v.dtype()), ", q is ", name(q.dtype()));
  require(!packed || q.rank() == 3, "attention: packed q must be [total, heads, width], got ", q.shape());
  require(q.rank() >= 2 && q.rank() <= 4, "attention: q must have 2, 3 or 4 axes, got ", q.shape());
  require(k.rank() == q.rank(), "attention: k has ", k.rank(), " axes, q has ", q.rank());
  require(v.rank() == q.rank(), "attention: v has ", v.rank(), " axes, q has ", q.rank());
}

/// Sizes and operands of q, k, v. Packed tensors are [total, heads, width], others [B, heads, T, width] or its end.
void read_main_tensors(Problem& problem, const TensorView& q, const TensorView& k, const TensorView& v) {
  const int rank = q.rank();
  const int head_axis = problem.packed ? 1 : rank - 3;
  const int row_axis = problem.packed ? 0 : rank - 2;
  const auto size = [](const TensorView& view, int axis) { return axis >= 0 ? view.size(axis) : 1; };
  const bool batched = rank == 4;
  if (batched) {
    require(k.size(0) == q.size(0), "attention: k has batch ", k.size(0), ", q has ", q.size(0));
    require(v.size(0) == q.size(0), "attention: v has batch ", v.size(0), ", q has ", q.size(0));
  }
  problem.B = batched ? q.size(0) : 1;
  problem.H = size(q, head_axis);
  problem.Hkv = size(k, head_axis);
  problem.Tq = q.size(row_axis);
  problem.Tk = k.size(row_axis);
  problem.D = q.size(rank - 1);
  problem.Dv = v.size(rank - 1);
  require(size(v, head_axis) == problem.Hkv, "attention: v has ", size(v, head_axis), " heads, k has ", problem.Hkv);
  require(problem.H == 0 || problem.Hkv > 0, "attention: k has 0 heads, q has ", problem.H);
  require(problem.Hkv == 0 || problem.H % problem.Hkv == 0, "attention: q has ", problem.H,
          " heads, which is no multiple of the ", problem.Hkv, " of k");
  require(v.size(row_axis) == problem.Tk, "attention: v has ", v.size(row_axis), " keys, k has ", problem.Tk);
  require(k.size(rank - 1) == problem.D, "attention: k has width ", k.size(rank - 1), ", q has ", problem.D);
  const auto operand = [&](const TensorView& view) {
    return problem.packed ? make_operand(view, {-1, 1, 0, 2}) : make_operand(view);
  };
  problem.dtype = q.dtype();
  problem.q = operand(q);
  problem.k = operand(k);
  problem.v = operand(v);
}

/// Results and state of the problem's shape must be addressable.
void check_result_sizes(const Problem& problem) {
  const int64_t batch = problem.packed ? 1 : problem.B;
  require(problem.D <= kLargestWidth, "attention: q has width ", problem.D, ", at most 2^48 is computed");
  require(problem.Dv <= kLargestWidth, "attention: v has width ", problem.Dv, ", at most 2^48 is computed");
  checked_product({batch, problem.H}, "B x H");
  checked_product({batch, problem.H, problem.Tq}, "B x H x Tq");
  checked_product({batch, problem.H, problem.Tq, problem.D}, "B x H x Tq x D");
  checked_product({batch, problem.H, problem.Tq, problem.Dv}, "B x H x Tq x Dv");
  checked_product({batch, problem.H, problem.Tk}, "B x H x Tk");
  checked_product({batch, problem.Hkv, problem.Tk, problem.D}, "B x Hkv x Tk x D");
  checked_product({batch, problem.Hkv, problem.Tk, problem.Dv}, "B x Hkv x Tk x Dv");
}

void check_numbers(Problem& problem, const AttentionOptions& options) {
  const double default_scale = problem.D == 0 ? 1.0 : 1.0 / std::sqrt(static_cast<double>(problem.D));
  problem.scale = options.scale.value_or(default_scale);
  require(std::isfinite(problem.scale), "attention: scale must be finite, got ", problem.scale);
  problem.softcap = options.softcap;
  require(std::isfinite(problem.softcap) && problem.softcap >= 0,
          "attention: softcap must be a positive finite number, or 0 for none, got ", problem.softcap);
  if (!problem.is_f64()) {
    // Scores are f32: the scale must be finite there, the soft-cap and its reciprocal normal numbers.
    constexpr double kLargest = std::numeric_limits<float>::max();
    constexpr double kSmallest = 1 / static_cast<double>(std::numeric_limits<float>::max() / 4);
    require(std::fabs(problem.scale) <= kLargest, "attention: scale ", problem.scale, " is beyond the range of f32");
    require(problem.softcap == 0 || (problem.softcap >= kSmallest && problem.softcap <= 1 / kSmallest),
            "attention: softcap ", problem.softcap, " is outside the range of f32, ", kSmallest, " to ", 1 / kSmallest);
  }
  problem.dropout = options.dropout;
  require(problem.dropout >= 0 && problem.dropout < 1, "attention: dropout must lie in [0, 1), got ", problem.dropout);
  require(problem.dropout == 0 || options.seed.has_value(), "attention: dropout ", problem.dropout,
          " needs a seed, none came");
  problem.seed = options.seed.value_or(0);
  require(options.threads >= 0 && options.threads <= 4096,
          "attention: threads must lie in 1..4096, or be 0 for all allowed CPUs, got ", options.threads);
  problem.threads = options.threads;
}

std::optional<int64_t> window_side(const std::optional<int64_t>& side, const char* name) {
  if (!side) return side;
  require(*side >= 0, "attention: the ", name, " side of the window must not be negative, got ", *side);
  return std::min(*side, 4 * kLargestPosition);  // farther than any two positions are apart
}

void check_offset(int64_t offset, const std::string& where) {
  require(offset >= -kLargestPosition && offset <= kLargestPosition, "attention: ", where, " ", offset,
          " is beyond 2^60");
}

void check_integers(const TensorView& view, const char* name, const Dims& shape) {
  check_shape(view, name, shape);
  check_dtype(view, name, DType::i64, DType::i32);
}

/// Cumulative starts: rank 1, from 0, never falling, ending at the rows of the packed tensor.
void check_starts(const TensorView& starts, const char* name, int64_t total, const char* tensor) {
  check_memory(starts, name);
  require(starts.rank() == 1 && starts.size(0) >= 1, "attention: ", name, " must be [sequences + 1], got ",
          starts.shape());
  check_dtype(starts, name, DType::i64, DType::i32);
  require(integer_at(starts, 0) == 0, "attention: ", name, " must begin at 0, got ", integer_at(starts, 0));
  for (int64_t s = 1; s < starts.size(0); ++s) {
    const int64_t before = integer_at(starts, s - 1);
    require(integer_at(starts, s) >= before, "attention: ", name, " must not fall, got ", before, " then ",
            integer_at(starts, s), " at ", s);
  }
  const int64_t end = integer_at(starts, starts.size(0) - 1);
  require(end == total, "attention: ", name, " ends at ", end, ", ", tensor, " has ", total, " rows");
}

void check_packed(const AttentionOptions& options, int64_t total_q, int64_t total_k) {
  require(static_cast<bool>(options.query_starts), "attention: key_starts came without query_starts");
  require(static_cast<bool>(options.key_starts), "attention: query_starts came without key_starts");
  const NamedView refused[] = {{"bias", options.bias},
                               {"mask", options.mask},
                               {"block_mask", options.block_mask},
                               {"key_lengths", options.key_lengths},
                               {"query_lengths", options.query_lengths},
                               {"query_segment", options.query_segment},
                               {"key_segment", options.key_segment}};
  for (const NamedView& tensor : refused) {
    require(!tensor.view, "attention: ", tensor.name, " came together with packed sequences, which have none");
  }
  check_starts(options.query_starts, "query_starts", total_q, "q");
  check_starts(options.key_starts, "key_starts", total_k, "k");
  same("key_starts", options.key_starts.size(0), "", "query_starts", options.query_starts.size(0));
}

void make_sequences(Problem& problem, const AttentionOptions& options) {
  if (problem.packed) problem.B = options.query_starts.size(0) - 1;
  try {
    problem.sequences.resize(static_cast<size_t>(problem.B));
  } catch (const std::exception&) {  // length_error or bad_alloc
    throw MemoryError(concat("attention: no memory for a batch of ", problem.B));
  }
  for (int64_t b = 0; b < problem.B; ++b) {
    Sequence& sequence = problem.sequences[static_cast<size_t>(b)];
    if (problem.packed) {
      sequence.q_begin = integer_at(options.query_starts, b);
      sequence.k_begin = integer_at(options.key_starts, b);
      sequence.Tq = integer_at(options.query_starts, b + 1) - sequence.q_begin;
      sequence.Tk = integer_at(options.key_starts, b + 1) - sequence.k_begin;
    } else {
      sequence.Tq = problem.Tq;
      sequence.Tk = problem.Tk;
    }
    sequence.query_length = sequence.Tq;
    sequence.key_length = sequence.Tk;
  }
}

/// Where query 0 of each sequence stands among the keys: said by the causal mask, or else by offset or offsets.
void read_offsets(Problem& problem, const AttentionOptions& options) {
  const Causal::Kind kind = options.causal.kind();
  problem.causal = static_cast<bool>(options.causal);
  require(!problem.causal || options.offset == 0, "attention: offset ", options.offset,
          " came together with a causal mask, which says its own");
  require(kind != Causal::Kind::offsets || options.offsets,
          "attention: a causal mask by offsets needs the tensor offsets, none came");
  require(!options.offsets || !problem.causal || kind == Causal::Kind::offsets,
          "attention: offsets came together with a causal mask that says its own");
  require(!options.offsets || options.offset == 0, "attention: offsets came together with offset ", options.offset);
  check_offset(options.offset, "offset");
  check_offset(options.causal.offset(), "the causal offset");
  if (options.offsets) check_integers(options.offsets, "offsets", {problem.B});
  for (int64_t b = 0; b < problem.B; ++b) {
    Sequence& sequence = problem.sequences[static_cast<size_t>(b)];
    if (options.offsets) {
      sequence.offset = integer_at(options.offsets, b);
      check_offset(sequence.offset, concat("offsets[", b, "] ="));
    } else if (kind == Causal::Kind::bottom_right) {
      sequence.offset = sequence.Tk - sequence.Tq;
    } else {
      sequence.offset = problem.causal ? options.causal.offset() : options.offset;
    }
  }
}

void read_lengths(Problem& problem, const TensorView& lengths, const char* name, int64_t Sequence::*length) {
  if (!lengths) return;
  check_integers(lengths, name, {problem.B});
  for (int64_t b = 0; b < problem.B; ++b) {
    Sequence& sequence = problem.sequences[static_cast<size_t>(b)];
    const int64_t value = integer_at(lengths, b);
    require(value >= 0 && value <= sequence.*length, "attention: ", name, "[", b, "] is ", value, ", outside 0..",
            sequence.*length);
    sequence.*length = value;
  }
}

void read_bias_terms(Problem& problem, const AttentionOptions& options, int rank) {
  const DType vector_dtype = problem.is_f64() ? DType::f64 : DType::f32;
  if (options.bias) {
    check_dtype(options.bias, "bias", problem.dtype, DType::f32);
    check_axes(options.bias, "bias", rank, {problem.B, problem.H, problem.Tq, problem.Tk}, kEveryAxis);
    problem.bias = make_operand(options.bias);
  }
  if (options.slopes) {
    check_dtype(options.slopes, "slopes", vector_dtype);
    check_shape(options.slopes, "slopes", {problem.H});
    problem.slopes = make_operand(options.slopes, {-1, 0, -1, -1});
  }
  if (options.sinks) {
    check_dtype(options.sinks, "sinks", vector_dtype);
    check_shape(options.sinks, "sinks", {problem.H});
    problem.sinks = make_operand(options.sinks, {-1, 0, -1, -1});
  }
}

void read_table(Problem& problem, const AttentionOptions& options) {
  if (!options.table) return;
  const TensorView& table = options.table;
  check_dtype(table, "table", problem.is_f64() ? DType::f64 : DType::f32);
  require(table.rank() == 2 && table.size(0) == problem.H, "attention: table must be [", problem.H, ", buckets], got ",
          table.shape());
  check_memory(table, "table");
  const bool bidirectional = options.buckets.kind == Buckets::Kind::bidirectional;
  const int64_t buckets = table.size(1);
  require(buckets >= 1 && (!bidirectional || buckets % 2 == 0), "attention: table must have ",
          bidirectional ? "an even number of bidirectional buckets, at least 2" : "at least 1 causal bucket", ", got ",
          buckets);
  const int64_t exact = (bidirectional ? buckets / 2 : buckets) / 2;
  require(options.buckets.max_distance > exact && options.buckets.max_distance <= kLargestPosition,
          "attention: max_distance must exceed the ", exact, " exact distances of ", buckets, " buckets, got ",
          options.buckets.max_distance);
  problem.table = make_operand(table, {-1, 0, -1, 1});
  problem.table_buckets = buckets;
  problem.buckets = options.buckets;
}

void read_segments(Problem& problem, const AttentionOptions& options) {
  if (!options.query_segment && !options.key_segment) return;
  require(static_cast<bool>(options.query_segment), "attention: key_segment came without query_segment");
  require(static_cast<bool>(options.key_segment), "attention: query_segment came without key_segment");
  check_integers(options.query_segment, "query_segment", {problem.B, problem.Tq});
  check_integers(options.key_segment, "key_segment", {problem.B, problem.Tk});
  problem.query_segment = make_operand(options.query_segment, {0, -1, 1, -1});
  problem.key_segment = make_operand(options.key_segment, {0, -1, -1, 1});
}

void read_block_mask(Problem& problem, const AttentionOptions& options, int rank) {
  const BlockShape block = options.block;
  if (!options.block_mask) {
    require(block.queries == 0 && block.keys == 0, "attention: block ", block.queries, ",", block.keys,
            " came without block_mask");
    return;
  }
  require(block.queries >= 1 && block.keys >= 1, "attention: block_mask needs block sides of at least 1, got ",
          block.queries, ",", block.keys);
  const auto blocks = [](int64_t size, int64_t side) { return size == 0 ? 0 : (size - 1) / side + 1; };
  check_dtype(options.block_mask, "block_mask", DType::boolean, DType::u8);
  check_axes(options.block_mask, "block_mask", rank,
             {problem.B, problem.H, blocks(problem.Tq, block.queries), blocks(problem.Tk, block.keys)},
             {true, true, false, false});
  problem.block_mask = make_operand(options.block_mask);
  problem.block = block;
}

void read_masks(Problem& problem, const AttentionOptions& options, int rank) {
  problem.window_left = window_side(options.window.left, "left");
  problem.window_right = window_side(options.window.right, "right");
  read_lengths(problem, options.key_lengths, "key_lengths", &Sequence::key_length);
  read_lengths(problem, options.query_lengths, "query_lengths", &Sequence::query_length);
  if (options.mask) {
    check_dtype(options.mask, "mask", DType::boolean, DType::u8);
    check_axes(options.mask, "mask", rank, {problem.B, problem.H, problem.Tq, problem.Tk}, kEveryAxis);
    problem.mask = make_operand(options.mask);
  }
  read_segments(problem, options);
  read_block_mask(problem, options, rank);
}

/// What needs the sequences.
void read_options(Problem& problem, const AttentionOptions& options, int rank) {
  read_offsets(problem, options);
  read_bias_terms(problem, options, rank);
  read_table(problem, options);
  read_masks(problem, options, rank);
}

/// Sizes and the operand of q against those of a cache; keys of a problem are those of its longest sequence.
void read_cached_tensors(Problem& problem, const TensorView& q, const KeyValueCache& cache) {
  check_memory(q, "q");
  require_dtype(q.dtype() == cache.dtype(), "attention: q is ", name(q.dtype()), ", the cache ", name(cache.dtype()));
  require(q.rank() == 3 || q.rank() == 4, "attention: q must have 3 or 4 axes with a cache, got ", q.shape());
  const int64_t batch = q.rank() == 4 ? q.size(0) : 1;
  same("the cache", cache.sequences(), "sequences ", "q", batch);
  const int head_axis = q.rank() - 3;
  problem.B = batch;
  problem.H = q.size(head_axis);
  problem.Hkv = cache.kv_heads();
  problem.Tq = q.size(head_axis + 1);
  problem.Tk = cache.longest();
  problem.D = q.size(head_axis + 2);
  problem.Dv = cache.Dv();
  require(problem.D == cache.D(), "attention: the cache has width ", cache.D(), ", q has ", problem.D);
  require(problem.H == 0 || problem.Hkv > 0, "attention: the cache has 0 heads, q has ", problem.H);
  require(problem.Hkv == 0 || problem.H % problem.Hkv == 0, "attention: q has ", problem.H,
          " heads, which is no multiple of the ", problem.Hkv, " of the cache");
  require(cache.storage().set == &kernels(), "attention: the cache was made for ", cache.storage().set->name,
          ", in use is ", kernels().name);
  problem.dtype = q.dtype();
  problem.q = make_operand(q);
  problem.cache = &cache.storage();
}

}  // namespace

Problem check_cached_problem(const TensorView& q, const KeyValueCache& cache, const AttentionOptions& options) {
  require(!options.query_starts && !options.key_starts, "attention: packed sequences came with a cache");
  Problem problem;
  read_cached_tensors(problem, q, cache);
  check_result_sizes(problem);
  check_numbers(problem, options);
  make_sequences(problem, options);
  for (int64_t b = 0; b < problem.B; ++b) {
    Sequence& sequence = problem.sequences[static_cast<size_t>(b)];
    sequence.Tk = sequence.key_length = cache.length(b);
  }
  read_options(problem, options, q.rank());
  return problem;
}

Problem check_problem(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionOptions& options) {
  Problem problem;
  problem.packed = options.query_starts || options.key_starts;
  check_main_ranks(q, k, v, problem.packed);
  read_main_tensors(problem, q, k, v);
  check_result_sizes(problem);
  check_numbers(problem, options);
  if (problem.packed) check_packed(options, problem.Tq, problem.Tk);
  make_sequences(problem, options);
  read_options(problem, options, q.rank());
  return problem;
}

}  // namespace qkv
