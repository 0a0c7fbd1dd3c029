// SPDX-License-Identifier: Apache-2.0
// Reading memory at its bandwidth while computing.
//
// The hardware reads ahead of a core that takes lines in the order of their addresses, from the second line of a page
// to its end, and not across. So loops here take lines in order, and touch the first lines of every page some pages
// before they come to it: that translates the address and starts the reading ahead. Measured on one Zen 4 core beyond
// the last cache, four multiply-adds a line: 35 GB/s on huge pages and on pages of 4 KiB, where it is 20 on the latter
// without touching; asking for every line ahead, into L1 or L2, gives 22 to 30.
#if defined(QKV_READ_AHEAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_READ_AHEAD_INL_H_
#undef QKV_READ_AHEAD_INL_H_
#else
#define QKV_READ_AHEAD_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "kernels/attention_kernels.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

constexpr int64_t kLineBytes = 64;
constexpr int64_t kPageBytes = 4096;
constexpr int64_t LinesOf(int64_t bytes) { return (bytes + kLineBytes - 1) / kLineBytes; }
/// Measured: 8 pages give 30 GB/s, 16 to 32 give 33 to 35.
constexpr int64_t kAheadBytes = 24 * kPageBytes;

/// Memory that is read in order: `bytes` at a time, `stride` from each to the next, `count` times; then what begins at
/// `then`, if that is known.
struct ReadOrder {
  const char* begin;
  int64_t bytes;
  int64_t stride;
  int64_t count;
  const char* then;
};

/// Rows next to one another count as one.
HWY_INLINE ReadOrder OrderOfRows(const StoredRows& rows, const void* then) {
  const int64_t bytes = rows.columns * size_of(rows.dtype);
  const int64_t stride = rows.row_stride * size_of(rows.dtype);
  const char* begin = static_cast<const char*>(rows.data);
  const char* next = static_cast<const char*>(then);
  if (bytes == stride) return {begin, bytes * rows.rows, 0, 1, next};
  return {begin, bytes, stride, rows.rows, next};
}

/// Goes through memory in order, line by line, and starts the pages that lie ahead.
class LinesAhead {
 public:
  explicit LinesAhead(const ReadOrder& order)
      : line_(order.begin),
        end_(order.begin + order.bytes),
        order_(order),
        last_(order.begin + (order.count - 1) * order.stride + order.bytes),
        ahead_(order.count == 1 ? kAheadBytes
                                : std::max<int64_t>(1, kAheadBytes / std::max<int64_t>(1, order.bytes)) * order.stride),
        left_(order.bytes > 0 ? order.count : 0) {}

  /// The next lines: a word of each is loaded. Past the end nothing is.
  template <int64_t kLines>
  HWY_INLINE void Load() {
    if (HWY_UNLIKELY(end_ - line_ <= kLines * kLineBytes)) return Load(kLines);
    if (InPage() < kLines * kLineBytes) Start();
#pragma GCC unroll 16
    for (int64_t n = 0; n < kLines; ++n) Touch(line_ + n * kLineBytes);
    line_ += kLines * kLineBytes;
  }
  HWY_NOINLINE void Load(int64_t lines) {
    for (int64_t n = 0; n < lines && left_ > 0; ++n) {
      if (InPage() < kLineBytes || line_ == end_ - order_.bytes) Start();
      Touch(line_);
      line_ += kLineBytes;
      if (HWY_UNLIKELY(line_ >= end_)) NextRun();
    }
  }
  /// Lines that are taken need not be asked for.
  HWY_INLINE void Ask(const void*) const {}
  /// The next `bytes`, gaps not counted, are read by others: starts the pages alone.
  void Pass(int64_t bytes) {
    while (bytes > 0 && left_ > 0) {
      const int64_t part = std::min(bytes, std::min<int64_t>(end_ - line_, kPageBytes - InPage()));
      if (InPage() == 0 || line_ == end_ - order_.bytes) Start();
      bytes -= part;
      line_ += part;
      if (line_ >= end_) NextRun();
    }
  }

 private:
  static HWY_INLINE void Touch(const char* line) {
    static_cast<void>(*reinterpret_cast<const volatile uint8_t*>(line));
  }
  HWY_INLINE int64_t InPage() const {
    return static_cast<int64_t>(reinterpret_cast<uintptr_t>(line_) % static_cast<uintptr_t>(kPageBytes));
  }
  HWY_INLINE void Start() const {
    const char* page = line_ + ahead_;
    if (page >= last_) page = order_.then == nullptr ? page : order_.then + (page - last_);
    __builtin_prefetch(page, 0, 3);
    __builtin_prefetch(page + 2 * kLineBytes, 0, 3);
  }
  void NextRun() {
    if (--left_ == 0) return;
    line_ = end_ - order_.bytes + order_.stride;
    end_ += order_.stride;
  }

  const char* line_;
  const char* end_;
  ReadOrder order_;
  const char* last_;
  int64_t ahead_;
  int64_t left_;
};

/// Asks for rows that are wanted soon, into L2, some lines at a time between other work. Measured on Zen 4, forward
/// passes of many heads beyond the last cache: 28 to 40 % of the peak at 32 keys of width 32, 67 to 75 % at 128 of 64.
class AskAhead {
 public:
  /// `steps`: how often Ask will be called.
  AskAhead(const RowsAhead& ahead, int64_t steps) : next_(ahead.rows), end_(ahead.rows + std::size(ahead.rows)) {
    int64_t lines = 0;
    for (const StoredRows& rows : ahead.rows) {
      const ReadOrder order = OrderOfRows(rows, nullptr);
      lines += order.count * LinesOf(order.bytes);
    }
    lines_ = (lines + steps - 1) / steps;
    NextRows();
  }
  void Ask() {
    for (int64_t lines = lines_; lines > 0 && left_ > 0;) {
      const int64_t run = std::min(lines, LinesOf(end_of_run_ - line_));
      for (int64_t n = 0; n < run; ++n) __builtin_prefetch(line_ + n * kLineBytes, 0, 2);
      lines -= run;
      line_ += run * kLineBytes;
      if (line_ < end_of_run_) continue;
      line_ = end_of_run_ - order_.bytes + order_.stride;
      end_of_run_ += order_.stride;
      if (--left_ == 0) NextRows();
    }
  }

 private:
  void NextRows() {
    for (; next_ != end_ && left_ == 0; ++next_) {
      order_ = OrderOfRows(*next_, nullptr);
      line_ = order_.begin;
      end_of_run_ = line_ + order_.bytes;
      left_ = order_.bytes > 0 ? order_.count : 0;
    }
  }

  const StoredRows* next_;
  const StoredRows* end_;
  int64_t lines_ = 0;  ///< of one step
  ReadOrder order_ = {};
  const char* line_ = nullptr;
  const char* end_of_run_ = nullptr;
  int64_t left_ = 0;  ///< runs of the current rows
};

/// For vectors too far apart to be read one after the other: each is read for itself, and every line of it is asked
/// for this many bytes before it is taken, into L2, because such vectors meet in few sets of L1.
class EachAhead {
 public:
  template <int64_t kLines>
  HWY_INLINE void Load() const {}
  HWY_INLINE void Load(int64_t) const {}
  HWY_INLINE void Ask(const void* now) const {
    __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(now) + kBytes), 0, 2);
  }

 private:
  static constexpr uintptr_t kBytes = 1536;
};

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_READ_AHEAD_INL_H_
