// SPDX-License-Identifier: Apache-2.0
#include "cli/output.h"

#include <system_error>
#include <utility>

#include "cli/clean_up.h"
#include "cli/output_place.h"
#include "qkv/support/error.h"
#include "qkv/tensor/npy.h"
#include "qkv/tensor/safetensors.h"
#include "qkv/tensor/staging_folder.h"

namespace qkv::cli {
namespace {

namespace fs = std::filesystem;

void check_system(const std::error_code& error, const fs::path& path, const char* action) {
  if (error) throw SystemError(concat(path.string(), ": cannot ", action, ": ", error.message()));
}

Output::Kind kind_of(const std::string& name) {
  if (name.ends_with(".safetensors")) return Output::Kind::safetensors;
  return name.ends_with(".npy") ? Output::Kind::npy : Output::Kind::folder;
}

fs::path place_of(const std::string& name) {
  fs::path path = name;
  if (!path.has_filename()) path = path.parent_path();
  std::error_code error;
  if (fs::is_symlink(fs::symlink_status(path, error))) {
    const fs::path target = fs::canonical(path, error);
    if (!error) return target;
  }
  return path;
}

/// Moves files into a folder one by one, each replacing its predecessor in one step, and back again unless all arrived.
class Exchange {
 public:
  Exchange(fs::path from, fs::path to) : from_(std::move(from)), to_(std::move(to)) {}
  ~Exchange() {
    if (!finished_) undo();
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  void move(const std::string& file) {
    std::error_code error;
    const bool replaces = fs::exists(fs::symlink_status(to_ / file, error));
    // A second name keeps the old content alive. Without hard links there is no way back, and none is needed to go on.
    if (replaces) fs::create_hard_link(to_ / file, backup(file), error);
    fs::rename(from_ / file, to_ / file, error);
    check_system(error, to_ / file, replaces ? "replace this file" : "create this file");
    moved_.emplace_back(file, replaces);
  }
  void finish() { finished_ = true; }

 private:
  fs::path backup(const std::string& file) const { return from_ / (file + ".old"); }
  void undo() const noexcept {
    std::error_code ignored;
    for (const auto& [file, replaced] : moved_) {
      if (replaced) {
        fs::rename(backup(file), to_ / file, ignored);
      } else {
        fs::remove(to_ / file, ignored);
      }
    }
  }
  fs::path from_, to_;
  std::vector<std::pair<std::string, bool>> moved_;
  bool finished_ = false;
};

}  // namespace

Output::Output(const std::string& path, const std::vector<std::string>& inputs, const Arrays& arrays) : name_(path) {
  require(!path.empty(), "-o: expected a path, got ''");
  kind_ = kind_of(path);
  place_ = place_of(path);
  check_inputs(inputs, arrays);
  check_place(arrays);
  check_arrays(arrays);
}

void Output::check_place(const Arrays& arrays) const {
  std::error_code error;
  const fs::file_status status = fs::status(place_, error);
  if (!fs::exists(status)) return check_output_place(name_, place_);
  if (kind_ == Kind::folder) {
    require(fs::is_directory(status), name_,
            ": exists and is not a folder; expected a name that ends in .safetensors, or a folder for .npy files");
    for (const auto& [name, tensor] : arrays) {
      const fs::path file = place_ / (name + ".npy");
      require(!fs::is_directory(fs::symlink_status(file, error)), file.string(), ": a folder stands where a file goes");
    }
  } else {
    require(!fs::is_directory(status), name_, ": is a folder; expected a file, or a name without ",
            kind_ == Kind::npy ? ".npy" : ".safetensors");
  }
}

void Output::check_arrays(const Arrays& arrays) const {
  if (kind_ == Kind::safetensors) return;
  if (kind_ == Kind::npy) {
    for (const auto& [name, tensor] : arrays) {
      require(name == "out" || name == "lse", name_, ": a .npy file holds one array, not ", name,
              " too; expected a name that ends in .safetensors, or a folder");
    }
  }
  for (const auto& [name, tensor] : arrays) {
    require(tensor.dtype() != DType::bf16, name_, ": ", name,
            " is bf16, for which .npy has no name; expected a name that ends in .safetensors");
  }
}

void Output::check_inputs(const std::vector<std::string>& inputs, const Arrays& arrays) const {
  std::vector<fs::path> outputs = {place_};
  if (kind_ == Kind::folder) {
    for (const auto& [name, tensor] : arrays) outputs.push_back(place_ / (name + ".npy"));
  }
  for (const std::string& input : inputs) {
    for (const fs::path& output : outputs) {
      std::error_code error;  // equivalent() fails where a path does not exist, and then they differ
      require(!fs::equivalent(input, output, error) || error, name_, ": this output is the input ", input,
              ", which is never overwritten");
    }
  }
}

void Output::write(const Arrays& arrays) const {
  if (kind_ == Kind::folder) return write_folder(arrays);
  const CleanUp clean_up(place_);
  if (kind_ == Kind::npy) return write_npy(place_.string(), arrays.at("out").view());
  std::map<std::string, TensorView> views;
  for (const auto& [name, tensor] : arrays) views[name] = tensor.view();
  write_safetensors(place_.string(), views);
}

void Output::write_folder(const Arrays& arrays) const {
  std::error_code error;
  const bool exists = fs::is_directory(place_, error);
  // Inside the folder where there is one, so that every rename stays on one file system.
  StagingFolder staging(exists ? place_ : folder_around(place_));
  CleanUp clean_up(staging.path());
  for (const auto& [name, tensor] : arrays) write_npy((staging.path() / (name + ".npy")).string(), tensor.view());
  if (!exists) return staging.become(place_);
  const auto hold = clean_up.hold();  // a folder holds the old arrays or the new ones
  Exchange exchange(staging.path(), place_);
  for (const auto& [name, tensor] : arrays) exchange.move(name + ".npy");
  exchange.finish();
}

}  // namespace qkv::cli
