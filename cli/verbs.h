// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <string>

#include "cli/options.h"
#include "cli/output.h"
#include "cli/report.h"

namespace qkv::cli {

/// One word after `qkv`. `add` declares its options, `run` does the work and throws Error when it cannot.
struct Verb {
  const char* name;
  const char* summary;
  const char* details;  ///< after the options in its help: what it writes, and an example
  void (*add)(CLI::App& verb, Call& call);
  void (*run)(const Call& call);
};

extern const Verb kAttend;
extern const Verb kGrad;
extern const Verb kJvp;
extern const Verb kSecond;
extern const Verb kProbe;
extern const Verb kLogits;
extern const Verb kEmbed;
extern const Verb kGenerate;
extern const Verb kSearch;
extern const Verb kConvert;
extern const Verb kCost;
extern const Verb kInfo;
extern const Verb kBench;
extern const Verb kTokenize;
extern const Verb kTokenizer;

/// Writes the results unless a check failed, prints the summary, and then throws SystemError if one did.
void finish(const Call& call, const ProblemFile& problem, const Arrays& results, const Output& output,
            const Summary& summary);

/// Seconds since it was made.
class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace qkv::cli
