// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "models/families.h"
#include "qkv/models/convert.h"
#include "qkv/models/transformer.h"
#include "qkv/support/error.h"
#include "qkv/tensor/safetensors.h"
#include "tensor/files.h"
#include "tiny_models.h"

namespace qkv::test {
namespace {

namespace fs = std::filesystem;
using Tensors = std::map<std::string, Tensor>;

/// The tensors that a family's files hold, with random values.
Tensors tensors_of(const ModelConfig& config) {
  models::Checkpoint checkpoint = models::Checkpoint::random(11);
  models::bind_weights(checkpoint, config);
  Tensors tensors;
  for (const auto& [name, view] : checkpoint.parameters()) tensors.emplace(name, converted(view, DType::f32));
  return tensors;
}

std::string error_of(const ModelConfig& config, Tensors tensors) {
  try {
    Transformer::from_tensors(config, std::move(tensors), {}, "model");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string bytes(const Tensor& tensor) {
  return {static_cast<const char*>(tensor.view().data()),
          static_cast<size_t>(tensor.view().elements() * size_of(tensor.dtype()))};
}

const std::vector<uint32_t> kTokens{3, 1, 4, 1, 5, 9, 2, 6};

Tensor logits(const Transformer& model) {
  return model.config().kind == ModelKind::encoder_decoder ? model.logits({kTokens}, {kTokens})
                                                           : model.logits({kTokens});
}

class Family : public ::testing::TestWithParam<TinyModel> {
 protected:
  ModelConfig config_ = GetParam().config();
};

TEST_P(Family, EveryTensorIsNeededInItsShape) {
  const Tensors all = tensors_of(config_);
  ASSERT_EQ(error_of(config_, all), "no error");
  for (const auto& [name, tensor] : all) {
    Tensors some = all;
    some.erase(name);
    const std::string missing = error_of(config_, some);
    // Files without a bias of the logits, or without a head, are files too.
    const bool optional = name == "final_logits_bias" || name == "lm_head.weight";
    EXPECT_EQ(missing == "no error", optional) << name;
    const bool names_it =
        missing.find("is missing") != std::string::npos || missing.find("unexpected") != std::string::npos;
    EXPECT_TRUE(names_it || optional) << missing;

    Dims shape = tensor.shape();
    shape[0] += 1;
    some[name] = Tensor(DType::f32, shape);
    EXPECT_NE(error_of(config_, some).find("expected " + to_string(tensor.shape()) + ", got"), std::string::npos)
        << name;
  }
}

TEST_P(Family, AnExtraTensorIsRefusedByName) {
  Tensors all = tensors_of(config_);
  all["adapter.weight"] = Tensor(DType::f32, {2});
  EXPECT_NE(error_of(config_, all).find("unexpected tensor \"adapter.weight\" [2]"), std::string::npos);
  all.erase("adapter.weight");
  all.begin()->second = Tensor(DType::i64, all.begin()->second.shape());
  EXPECT_NE(error_of(config_, all).find("expected f32, bf16 or f16, got i64"), std::string::npos);
}

TEST_P(Family, PrefixesOfNamesMayBeThere) {
  const Tensors all = tensors_of(config_);
  const std::string prefix = models::family_of(config_.model_type, "model").prefix;
  Tensors prefixed;
  for (const auto& [name, tensor] : all) prefixed.emplace(prefix + name, tensor);
  const Tensor expected = logits(Transformer::from_tensors(config_, all, {}, "model"));
  EXPECT_EQ(bytes(logits(Transformer::from_tensors(config_, prefixed, {}, "model"))), bytes(expected));
  if (prefix.empty()) return;
  prefixed.emplace(all.begin()->first, all.begin()->second);
  EXPECT_NE(error_of(config_, prefixed).find("are the same parameter"), std::string::npos);
}

/// From a folder in each dtype, whole and in shards, and through convert_model: the same bits where nothing is rounded.
class Folder : public ::testing::TestWithParam<TinyModel> {
 protected:
  Folder() { std::ofstream(at("config.json")) << GetParam().json; }
  std::string at(const char* name) const { return folder_ / name; }

  TemporaryFolder folder_;
};

TEST_P(Folder, WholeShardedAndConverted) {
  const ModelConfig config = GetParam().config();
  const Tensors tensors = tensors_of(config);
  std::map<std::string, TensorView> views, first, second;
  nlohmann::json index;
  for (const auto& [name, tensor] : tensors) {
    views.emplace(name, tensor.view());
    auto& part = first.size() <= second.size() ? first : second;
    part.emplace(name, tensor.view());
    index["weight_map"][name] = &part == &first ? "a.safetensors" : "b.safetensors";
  }
  write_safetensors(at("model.safetensors"), views);
  const std::string expected = bytes(logits(Transformer::from_folder(at(""))));
  EXPECT_EQ(expected, bytes(logits(Transformer::from_tensors(config, tensors, {}, "model"))));

  convert_model(at(""), at("bf16"), DType::bf16);
  convert_model(at("bf16"), at("f32"), DType::f32);
  const std::string rounded = bytes(logits(Transformer::from_folder(at("bf16"), {.dtype = DType::bf16})));
  EXPECT_EQ(rounded, bytes(logits(Transformer::from_folder(at("f32"), {.dtype = DType::bf16}))));
  EXPECT_EQ(rounded, bytes(logits(Transformer::from_folder(at(""), {.dtype = DType::bf16}))));
  EXPECT_THROW(convert_model(at(""), at("f32"), DType::f32), Error);

  fs::remove(at("model.safetensors"));
  write_safetensors(at("a.safetensors"), first);
  write_safetensors(at("b.safetensors"), second);
  std::ofstream(at("model.safetensors.index.json")) << index.dump();
  EXPECT_EQ(expected, bytes(logits(Transformer::from_folder(at("")))));
}

INSTANTIATE_TEST_SUITE_P(All, Family, ::testing::ValuesIn(tiny_models()),
                         [](const auto& info) { return name_of(info.param); });
INSTANTIATE_TEST_SUITE_P(All, Folder, ::testing::ValuesIn(tiny_models()),
                         [](const auto& info) { return name_of(info.param); });

TEST(Checkpoint, BuffersAndHeadsOfAFamilyArePassedOver) {
  const auto accepts = [](const char* model, std::vector<const char*> names) {
    Tensors all = tensors_of(tiny_model(model).config());
    for (const char* name : names) all[name] = Tensor(DType::f32, {3});
    EXPECT_EQ(error_of(tiny_model(model).config(), all), "no error");
  };
  accepts("bert", {"embeddings.position_ids", "pooler.dense.weight", "cls.seq_relationship.bias", "classifier.weight"});
  accepts("roberta", {"embeddings.position_ids", "classifier.out_proj.weight"});
  accepts("gpt2", {"h.0.attn.bias", "h.1.attn.masked_bias"});
  accepts("gpt_neox", {"layers.0.attention.bias", "layers.1.attention.rotary_emb.inv_freq"});
  accepts("llama", {"layers.0.self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"});
  accepts("t5", {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"});
}

/// A folder of a sentence model: what the model does not use, and files of modules, come along.
TEST(Convert, KeepsHeadsAndModules) {
  const TemporaryFolder outer;
  const fs::path folder = outer / "model", out = folder / "out";
  fs::create_directories(folder / "7_Pooling");
  std::ofstream(folder / "config.json") << tiny_model("bert").json;
  std::ofstream(folder / "chat_template.jinja") << "{{ messages }}";
  std::ofstream(folder / "7_Pooling" / "config.json") << "{}";
  const auto write_modules = [&](const char* path) {
    std::ofstream(folder / "modules.json") << R"([{"path": ""}, {"path": ")" << path << R"("}, {"path": "2_Absent"}])";
  };
  write_modules("7_Pooling");
  Tensors all = tensors_of(tiny_model("bert").config());
  all["pooler.dense.weight"] = Tensor(DType::f32, {24, 24});
  all["embeddings.position_ids"] = Tensor(DType::i64, {1, 40});
  std::map<std::string, TensorView> views;
  for (const auto& [name, tensor] : all) views.emplace(name, tensor.view());
  write_safetensors((folder / "model.safetensors").string(), views);

  convert_model(folder.string(), out.string(), DType::bf16);
  const TensorFile file = read_safetensors((out / "model.safetensors").string());
  EXPECT_EQ(file.tensors.at("pooler.dense.weight").dtype(), DType::bf16);
  EXPECT_EQ(file.tensors.count("embeddings.position_ids"), 0U);
  EXPECT_EQ(file.tensors.size(), all.size() - 1);
  EXPECT_TRUE(fs::exists(out / "7_Pooling" / "config.json"));
  EXPECT_TRUE(fs::exists(out / "chat_template.jinja"));
  EXPECT_FALSE(fs::exists(out / "2_Absent"));

  fs::remove_all(out);
  write_modules("../outside");
  EXPECT_THROW(convert_model(folder.string(), out.string(), DType::bf16), Error);
  EXPECT_FALSE(fs::exists(out));
  for (const auto& entry : fs::directory_iterator(folder))
    EXPECT_FALSE(entry.path().filename().string().starts_with("."));
}

TEST(Checkpoint, TiedCopiesMustBeCopies) {
  const ModelConfig config = tiny_model("gpt2").config();
  Tensors all = tensors_of(config);
  all["lm_head.weight"] = all["wte.weight"];
  EXPECT_EQ(error_of(config, all), "no error");
  all["lm_head.weight"] = Tensor(DType::f32, all["wte.weight"].shape());
  EXPECT_NE(error_of(config, all).find("\"lm_head.weight\": expected a copy of \"wte.weight\""), std::string::npos);
}

TEST(Checkpoint, TheDecodersOwnBiasCountsWhereNothingIsTied) {
  ModelConfig config = tiny_model("bert").config();
  config.tied_head = false;
  Tensors all = tensors_of(config);
  const std::string expected = bytes(logits(Transformer::from_tensors(config, all, {}, "model")));
  all["cls.predictions.decoder.bias"] = all["cls.predictions.bias"];
  all["cls.predictions.bias"] = Tensor(DType::f32, {61});
  EXPECT_EQ(bytes(logits(Transformer::from_tensors(config, all, {}, "model"))), expected);
  config.tied_head = true;
  all.erase("cls.predictions.decoder.weight");
  EXPECT_NE(error_of(config, all).find("\"cls.predictions.decoder.bias\": expected a copy of"), std::string::npos);
}

TEST(Checkpoint, OldNamesOfNorms) {
  const ModelConfig config = tiny_model("bert").config();
  Tensors all = tensors_of(config), old;
  for (auto& [name, tensor] : all) {
    std::string changed = name;
    const bool is_norm = name.find("LayerNorm") != std::string::npos;
    if (is_norm && name.ends_with(".weight")) changed.replace(name.size() - 6, 6, "gamma");
    if (is_norm && name.ends_with(".bias")) changed.replace(name.size() - 4, 4, "beta");
    old.emplace(changed, tensor);
  }
  EXPECT_EQ(bytes(logits(Transformer::from_tensors(config, old, {}, "model"))),
            bytes(logits(Transformer::from_tensors(config, all, {}, "model"))));
}

TEST(Checkpoint, AnEncoderWithoutItsHeadHasHiddenStatesButNoLogits) {
  const ModelConfig config = tiny_model("bert").config();
  Tensors all = tensors_of(config);
  std::erase_if(all, [](const auto& entry) { return entry.first.starts_with("cls."); });
  const Transformer model = Transformer::from_tensors(config, all, {}, "model");
  EXPECT_EQ(model.hidden({kTokens}).shape(), (Dims{8, 24}));
  EXPECT_THROW(model.logits({kTokens}), Error);
}

TEST(Checkpoint, ADecoderWithoutItsHeadHasHiddenStatesButNoLogits) {
  const ModelConfig config = tiny_model("llama").config();
  Tensors all = tensors_of(config);
  const Transformer whole = Transformer::from_tensors(config, all, {}, "model");
  all.erase("lm_head.weight");
  const Transformer model = Transformer::from_tensors(config, all, {}, "model");
  EXPECT_EQ(bytes(model.hidden({kTokens})), bytes(whole.hidden({kTokens})));
  try {
    model.start(1);
    FAIL() << "it has no logits to decode with";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "model: this llama has no language-model head, lm_head.weight: it gives hidden states, but no logits");
  }
  EXPECT_THROW(model.logits({kTokens}), Error);
  const ModelConfig both = tiny_model("t5_gated").config();
  Tensors parts = tensors_of(both);
  parts.erase("lm_head.weight");
  const Transformer encoder = Transformer::from_tensors(both, parts, {}, "model");
  EXPECT_EQ(encoder.hidden({kTokens}).shape(), (Dims{8, 24}));
  EXPECT_THROW(encoder.logits({kTokens}, {kTokens}), Error);
  EXPECT_THROW(encoder.start(TokenBatch{kTokens}), Error);
}

/// Shard names, and the message that refuses them.
struct WrongIndex {
  const char* name;
  const char* index;
  const char* message;
  bool is_system_error = false;
};

class WrongShards : public ::testing::TestWithParam<WrongIndex> {};

TEST_P(WrongShards, AreRefused) {
  const TemporaryFolder outer;
  const fs::path folder = outer / GetParam().name;
  fs::create_directory(folder);
  const Tensor tensor(DType::f32, {2});
  write_safetensors((folder / "a.safetensors").string(), {{"x", tensor.view()}, {"y", tensor.view()}});
  write_safetensors((folder / ".." / "outside.safetensors").string(), {{"x", tensor.view()}});
  std::ofstream(folder / "model.safetensors.index.json") << GetParam().index;
  try {
    models::Checkpoint::read(folder.string());
    ADD_FAILURE() << "accepted";
  } catch (const SystemError& error) {
    EXPECT_TRUE(GetParam().is_system_error) << error.what();
  } catch (const Error& error) {
    EXPECT_FALSE(GetParam().is_system_error);
    EXPECT_NE(std::string(error.what()).find(GetParam().message), std::string::npos) << error.what();
  }
}

const WrongIndex kWrongIndex[] = {
    {"parent", R"({"weight_map": {"x": "../outside.safetensors"}})", "expected the name of a file in this folder"},
    {"absolute", R"({"weight_map": {"x": "/tmp/outside.safetensors"}})", "expected the name of a file in this folder"},
    {"backslash", R"({"weight_map": {"x": "..\\outside.safetensors"}})", "expected the name of a file in this folder"},
    {"two_dots", R"({"weight_map": {"x": ".."}})", "expected the name of a file in this folder"},
    {"dot", R"({"weight_map": {"x": "."}})", "expected the name of a file in this folder"},
    {"empty", R"({"weight_map": {"x": ""}})", "expected the name of a file in this folder"},
    {"nul", "{\"weight_map\": {\"x\": \"a\\u0000b\"}}", "expected the name of a file in this folder"},
    {"number", R"({"weight_map": {"x": 3}})", "expected a file name"},
    {"no_map", R"({"weights": {}})", "expected an object with the key weight_map"},
    {"list", R"({"weight_map": []})", "weight_map, an object"},
    {"twice", R"({"weight_map": {"x": "a.safetensors", "y": "a.safetensors", "x": "a.safetensors"}})", "occurs twice"},
    {"unlisted", R"({"weight_map": {"x": "a.safetensors"}})", "tensor \"y\" is not in the index"},
    {"promised", R"({"weight_map": {"x": "a.safetensors", "y": "a.safetensors", "z": "a.safetensors"}})",
     "tensor \"z\", which the index promises, is missing"},
    {"no_shard", R"({"weight_map": {"x": "a.safetensors", "y": "a.safetensors", "z": "b.safetensors"}})", "", true},
    {"not_json", "{", "expected JSON"},
};

INSTANTIATE_TEST_SUITE_P(All, WrongShards, ::testing::ValuesIn(kWrongIndex),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Checkpoint, DotsInTheNameOfAShardAreNoPath) {
  const TemporaryFolder folder;
  const Tensor tensor(DType::f32, {2});
  write_safetensors(folder / "a..b.safetensors", {{"x", tensor.view()}});
  std::ofstream(folder / "model.safetensors.index.json") << R"({"weight_map": {"x": "a..b.safetensors"}})";
  EXPECT_TRUE(models::Checkpoint::read(folder / "").has("x"));
}

TEST(Checkpoint, AMissingFileIsTheMachinesFault) { EXPECT_THROW(models::Checkpoint::read("no-folder"), SystemError); }

}  // namespace
}  // namespace qkv::test
