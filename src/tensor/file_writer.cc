// SPDX-License-Identifier: Apache-2.0
#include "tensor/file_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <system_error>

#include "qkv/support/error.h"
#include "qkv/tensor/tensor.h"

namespace qkv {
namespace {

constexpr size_t kBuffer = size_t{1} << 20;  // large enough that the cost of a system call vanishes

std::string resolved(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr), &std::free);
  return real ? std::string(real.get()) : path;
}

}  // namespace

FileWriter::FileWriter(const std::string& path) : path_(path), target_(resolved(path)) {
  if (path.empty()) refuse(ENOENT);
  buffer_.reserve(kBuffer);
  struct stat status {};
  if (::stat(target_.c_str(), &status) != 0) {
    if (errno != ENOENT) refuse(errno);
    open_beside(0666);  // less what the umask takes
    return;
  }
  if (S_ISDIR(status.st_mode)) refuse(EISDIR);
  if (::access(target_.c_str(), W_OK) != 0) refuse(errno);
  if (S_ISREG(status.st_mode)) {
    open_beside(0600);
    if (::fchmod(descriptor_, status.st_mode & 0777) != 0) {
      const int error = errno;
      discard();
      refuse(error);
    }
    return;
  }
  // Renaming onto a device would replace it.
  descriptor_ = ::open(target_.c_str(), O_WRONLY | O_CLOEXEC);
  if (descriptor_ < 0) refuse(errno);
}

FileWriter::~FileWriter() { discard(); }

void FileWriter::open_beside(unsigned mode) {
  static std::atomic<unsigned> serial{0};
  const size_t slash = target_.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : target_.substr(0, slash + 1);
  do {
    // A short name of its own: the target's may already be as long as the file system allows.
    temporary_ = concat(folder, ".qkv-", ::getpid(), "-", serial++, ".tmp");
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  } while (descriptor_ < 0 && errno == EEXIST);
  if (descriptor_ >= 0) return;
  temporary_.clear();
  refuse(errno);
}

void FileWriter::append(const void* bytes, size_t size) {
  if (size >= kBuffer) {
    flush();
    write_out(static_cast<const char*>(bytes), size);
    return;
  }
  if (size > kBuffer - buffer_.size()) flush();
  buffer_.insert(buffer_.end(), static_cast<const char*>(bytes), static_cast<const char*>(bytes) + size);
}

void FileWriter::append(const TensorView& tensor) {
  const int64_t elements = tensor.elements();
  if (elements == 0) return;
  const int64_t width = size_of(tensor.dtype());
  const bool truth = tensor.dtype() == DType::boolean;
  if (tensor.is_contiguous() && !truth) return append(tensor.data(), static_cast<size_t>(elements * width));
  const int64_t limit = static_cast<int64_t>(kBuffer) / width;
  if (elements <= limit) {
    Tensor rows(tensor.dtype(), tensor.shape());
    copy(tensor, rows.mutable_view());
    unsigned char* bytes = static_cast<unsigned char*>(rows.mutable_view().data());
    if (truth) std::transform(bytes, bytes + elements, bytes, [](unsigned char b) { return b != 0 ? 1 : 0; });
    return append(bytes, static_cast<size_t>(elements * width));
  }
  // Too much for one copy: piece by piece along the outermost axis, and each piece likewise.
  Dims shape, strides;
  for (int axis = 1; axis < tensor.rank(); ++axis) {
    shape.push_back(tensor.size(axis));
    strides.push_back(tensor.stride(axis));
  }
  const int64_t step = tensor.rank() == 1 ? limit : 1;
  for (int64_t i = 0; i < tensor.size(0); i += step) {
    if (tensor.rank() > 1) {
      append(TensorView(tensor.dtype(), tensor.at(i * tensor.stride(0)), shape, strides));
    } else {
      append(TensorView(tensor.dtype(), tensor.at(i * tensor.stride(0)), Dims{std::min(step, tensor.size(0) - i)},
                        tensor.strides()));
    }
  }
}

void FileWriter::flush() {
  write_out(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void FileWriter::write_out(const char* bytes, size_t size) {
  while (size > 0) {
    const ssize_t written = ::write(descriptor_, bytes, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) refuse(errno);
    bytes += written;
    size -= static_cast<size_t>(written);
  }
}

void FileWriter::commit() {
  flush();
  // Some file systems report a full disk only here.
  const int closed = ::close(descriptor_);
  descriptor_ = -1;
  if (closed != 0 && errno != EINTR) refuse(errno);
  if (temporary_.empty()) return;
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) refuse(errno);
  temporary_.clear();
}

void FileWriter::discard() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

void FileWriter::refuse(int error) const {
  throw SystemError(concat(path_, ": cannot be written: ", std::generic_category().message(error)));
}

}  // namespace qkv
