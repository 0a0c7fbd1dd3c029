// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace qkv {

/// The call or its content is wrong. The message is one sentence that names the thing, what was expected and what came.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Attention got an array of a dtype that it does not take there.
class DtypeError : public Error {
 public:
  using Error::Error;
};

/// The call is right but the machine refuses: a missing file, a permission, a full disk, no memory.
class SystemError : public Error {
 public:
  using Error::Error;
};

/// Memory is not to be had.
class MemoryError : public SystemError {
 public:
  using SystemError::SystemError;
};

template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Error(concat(parts...));
}

template <class... Parts>
void require(bool condition, const Parts&... parts) {
  if (!condition) fail(parts...);
}

template <class... Parts>
void require_dtype(bool condition, const Parts&... parts) {
  if (!condition) throw DtypeError(concat(parts...));
}

}  // namespace qkv
