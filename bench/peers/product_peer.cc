// SPDX-License-Identifier: Apache-2.0
#include "product_peer.h"

#include <time.h>

#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "machine.h"
#include "memory.h"
#include "qkv/kernels/matmul.h"
#include "qkv/support/error.h"
#include "qkv/tensor/safetensors.h"

namespace qkv::bench {
namespace {

using nlohmann::json;

/// One case that was prepared.
struct Prepared {
  TensorFile inputs;
  std::vector<Tensor> results;
  std::vector<std::function<void()>> calls;
  int threads = 1;

  void call() const {
    for (const auto& one : calls) one();
  }
};

double process_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Largest difference over the largest element that was expected; both row-major.
double relative_error(const TensorView& result, const TensorView& expected) {
  double difference = 0, largest = 0;
  for (int64_t e = 0; e < expected.elements(); ++e) {
    const double value = load_as_double(expected.dtype(), expected.at(e));
    const double error = std::fabs(load_as_double(result.dtype(), result.at(e)) - value);
    difference = std::isnan(error) ? HUGE_VAL : std::max(difference, error);
    largest = std::max(largest, std::fabs(value));
  }
  return difference / std::max(largest, 1e-30);
}

class Server {
 public:
  explicit Server(const ProductLibrary& library) : library_(library) {}

  json answer(const json& request) {
    if (request["do"] == "hello") {
      json hello = {{"engine", library_.engine}, {"version", library_.version}};
      if (!library_.absent.empty()) hello["refused"] = library_.absent;
      return hello;
    }
    try {
      return request["do"] == "prepare" ? prepare(request) : time(request);
    } catch (const std::exception& error) {
      return {{"refused", error.what()}};
    }
  }

 private:
  json prepare(const json& request) {
    const json& keys = request["keys"];
    require(keys.value("op", "") == "matmul", "products only");
    require(!keys.contains("linear"), "linear: not given to other libraries");
    Prepared one;
    one.threads = request["threads"];
    one.inputs = read_safetensors(request["file"]);
    one.results.reserve(3);
    library_.use_threads(one.threads);
    const bool prepared = keys.value("prepared", "") == "1";
    const TensorView a = one.inputs.tensors["a"].view(), b = one.inputs.tensors["b"].view();
    TensorView expected;
    if (request["mode"] != "backward") {
      add(one, a, b, prepared);
      expected = one.inputs.tensors["c"].view();
    }
    if (request["mode"] != "forward") {
      const TensorView d_c = one.inputs.tensors["d_c"].view();
      add(one, d_c, transposed(b), false);
      add(one, transposed(a), d_c, false);
      if (!expected) expected = one.inputs.tensors["d_a"].view();
    }
    const std::optional<int64_t> growth = peak_growth([&] { one.call(); });
    json answer = {{"id", prepared_.size()},
                   {"how", library_.how},
                   {"error", relative_error(one.results.front().view(), expected)}};
    if (growth) answer["memory_growth"] = *growth;
    prepared_.push_back(std::move(one));
    return answer;
  }

  void add(Prepared& one, const TensorView& x, const TensorView& y, bool prepared) {
    one.results.emplace_back(x.dtype(), Dims{x.size(0), y.size(1)});
    const MutableTensorView out = one.results.back().mutable_view();
    fill_zero(out);
    one.calls.push_back(library_.bind({x, y, out, prepared}));
  }

  json time(const json& request) {
    const Prepared& one = prepared_.at(request["id"].get<size_t>());
    const int64_t calls = request["calls"];
    library_.use_threads(one.threads);
    if (calls > 1) one.call();  // what ran before has taken the caches
    const double start = now(), cpu_start = process_seconds();
    for (int64_t c = 0; c < calls; ++c) one.call();
    const double count = static_cast<double>(calls);
    return {{"seconds", (now() - start) / count}, {"cpu_seconds", (process_seconds() - cpu_start) / count}};
  }

  ProductLibrary library_;
  std::vector<Prepared> prepared_;
};

}  // namespace

int serve(const ProductLibrary& library) {
  Server server(library);
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << server.answer(json::parse(line)).dump() << std::endl;
  }
  return 0;
}

}  // namespace qkv::bench
