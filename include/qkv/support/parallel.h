// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>

namespace qkv {

/// CPUs this process may use: its affinity mask, capped by the container's CPU quota. At least 1; read once.
int available_threads();

/// A reference to a callable, valid for the length of a call.
class ParallelBody {
 public:
  template <class F>
  ParallelBody(const F& f)  // NOLINT(google-explicit-constructor)
      : object_(&f),
        call_([](const void* object, int64_t index, int worker) { (*static_cast<const F*>(object))(index, worker); }) {}
  void operator()(int64_t index, int worker) const { call_(object_, index, worker); }

 private:
  const void* object_;
  void (*call_)(const void*, int64_t, int);
};

/// Workers a parallel_for over `count` indices with `threads` (0: available_threads()) will use at most:
/// the number of scratch areas a caller must provide.
int parallel_workers(int64_t count, int threads);

/// Thrown by parallel_for, and so by any call of the library, when the thread's InterruptCheck asked for it. Outputs
/// are then partly written.
class Interrupted : public std::exception {
 public:
  const char* what() const noexcept override { return "interrupted"; }
};

/// While it lives, loops that this thread starts ask `wanted` between indices whether to stop. It is asked often: it
/// must be cheap.
class InterruptCheck {
 public:
  explicit InterruptCheck(bool (*wanted)());
  ~InterruptCheck();
  InterruptCheck(const InterruptCheck&) = delete;
  InterruptCheck& operator=(const InterruptCheck&) = delete;

 private:
  bool (*before_)();
};

/// Calls body(index, worker) once for each index in [0, count), with worker in [0, parallel_workers(count, threads)).
/// Indices are handed out in ascending order, so an index may wait for any smaller one.
/// Inside another parallel region it runs serially. The first exception (of the smallest index that threw) is rethrown
/// after all workers have stopped; indices not yet begun are then skipped. Safe after fork().
void parallel_for(int64_t count, int threads, ParallelBody body);

}  // namespace qkv
