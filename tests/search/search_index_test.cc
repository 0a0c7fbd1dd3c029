// SPDX-License-Identifier: Apache-2.0
// With a model that knows letters: an embedding counts how often each of them occurs.
#include "qkv/search/search_index.h"

#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "qkv/support/error.h"
#include "qkv/tensor/safetensors.h"
#include "tensor/files.h"

namespace qkv {
namespace {

namespace fs = std::filesystem;

class SearchIndexes : public testing::Test {
 protected:
  SearchIndexes() : index_path_(folder_ / "index.safetensors") { fs::create_directories(folder_ / "texts/inner"); }

  void write(const std::string& name, const std::string& text) { write_bytes(folder_ / ("texts/" + name), text); }
  std::string texts() const { return folder_ / "texts"; }

  SearchModel model() {
    return {.name = "letters",
            .width = 26,
            .embed =
                [this](std::span<const std::string> texts) {
                  embedded_ += static_cast<int64_t>(texts.size());
                  Tensor rows(DType::f32, {static_cast<int64_t>(texts.size()), 26});
                  auto* row = static_cast<float*>(rows.mutable_view().data());
                  for (const std::string& text : texts) {
                    for (const char c : text) {
                      if (c >= 'a' && c <= 'z') row[c - 'a'] += 1;
                    }
                    row += 26;
                  }
                  return rows;
                },
            .count_tokens = [](std::string_view text) { return static_cast<int64_t>(text.size()) / 4; }};
  }

  /// The names of files found, best first.
  static std::vector<std::string> names(const std::vector<SearchResult>& results) {
    std::vector<std::string> names;
    for (const SearchResult& result : results) names.push_back(fs::path(result.path).filename().string());
    return names;
  }

  std::string message(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  TemporaryFolder folder_;
  std::string index_path_;
  int64_t embedded_ = 0;
};

TEST_F(SearchIndexes, FindTheNearestPassages) {
  write("one.txt", "aaaa\n");
  write("two.txt", "\n\nabab\n");
  write("inner/three.txt", "zzz");
  SearchIndex index(index_path_, model());
  const IndexChange change = index.update({texts()});
  EXPECT_EQ(change.added, 3);
  EXPECT_EQ(index.passages(), 3);
  const auto results = index.search("aa", 2);
  EXPECT_EQ(names(results), (std::vector<std::string>{"one.txt", "two.txt"}));
  EXPECT_NEAR(results[0].score, 1, 1e-6);
  EXPECT_NEAR(results[1].score, std::sqrt(0.5), 1e-6);
  EXPECT_EQ(results[1].passage, (Passage{3, "abab"}));
  EXPECT_EQ(index.search("aa", 100).size(), 3u);
  EXPECT_TRUE(index.search("aa", 0).empty());
}

TEST_F(SearchIndexes, OfEqualPassagesTheFirstPathAndLineComesFirst) {
  write("b.txt", "ab");
  write("a.txt", "# ab\n\n# ba");
  SearchIndex index(index_path_, model());
  index.update({texts()});
  const auto results = index.search("ab", 3);
  EXPECT_EQ(names(results), (std::vector<std::string>{"a.txt", "a.txt", "b.txt"}));
  EXPECT_EQ(results[1].passage.line, 3);
}

TEST_F(SearchIndexes, AreTheSameAfterWritingAndReading) {
  write("one.txt", "aaaa\n\n# b c\nd");
  write("empty.txt", "");
  SearchIndex index(index_path_, model());
  index.update({texts()});
  index.write();
  const SearchIndex again = SearchIndex::read(index_path_, model());
  EXPECT_EQ(again.files(), 2);
  const auto before = index.search("abc", 5), after = again.search("abc", 5);
  ASSERT_EQ(before.size(), after.size());
  for (size_t n = 0; n < before.size(); ++n) {
    EXPECT_EQ(before[n].score, after[n].score);
    EXPECT_EQ(before[n].path, after[n].path);
    EXPECT_EQ(before[n].passage, after[n].passage);
  }
}

TEST_F(SearchIndexes, AddingAgainTakesInWhatHasChangedAndDropsWhatIsGone) {
  write("same.txt", "aa");
  write("changes.txt", "bb");
  write("goes.txt", "cc");
  SearchIndex index(index_path_, model());
  index.update({texts()});
  index.write();
  write("changes.txt", "dd");
  write("comes.txt", "ee");
  fs::remove(folder_ / "texts/goes.txt");
  SearchIndex again = SearchIndex::read(index_path_, model());
  embedded_ = 0;
  const IndexChange change = again.update({texts()});
  EXPECT_EQ(change.added, 1);
  EXPECT_EQ(change.updated, 1);
  EXPECT_EQ(change.unchanged, 1);
  EXPECT_EQ(change.dropped, 1);
  EXPECT_EQ(embedded_, 2);
  EXPECT_EQ(names(again.search("d", 1)), std::vector<std::string>{"changes.txt"});
  EXPECT_EQ(again.search("c", 1)[0].score, 0);
  EXPECT_EQ(again.files(), 3);
}

TEST_F(SearchIndexes, StayAsTheyWereWhenTheModelFails) {
  write("one.txt", "aaaa");
  write("two.txt", "bbbb");
  bool fails = false;
  SearchModel sometimes = model();
  sometimes.embed = [&, embed = sometimes.embed](std::span<const std::string> texts) {
    if (fails) fail("the model fails");
    return embed(texts);
  };
  SearchIndex index(index_path_, sometimes);
  index.update({texts()});
  write("one.txt", "cccc\n\n# d");
  write("three.txt", "eeee");
  fails = true;
  EXPECT_NE(message([&] { index.update({texts()}); }).find("the model fails"), std::string::npos);
  fails = false;
  EXPECT_EQ(index.files(), 2);
  EXPECT_EQ(index.passages(), 2);
  EXPECT_NEAR(index.search("a", 1)[0].score, 1, 1e-6);
  const IndexChange change = index.update({texts()});
  EXPECT_EQ(change.added, 1);
  EXPECT_EQ(change.updated, 1);
  EXPECT_EQ(change.unchanged, 1);
  EXPECT_NEAR(index.search("c", 1)[0].score, 1, 1e-6);
}

TEST_F(SearchIndexes, TakeFilesByNameAndLeaveHiddenOnesOfFoldersOut) {
  write(".hidden", "aa");
  write("one.txt", "aa");
  fs::create_directories(folder_ / "texts/.git");
  write(".git/config", "aa");
  SearchIndex index(index_path_, model());
  EXPECT_EQ(index.update({texts()}).added, 1);
  EXPECT_EQ(index.update({texts() + "/.hidden", texts() + "/one.txt", texts()}).added, 1);
}

TEST_F(SearchIndexes, LeaveOutWhatIsNotTextAndTheirOwnFile) {
  write("binary", std::string("a\0b", 3));
  write("latin", "caf\xE9");
  write("text", "café");
  index_path_ = folder_ / "texts/index.safetensors";
  SearchIndex index(index_path_, model());
  index.write();
  const IndexChange change = index.update({texts()});
  EXPECT_EQ(change.added, 1);
  ASSERT_EQ(change.skipped.size(), 2u);
  EXPECT_TRUE(change.skipped[0].ends_with("binary"));
  EXPECT_TRUE(change.skipped[1].ends_with("latin"));
  write("text", std::string("\0", 1));  // a text that becomes something else is dropped
  EXPECT_EQ(index.update({texts()}).dropped, 1);
  EXPECT_EQ(index.files(), 0);
}

TEST_F(SearchIndexes, RefuseAnotherModelAndPathsThatAreNot) {
  SearchIndex index(index_path_, model());
  index.write();
  SearchModel other = model();
  other.name = "words";
  EXPECT_NE(message([&] { SearchIndex::read(index_path_, other); }).find("another model"), std::string::npos);
  EXPECT_THROW(index.update({texts() + "/missing"}), SystemError);
  EXPECT_THROW(SearchIndex::read(index_path_ + "x", model()), SystemError);
}

TEST_F(SearchIndexes, RefuseDamagedFiles) {
  write("one.txt", "aaaa\n\n# b\n\n# c");
  SearchIndex index(index_path_, model());
  index.update({texts()});
  index.write();
  const TensorFile good = read_safetensors(index_path_);
  const std::map<std::string, Tensor>& arrays = good.tensors;
  const auto refused = [&](const std::string& key, const Tensor& replacement) {
    std::map<std::string, TensorView> views;
    for (const auto& [name, tensor] : arrays) {
      if (name != key) views[name] = tensor.view();
    }
    if (replacement) views[key] = replacement.view();
    write_safetensors(index_path_ + "2", views, good.metadata);
    const std::string text = message([&] { SearchIndex::read(index_path_ + "2", model()); });
    EXPECT_NE(text.find(key), std::string::npos) << text;
  };
  const auto numbers = [](std::vector<int64_t> values) {
    Tensor tensor(DType::i64, {static_cast<int64_t>(values.size())});
    std::copy(values.begin(), values.end(), static_cast<int64_t*>(tensor.mutable_view().data()));
    return tensor;
  };
  for (const auto& [key, tensor] : arrays) refused(key, {});
  refused("line", numbers({0, 1, 1}));
  refused("text_end", numbers({4, 3, 10}));
  refused("text_end", numbers({4, 5, 100}));
  refused("text_end", numbers({4, 5, 6}));
  refused("text_end", numbers({-4, 5, 10}));
  refused("passage_end", numbers({2}));
  refused("path_end", numbers({1}));
  refused("vectors", Tensor(DType::f32, {3, 25}));
  refused("vectors", Tensor(DType::f64, {3, 26}));
  Tensor large(DType::f32, {3, 26});
  *static_cast<float*>(large.mutable_view().data()) = 2;
  refused("vectors", large);
  Tensor letters(DType::u8, arrays.at("text").shape());
  *static_cast<uint8_t*>(letters.mutable_view().data()) = 0xFF;
  refused("text", letters);
  write_safetensors(index_path_ + "2", {}, {});
  EXPECT_NE(message([&] { SearchIndex::read(index_path_ + "2", model()); }).find("not a search index"),
            std::string::npos);
}

TEST(ModelDigest, DependsOnWhatTheModelReads) {
  const TemporaryFolder folder;
  const std::string path = folder / "";
  fs::create_directories(folder / "1_Pooling");
  write_bytes(folder / "config.json", "{}");
  write_bytes(folder / "model.safetensors", "12345678901");
  const std::string first = model_digest(path);
  EXPECT_EQ(model_digest(path.substr(0, path.size() - 1)), first);
  for (const char* other : {"README.md", "index.safetensors", "results.json", "1_Pooling/config.json"}) {
    write_bytes(folder / other, "words");
    EXPECT_EQ(model_digest(path), first) << other;
  }
  write_bytes(folder / "model.safetensors", "12345678902");
  const std::string second = model_digest(path);
  EXPECT_NE(second, first);
  write_bytes(folder / "modules.json", R"([{"path": ""}, {"path": "1_Pooling"}])");
  const std::string third = model_digest(path);
  EXPECT_NE(third, second);
  write_bytes(folder / "1_Pooling/config.json", "{}");
  EXPECT_NE(model_digest(path), third);
  EXPECT_THROW(model_digest(folder / "missing"), SystemError);
}

TEST(ModelDigest, DependsOnEveryShard) {
  const TemporaryFolder folder;
  const std::string path = folder / "";
  write_bytes(folder / "model.safetensors.index.json",
              R"({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})");
  write_bytes(folder / "one.safetensors", "1");
  EXPECT_THROW(model_digest(path), SystemError);
  write_bytes(folder / "two.safetensors", "2");
  const std::string first = model_digest(path);
  write_bytes(folder / "two.safetensors", "3");
  EXPECT_NE(model_digest(path), first);
}

}  // namespace
}  // namespace qkv
