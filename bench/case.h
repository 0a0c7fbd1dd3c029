// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "qkv/attention/options.h"

namespace qkv::bench {

/// What one timed call does.
enum class Mode : uint8_t {
  forward,   ///< attention_forward with lse
  backward,  ///< attention_backward from a kept state
  both,      ///< attention_forward keeping its state, then attention_backward
  jvp,       ///< attention_jvp from a kept state, along tangents of q, k and v
  second,    ///< attention_second_order from a kept state, for cotangents of d_q, d_k and d_v
};
std::string name(Mode mode);

enum class Operation : uint8_t { attention, matmul };

enum class Layout : uint8_t {
  contiguous,   ///< [B, H, T, D] in memory
  token_major,  ///< [B, T, H, D]
  transposed,   ///< [B, H, D, T]: the innermost dimension is not contiguous
};

/// One line of a case file: `name key=value ...`. `case_help()` describes the keys.
struct Case {
  std::string name;
  std::string line;                         ///< as written
  std::map<std::string, std::string> keys;  ///< what the line says, key by key
  double check_share = 1;                   ///< of the rows that the check samples; the program's, not the file's
  std::string against;                      ///< name of the case it is compared with; empty for none
  std::vector<Mode> modes = {Mode::forward};
  std::vector<int> threads;  ///< empty: 1 and all

  Operation operation = Operation::attention;
  int64_t M = 1, N = 1, K = 1;  ///< of a matmul: [M, K] by [K, N]
  bool prepared = false;        ///< weights [K, N] packed beforehand
  bool columns = false;         ///< weights are stored [N, K]
  bool linear = false;          ///< bias, gelu_tanh and residual join the product

  int64_t B = 1, H = 1, Hkv = 1, Tq = 1, Tk = 1, D = 64, Dv = 64;
  DType dtype = DType::f32;
  Layout layout = Layout::contiguous;
  bool cached = false;  ///< keys and values lie in a KeyValueCache; forward alone
  int64_t packed = 0;   ///< sequences that Tq and Tk are cut into; 0 is a padded problem

  std::optional<double> scale;
  double softcap = 0;
  Causal causal;
  Window window;
  int64_t offset = 0;
  double dropout = 0;

  std::string bias;  ///< which axes are full, such as "1hqk"; empty for none
  std::string mask;
  double mask_share = 0.5;  ///< share of visible keys of the mask
  int64_t mask_tile = 1;    ///< side of the square tiles that the mask shows or hides
  bool alibi = false;
  bool sinks = false;
  int64_t table = 0;  ///< buckets of the relative table
  Buckets buckets;
  int64_t segments = 0;
  std::optional<double> key_lengths;  ///< share of the shortest sequence of the batch
  std::optional<double> query_lengths;
  BlockShape block;
  double block_share = 0.5;
  std::vector<std::string> trainable;  ///< which of bias slopes table sinks scale want a gradient

  bool has_mode(Mode mode) const;
  bool trains(const std::string& what) const;
};

/// Reads a case file; throws Error naming file, line and key.
std::vector<Case> read_cases(const std::string& path);
/// The keys of a case file, one a line.
std::string case_help();

}  // namespace qkv::bench
