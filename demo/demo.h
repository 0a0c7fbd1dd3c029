// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "sentence.h"

namespace demo {

// The parts of the demo, in order. Each prints what it finds; those that compare say whether it is as it should be.

/// Attends and takes gradients, beside what PyTorch made of the same numbers.
bool show_agreement(const Sentence& sentence);
/// Which words each word reads, in heads that a reader can follow.
void show_heads(const Sentence& sentence);
/// What hiding a word does that zeroing its value does not.
bool show_removals(const Sentence& sentence);
/// The same operation at `keys` queries and keys: time, memory, accuracy, and the same bits for any number of threads.
bool show_long(int64_t keys);

}  // namespace demo
