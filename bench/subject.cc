// SPDX-License-Identifier: Apache-2.0
#include "subject.h"

#include <algorithm>

#include "attention_subject.h"
#include "matmul_subject.h"
#include "qkv/support/error.h"

namespace qkv::bench {

std::shared_ptr<Subject> make_subject(const Case& spec) {
  if (spec.operation == Operation::matmul) return std::make_shared<MatmulSubject>(spec);
  return std::make_shared<AttentionSubject>(spec);
}

namespace {

std::vector<char> bytes_of(const std::vector<const Tensor*>& tensors) {
  std::vector<char> bytes;
  for (const Tensor* tensor : tensors) {
    if (!*tensor) continue;
    const char* begin = static_cast<const char*>(tensor->view().data());
    bytes.insert(bytes.end(), begin, begin + tensor->view().elements() * size_of(tensor->dtype()));
  }
  return bytes;
}

}  // namespace

void require_same_bits(Verdict& verdict, const std::vector<const Tensor*>& results, const std::vector<int>& threads,
                       const std::function<void(int)>& call) {
  call(threads.front());
  const std::vector<char> first = bytes_of(results);
  for (size_t t = 1; t < threads.size() && verdict.passed; ++t) {
    call(threads[t]);
    if (bytes_of(results) == first) continue;
    verdict.passed = false;
    verdict.failure = concat("other bits with ", threads[t], " threads than with ", threads.front());
  }
}

void Comparisons::add(const std::vector<AccuracyComparison>& parts) {
  for (const AccuracyComparison& part : parts) {
    const auto same = [&](const AccuracyComparison& other) { return other.name == part.name; };
    const auto found = std::find_if(all_.begin(), all_.end(), same);
    if (found == all_.end()) {
      all_.push_back(part);
      continue;
    }
    found->error = std::max(found->error, part.error);
    found->plain_error = std::max(found->plain_error, part.plain_error);
    found->allowance = std::max(found->allowance, part.allowance);
  }
}

void Comparisons::judge(Verdict& verdict, Verdict::Ratio& worst) const {
  for (const AccuracyComparison& one : all_) {
    if (one.plain_error > 0 && one.ratio() > worst.value) worst = {one.ratio(), one.name};
    if (one.holds() || !verdict.passed) continue;
    verdict.passed = false;
    verdict.failure = one.text();
  }
}

}  // namespace qkv::bench
