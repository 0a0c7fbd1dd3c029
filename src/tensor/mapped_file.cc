// SPDX-License-Identifier: Apache-2.0
#include "tensor/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "qkv/support/error.h"

namespace qkv {
namespace {

struct Descriptor {
  int number;
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
};

[[noreturn]] void refuse(const std::string& path, const char* what, int error) {
  throw SystemError(concat(path, ": ", what, ": ", std::generic_category().message(error)));
}

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path) {
  // O_NONBLOCK: opening a pipe nobody writes to must not wait; for regular files it means nothing.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.number < 0) refuse(path, "cannot be opened", errno);
  struct stat status {};
  if (::fstat(file.number, &status) != 0) refuse(path, "cannot be opened", errno);
  if (S_ISDIR(status.st_mode)) refuse(path, "cannot be opened", EISDIR);
  if (!S_ISREG(status.st_mode)) throw SystemError(path + ": cannot be opened: not a regular file");
  const size_t size = static_cast<size_t>(status.st_size);
  if (size == 0) return std::make_shared<const MappedFile>("", size);
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.number, 0);
  if (memory == MAP_FAILED) refuse(path, "cannot be mapped", errno);
  try {
    return std::make_shared<const MappedFile>(memory, size);
  } catch (...) {
    ::munmap(memory, size);
    throw;
  }
}

MappedFile::~MappedFile() {
  if (size_ > 0) ::munmap(const_cast<void*>(data_), size_);
}

}  // namespace qkv
