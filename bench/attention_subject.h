// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "inputs.h"
#include "subject.h"

namespace qkv::bench {

class AttentionSubject : public Subject {
 public:
  explicit AttentionSubject(const Case& which);
  Work work() const override { return work_; }
  Verdict verify(const std::vector<int>& threads) override;
  std::function<void()> call(Mode mode, int threads) override;
  std::map<std::string, TensorView> tensors() override;

 private:
  Inputs inputs_;
  Work work_;
};

}  // namespace qkv::bench
