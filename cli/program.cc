// SPDX-License-Identifier: Apache-2.0
#include "cli/program.h"

#include <signal.h>
#include <unistd.h>

#include <exception>
#include <iostream>
#include <new>

#include "cli/parser.h"
#include "qkv/support/error.h"

namespace qkv::cli {
namespace {

/// Exit codes: the machine refuses, or a check failed; the call or its content is wrong.
enum Exit { kDone = 0, kMachine = 1, kCall = 2 };

/// One line, whatever a file name or a tensor name holds.
std::string one_line(const std::string& text) {
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      line += c;
    } else {
      constexpr const char* kDigits = "0123456789abcdef";
      line += c == '\n' ? "\\n" : std::string("\\x") + kDigits[byte >> 4] + kDigits[byte & 15];
    }
  }
  return line;
}

int report(int code, const std::string& what) {
  std::cerr << "qkv: error: " << one_line(what) << std::endl;
  return code;
}

/// Inputs are mapped files. One that another process cuts short while we read has no bytes to give.
void on_lost_input(int) {
  constexpr char kText[] = "qkv: error: an input file became shorter while it was being read\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kText, sizeof(kText) - 1);
  ::_exit(kMachine);
}

}  // namespace

int program(int argc, char** argv) {
  ::signal(SIGXFSZ, SIG_IGN);  // a file size limit is then an error of write(), with a message
  ::signal(SIGPIPE, SIG_IGN);  // and so is a reader of standard output that left
  ::signal(SIGBUS, on_lost_input);
  try {
    run(argc, argv);
    return kDone;
  } catch (const SystemError& error) {
    return report(kMachine, error.what());
  } catch (const Error& error) {
    return report(kCall, error.what());
  } catch (const std::bad_alloc&) {
    return report(kMachine, "out of memory");
  } catch (const std::exception& error) {
    return report(kMachine, error.what());
  }
}

}  // namespace qkv::cli
