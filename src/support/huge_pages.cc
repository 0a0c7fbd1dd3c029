// SPDX-License-Identifier: Apache-2.0
#include "support/huge_pages.h"

#include <sys/mman.h>

namespace qkv {

void prefer_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] int64_t bytes) {
#ifdef MADV_HUGEPAGE
  if (bytes < kHugePage) return;
  const auto address = reinterpret_cast<uintptr_t>(memory);
  const auto page = static_cast<uintptr_t>(kHugePage);
  const uintptr_t begin = (address + page - 1) / page * page;
  const uintptr_t end = (address + static_cast<uintptr_t>(bytes)) / page * page;
  // It is a wish: a system that refuses it gives ordinary pages.
  if (begin < end) static_cast<void>(madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE));
#endif
}

}  // namespace qkv
