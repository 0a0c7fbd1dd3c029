# SPDX-License-Identifier: Apache-2.0
"""logits, cost and convert on a small hand-made model: results, errors, exit codes. No framework is needed."""

import json
import math
import os
import signal
import subprocess

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

VOCABULARY, WIDTH, HEADS, LAYERS, POSITIONS = 23, 12, 3, 2, 16
CONFIG = {"model_type": "gpt2", "vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS,
          "n_positions": POSITIONS, "activation_function": "relu", "bos_token_id": 0, "eos_token_id": 0}


def weights():
    rng = np.random.default_rng(3)

    def some(*shape, scale=0.5):
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    tensors = {"wte.weight": some(VOCABULARY, WIDTH), "wpe.weight": some(POSITIONS, WIDTH)}
    for layer in range(LAYERS):
        names = {"attn.c_attn": (WIDTH, 3 * WIDTH), "attn.c_proj": (WIDTH, WIDTH), "mlp.c_fc": (WIDTH, 4 * WIDTH),
                 "mlp.c_proj": (4 * WIDTH, WIDTH)}
        for name, shape in names.items():
            tensors[f"h.{layer}.{name}.weight"] = some(*shape)
            tensors[f"h.{layer}.{name}.bias"] = some(shape[1])
        for norm in "ln_1", "ln_2":
            tensors[f"h.{layer}.{norm}.weight"] = 1 + some(WIDTH, scale=0.1)
            tensors[f"h.{layer}.{norm}.bias"] = some(WIDTH)
    tensors["ln_f.weight"], tensors["ln_f.bias"] = 1 + some(WIDTH, scale=0.1), some(WIDTH)
    return tensors


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(weights(), folder / "model.safetensors")
    return folder


def plain_logits(ids):
    """GPT-2 as its paper has it, in f64."""
    w = {name: tensor.astype(np.float64) for name, tensor in weights().items()}

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w[name + ".weight"] + w[name + ".bias"]

    def linear(x, name):
        return x @ w[name + ".weight"] + w[name + ".bias"]

    x = w["wte.weight"][ids] + w["wpe.weight"][: len(ids)]
    for layer in range(LAYERS):
        q, k, v = np.split(linear(norm(x, f"h.{layer}.ln_1"), f"h.{layer}.attn.c_attn"), 3, -1)
        heads = []
        for q_h, k_h, v_h in zip(*(np.split(part, HEADS, -1) for part in (q, k, v)), strict=True):
            scores = q_h @ k_h.T / math.sqrt(WIDTH / HEADS)
            scores[np.triu_indices(len(ids), 1)] = -np.inf
            e = np.exp(scores - scores.max(-1, keepdims=True))
            heads.append(e / e.sum(-1, keepdims=True) @ v_h)
        x = x + linear(np.concatenate(heads, -1), f"h.{layer}.attn.c_proj")
        x = x + linear(np.maximum(linear(norm(x, f"h.{layer}.ln_2"), f"h.{layer}.mlp.c_fc"), 0), f"h.{layer}.mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T


def test_logits_of_the_formula(qkv, model, tmp_path):
    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    said = json.loads(qkv("logits", "--model", model, "--tokens", "3 1,4 1 5, 9 2 6", "-o", "l.npy", "--json").stdout)
    assert said["shape"] == [8, VOCABULARY] and said["output"] == "l.npy"
    ours, exact = np.load(tmp_path / "l.npy"), plain_logits(ids)
    assert ours.dtype == np.float32
    # Each of the sums behind a logit rounds by a few units of its largest terms.
    assert np.abs(ours - exact).max() <= 64 * 2.0**-24 * np.abs(exact).max()
    for dtype in "f32", "bf16":
        for threads in "1", "2":
            options = ["--tokens", "3 1 4 1 5 9 2 6", "--dtype", dtype, "--threads", threads]
            qkv("logits", "--model", model, *options, "-o", "full.npy")
            qkv("logits", "--model", model, *options, "--cached", "-o", "cached.npy")
            full, cached = (tmp_path / "full.npy").read_bytes(), (tmp_path / "cached.npy").read_bytes()
            assert full == cached


def test_convert_writes_what_was_read(qkv, model, tmp_path):
    (model / "tokenizer.json").write_text("{}")
    qkv("convert", "--model", model, "--out", "copy")
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["config.json", "model.safetensors",
                                                                          "tokenizer.json"]
    copied, original = load_file(tmp_path / "copy" / "model.safetensors"), weights()
    assert copied.keys() == original.keys() and all(np.array_equal(copied[n], original[n]) for n in original)
    qkv("convert", "--model", model, "--out", "half", "--dtype", "bf16")
    config = json.loads((tmp_path / "half" / "config.json").read_text())
    assert config["torch_dtype"] == "bfloat16" and config["n_embd"] == WIDTH
    qkv("logits", "--model", "half", "--tokens", "1 2", "--dtype", "bf16", "-o", "a.npy")
    qkv("logits", "--model", model, "--tokens", "1 2", "--dtype", "bf16", "-o", "b.npy")
    assert np.allclose(np.load(tmp_path / "a.npy"), np.load(tmp_path / "b.npy"), rtol=0.05, atol=0.05)


def refused(done, code, *words):
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("qkv: error: ") and done.stderr.count("\n") == 1
    assert all(word in done.stderr for word in words), done.stderr


@pytest.mark.parametrize("ids", ["23", "1 23", "-1", "1.5", "x", "", ",", "1 2,", "4294967296", "1,,2", "0x1"])
def test_ids_that_are_none(qkv, model, tmp_path, ids):
    refused(qkv("logits", "--model", model, "--tokens", ids, "-o", "l.npy", check=False), 2, "token")
    assert not (tmp_path / "l.npy").exists()


def test_calls_that_do_not_fit(qkv, model, tmp_path):
    logits = ["logits", "--model", model, "-o", "l.npy", "--tokens"]
    refused(qkv(*logits, "1", "--decoder-tokens", "2", check=False), 2, "--decoder-tokens", "gpt2")
    refused(qkv(*logits, " ".join(["1"] * 17), check=False), 2, "17 tokens", "at most 16")
    refused(qkv(*logits, "1", "--dtype", "f16", check=False), 2, "--dtype")
    refused(qkv("logits", "--model", model, "--tokens", "1", check=False), 2, "--output")
    refused(qkv("convert", "--model", model, "--out", model, check=False), 2, "does not exist yet")
    bert = {"model_type": "bert", "vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
            "intermediate_size": 8, "max_position_embeddings": 4}
    (model / "config.json").write_text(json.dumps(bert))
    refused(qkv(*logits, "1", "--cached", check=False), 2, "--cached", "encoder")
    t5 = {"model_type": "t5", "vocab_size": 9, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    (model / "config.json").write_text(json.dumps(t5))
    refused(qkv(*logits, "1", check=False), 2, "--decoder-tokens", "t5")
    assert not (tmp_path / "l.npy").exists()


def test_a_model_is_never_overwritten(qkv, model, tmp_path):
    weights_file = model / "model.safetensors"
    before = weights_file.read_bytes()
    (tmp_path / "link.safetensors").symlink_to(weights_file)
    for verb in ["logits", "--tokens", "1"], ["embed"]:
        for out in weights_file, "link.safetensors":
            refused(qkv(*verb, "--model", model, "-o", out, check=False), 2, "never overwritten")
    assert weights_file.read_bytes() == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_convert_that_is_asked_to_end_leaves_nothing(program, model, tmp_path, number):
    positions = 3_000_000
    tensors = {**weights(), "wpe.weight": np.ones((positions, WIDTH), np.float32)}
    (model / "config.json").write_text(json.dumps({**CONFIG, "n_positions": positions}))
    save_file(tensors, model / "model.safetensors")
    process = subprocess.Popen([program, "convert", "--model", "model", "--out", "out"], cwd=tmp_path,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                               preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))  # else as this process has it
    while process.poll() is None and not any(name.startswith(".qkv-") for name in os.listdir(tmp_path)):
        pass
    process.send_signal(number)
    assert process.communicate()[1] == "" and process.returncode == -number
    assert set(os.listdir(tmp_path)) <= {"model", "out"}
    if (tmp_path / "out").exists():  # it came too late
        assert load_file(tmp_path / "out" / "model.safetensors").keys() == tensors.keys()


def test_what_cannot_be_said_leaves_no_folder(program, model, tmp_path, qkv):
    with open("/dev/full", "wb") as full:
        done = subprocess.run([program, "convert", "--model", model, "--out", "copy"], cwd=tmp_path, stdout=full,
                              stderr=subprocess.PIPE, text=True)
    refused(done, 1, "standard output")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    refused(qkv("convert", "--model", model, "--out", "", check=False), 2, "--out")


def test_input_that_cannot_be_read(program, tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "WordLevel", "vocab": {"a": 0},
                                                                   "unk_token": "a"}}))
    folder = os.open(tmp_path, os.O_RDONLY)
    done = subprocess.run([program, "tokenize", "--model", tmp_path], stdin=folder, capture_output=True, text=True)
    os.close(folder)
    refused(done, 1, "standard input", "cannot read")


def test_folders_that_are_none(qkv, model):
    logits = ["logits", "--tokens", "1", "-o", "l.npy", "--model"]
    refused(qkv(*logits, "nowhere", check=False), 1, "config.json")
    (model / "config.json").write_text(json.dumps({**CONFIG, "model_type": "falcon"}))
    refused(qkv(*logits, model, check=False), 2, "falcon")
    (model / "config.json").write_text(json.dumps({**CONFIG, "n_embd": 10**12}))
    refused(qkv(*logits, model, check=False), 2, "n_embd")
    (model / "config.json").write_text(json.dumps({**CONFIG, "n_layer": 1}))
    refused(qkv(*logits, model, check=False), 2, "h.1.", "no part of this model")
    (model / "config.json").write_text(json.dumps({**CONFIG, "n_inner": 40}))
    refused(qkv(*logits, model, check=False), 2, "c_fc.weight", "[12, 40]", "[12, 48]")
    (model / "config.json").write_text(json.dumps(CONFIG))
    (model / "model.safetensors").rename(model / "shard.safetensors")
    refused(qkv(*logits, model, check=False), 1, "model.safetensors")
    index = {"weight_map": {name: "../shard.safetensors" for name in weights()}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(qkv(*logits, model, check=False), 2, "../shard.safetensors")
    index = {"weight_map": {name: "gone.safetensors" for name in weights()}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(qkv(*logits, model, check=False), 1, "gone.safetensors")


def test_costs(qkv, model, tmp_path):
    said = json.loads(qkv("cost", model, "--tokens", "4", "--json").stdout)
    pairs = LAYERS * HEADS * (1 + 2 + 3 + 4)
    assert said["prefill"]["score_entries"] == pairs
    assert said["prefill"]["scores_and_values"] == 2 * pairs * WIDTH // HEADS
    assert said["prefill"]["projections"] == LAYERS * 4 * 4 * WIDTH**2
    assert said["prefill"]["feed_forward"] == LAYERS * 2 * 4 * WIDTH * 4 * WIDTH
    assert said["prefill"]["head"] == 4 * WIDTH * VOCABULARY
    assert said["cache_bytes"] == LAYERS * HEADS * 4 * 2 * (WIDTH // HEADS) * 4
    assert said["parameters"]["total"] == sum(tensor.size for tensor in weights().values())
    assert said["decode"]["score_entries"] == LAYERS * HEADS * 4
    config = tmp_path / "encoder.json"
    config.write_text(json.dumps({"model_type": "bert", "vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1,
                                  "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 8}))
    said = json.loads(qkv("cost", config, "--tokens", "4", "--json").stdout)
    assert [said["prefill"][term] for term in ("projections", "scores_and_values", "feed_forward", "total")] == [
        1024, 256, 2048, 3328]
    assert said["prefill"]["score_entries"] == 32 and said["parameters"]["projections"] == 256
    assert "3,328" in qkv("cost", config, "--tokens", "4").stdout
    refused(qkv("cost", config, "--tokens", "4", "--cache", "2", check=False), 2, "cache")
    refused(qkv("cost", config, "--tokens", "0", check=False), 2, "--tokens")
    refused(qkv("cost", "gone.json", "--tokens", "4", check=False), 1, "gone.json")


def test_measured_costs_are_those_predicted(qkv, model, tmp_path):
    t5 = tmp_path / "t5.json"
    t5.write_text(json.dumps({"model_type": "t5", "vocab_size": 9, "d_model": 8, "d_kv": 4, "d_ff": 8,
                              "num_layers": 1, "num_heads": 2}))
    config_alone = tmp_path / "config_alone"
    config_alone.mkdir()
    (config_alone / "config.json").write_text(json.dumps(CONFIG))
    for arguments in ([model, "--cache", "3"], [config_alone], [t5, "--memory-tokens", "7"],
                      [t5, "--memory-tokens", "7", "--cache", "30"]):
        said = json.loads(qkv("cost", *arguments, "--tokens", "5", "--measure", "--json").stdout)
        for name, term in (("prefill", "prefill"), ("decode step", "decode")):
            measured = said["measured"][name]
            assert measured["counted"] == measured["predicted"] == said[term]["total_with_head"]
            assert measured["score_entries"] == said[term]["score_entries"]
            assert measured["seconds"] > 0 and measured["cache_bytes"] >= said["cache_bytes"]
