// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "python/src/arrays.h"
#include "qkv/attention/options.h"

namespace qkv::python {

/// The keyword arguments of every attention function, as their signatures show them.
extern const char* const kOptionsSignature;
/// And as their docstrings explain them.
extern const char* const kOptionsText;

/// Reads the keyword arguments; `f64` says whether numbers given as lists become float64 rather than float32. Throws
/// TypeError for an unknown name, ValueError or TypeError for a value that cannot be.
AttentionOptions parse_options(const nb::kwargs& keywords, bool f64, Inputs& inputs);

}  // namespace qkv::python
