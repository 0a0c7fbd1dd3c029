// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>

#include "qkv/support/parallel.h"

namespace qkv::python {

/// When the running call last looked for signals.
inline thread_local std::chrono::steady_clock::time_point last_look;

/// True when a Python signal handler has raised, as the one of Ctrl-C does. Looks every 20 ms.
inline bool signal_arrived() {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_look < std::chrono::milliseconds(20)) return false;
  last_look = now;
  const nanobind::gil_scoped_acquire acquire;
  return PyErr_CheckSignals() != 0;
}

/// Runs `call`, which touches no Python object, without the interpreter's lock; Ctrl-C ends it with KeyboardInterrupt.
template <class F>
void run(F call) {
  bool is_interrupted = false;
  {
    const nanobind::gil_scoped_release release;
    last_look = std::chrono::steady_clock::now();
    const InterruptCheck check(&signal_arrived);
    try {
      call();
    } catch (const Interrupted&) {
      is_interrupted = true;
    }
  }
  if (is_interrupted) throw nanobind::python_error();
}

}  // namespace qkv::python
