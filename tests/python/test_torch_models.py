# SPDX-License-Identifier: Apache-2.0
"""Models beside transformers: logits in f32, padded batches, greedy tokens, converted folders, of every family."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers")

from model_families import (DECODERS, ENCODER_DECODERS, ENCODERS, FAMILIES, VOCABULARY, all_in_f64,  # noqa: E402
                            in_f64, random_model)

EPSILON = 2.0**-23


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    """A family's name, its model and the folder transformers saved it to."""
    model = random_model(request.param)
    folder = tmp_path_factory.mktemp(request.param) / "model"
    model.save_pretrained(folder)
    return request.param, model, folder


def tokens(seed, count):
    return [int(t) for t in np.random.default_rng(seed).integers(3, VOCABULARY, count)]


def logits(qkv, folder, ids, decoder_ids=None, *options):
    arguments = ["--tokens", " ".join(map(str, ids))]
    if decoder_ids is not None:
        arguments += ["--decoder-tokens", ",".join(map(str, decoder_ids))]
    qkv("logits", "--model", folder, *arguments, *options, "-o", "logits.npy")
    # The file is in the test's own folder, which the fixture ran in.
    return np.load(qkv.folder / "logits.npy")


@pytest.fixture
def qkv_in(qkv, tmp_path):
    qkv.folder = tmp_path
    return qkv


def run(model, ids, decoder_ids=None):
    with torch.no_grad():
        if decoder_ids is None:
            return model(torch.tensor([ids])).logits[0].numpy()
        return model(input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([decoder_ids])).logits[0].numpy()


def inputs(name):
    return (tokens(1, 21), tokens(2, 13)) if name in ENCODER_DECODERS else (tokens(1, 37), None)


def test_logits_are_as_close_to_f64_as_eager_in_f32(qkv_in, family):
    name, model, folder = family
    ids, decoder_ids = inputs(name)
    with all_in_f64():
        exact = run(in_f64(model), ids, decoder_ids)
    eager = run(model, ids, decoder_ids)
    ours = logits(qkv_in, folder, ids, decoder_ids)
    assert ours.shape == exact.shape and ours.dtype == np.float32
    slack = 4 * EPSILON * np.abs(exact).max()
    error, eager_error = np.abs(ours - exact).max(), np.abs(eager - exact).max()
    print(f"{name}: {error:.2e}, eager {eager_error:.2e}, largest {np.abs(exact).max():.1f}")
    assert error <= 3 * eager_error + slack


def test_cached_logits_have_the_same_bits(qkv_in, family):
    name, _, folder = family
    if name in ENCODERS:
        return
    ids, decoder_ids = inputs(name)
    for dtype in "f32", "bf16":
        full = logits(qkv_in, folder, ids, decoder_ids, "--dtype", dtype)
        cached = logits(qkv_in, folder, ids, decoder_ids, "--dtype", dtype, "--cached")
        assert full.tobytes() == cached.tobytes()


def test_bf16_is_as_close_as_eager_in_bf16(qkv_in, family):
    name, model, folder = family
    ids, decoder_ids = inputs(name)
    with all_in_f64():
        exact = run(in_f64(model), ids, decoder_ids)
    rounded = type(model).from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager").eval()
    with torch.no_grad():
        eager = run_bf16(rounded, ids, decoder_ids)
    ours = logits(qkv_in, folder, ids, decoder_ids, "--dtype", "bf16")
    def norm(x):
        return np.sqrt(np.mean(np.square(x)))
    assert norm(ours - exact) <= 1.5 * norm(eager - exact) + 2.0**-8 * norm(exact)


def run_bf16(model, ids, decoder_ids):
    if decoder_ids is None:
        return model(torch.tensor([ids])).logits[0].float().numpy()
    return model(input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([decoder_ids])).logits[0].float().numpy()


def test_padded_batches_of_transformers_give_our_rows(qkv_in, family):
    name, model, folder = family
    lengths = [5, 30, 1, 17]
    texts = [tokens(10 + n, length) for n, length in enumerate(lengths)]
    padding = model.config.pad_token_id or 0
    width = max(lengths)
    batch = torch.tensor([text + [padding] * (width - len(text)) for text in texts])
    mask = torch.tensor([[1] * n + [0] * (width - n) for n in lengths])
    decoder_ids = tokens(3, 9) if name in ENCODER_DECODERS else None
    more = {} if decoder_ids is None else {"decoder_input_ids": torch.tensor([decoder_ids] * 4)}
    with torch.no_grad():
        theirs = model(input_ids=batch, attention_mask=mask, **more).logits.numpy()
    twin = in_f64(model)
    for n, text in enumerate(texts):
        rows = len(decoder_ids or text)
        with all_in_f64():
            exact = run(twin, text, decoder_ids)
        error = np.abs(theirs[n, :rows] - exact).max()
        ours = logits(qkv_in, folder, text, decoder_ids)
        assert np.abs(ours - exact).max() <= 3 * error + 8 * EPSILON * np.abs(exact).max()


def test_greedy_tokens(qkv_in, family):
    name, model, folder = family
    if name in ENCODERS:
        return
    prompt, count = tokens(20, 6), 8
    with torch.no_grad():
        theirs = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                                do_sample=False, max_new_tokens=count, eos_token_id=None, use_cache=not name.startswith("t5"),
                                pad_token_id=model.config.pad_token_id or 0)[0].tolist()
    if name in ENCODER_DECODERS:
        ours = [model.config.decoder_start_token_id]
        for _ in range(count):
            ours.append(int(logits(qkv_in, folder, prompt, ours, "--cached")[-1].argmax()))
    else:
        ours = list(prompt)
        for _ in range(count):
            ours.append(int(logits(qkv_in, folder, ours, None, "--cached")[-1].argmax()))
    assert ours == theirs


def test_converted_folders_load_to_equal_logits(qkv_in, family):
    name, model, folder = family
    ids, decoder_ids = inputs(name)
    qkv_in("convert", "--model", folder, "--out", "f32")
    qkv_in("convert", "--model", folder, "--out", "bf16", "--dtype", "bf16")
    load = type(model).from_pretrained
    whole = load(qkv_in.folder / "f32", attn_implementation="eager").eval()
    assert next(whole.parameters()).dtype == torch.float32
    assert np.array_equal(run(whole, ids, decoder_ids), run(model, ids, decoder_ids))
    rounded = load(qkv_in.folder / "bf16", attn_implementation="eager").eval()
    assert next(rounded.parameters()).dtype == torch.bfloat16
    original = load(folder, dtype=torch.bfloat16, attn_implementation="eager").eval()
    with torch.no_grad():
        assert np.array_equal(run_bf16(rounded, ids, decoder_ids), run_bf16(original, ids, decoder_ids))
    # A folder of ours is one of theirs: the same bits from it.
    assert np.array_equal(logits(qkv_in, "f32", ids, decoder_ids), logits(qkv_in, folder, ids, decoder_ids))


def old_spelling(config):
    """rope_parameters as published files spell them."""
    rope = config.pop("rope_parameters", None)
    if not rope:
        return config
    config["rope_theta"] = rope.pop("rope_theta")
    fraction = rope.pop("partial_rotary_factor", None)
    if config["model_type"] == "gpt_neox":
        config["rotary_emb_base"], config["rotary_pct"] = config.pop("rope_theta"), fraction
    kind = rope.pop("rope_type", "default")
    config["rope_scaling"] = None if kind == "default" else {"type": kind, **rope}
    config.pop("layer_types", None)
    config["torch_dtype"] = config.pop("dtype", "float32")
    return config


def test_configs_in_the_old_spelling(qkv_in, family):
    name, _, folder = family
    before = json.loads((folder / "config.json").read_text())
    after = old_spelling(json.loads((folder / "config.json").read_text()))
    if after == before:
        return
    ids, _ = inputs(name)
    expected = logits(qkv_in, folder, ids)
    (qkv_in.folder / "old").mkdir()
    (qkv_in.folder / "old" / "model.safetensors").symlink_to(folder / "model.safetensors")
    (qkv_in.folder / "old" / "config.json").write_text(json.dumps(after))
    assert np.array_equal(logits(qkv_in, "old", ids), expected)


def test_shards_of_transformers(qkv_in, family):
    name, model, folder = family
    if name not in ("gpt2", "t5"):
        return
    ids, decoder_ids = inputs(name)
    model.save_pretrained(qkv_in.folder / "shards", max_shard_size="20KB")
    assert (qkv_in.folder / "shards" / "model.safetensors.index.json").exists()
    assert np.array_equal(logits(qkv_in, "shards", ids, decoder_ids), logits(qkv_in, folder, ids, decoder_ids))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_weights_are_computed_in_f32(qkv_in, family, dtype):
    name, model, folder = family
    if name not in ("bert", "gpt2", "gpt_neox", "llama3", "t5"):
        return
    ids, decoder_ids = inputs(name)
    narrow = type(model).from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    narrow.save_pretrained(qkv_in.folder / "narrow")
    wide = narrow.float()
    with all_in_f64():
        exact = run(in_f64(wide), ids, decoder_ids)
    eager, ours = run(wide, ids, decoder_ids), logits(qkv_in, "narrow", ids, decoder_ids)
    assert np.abs(ours - exact).max() <= 3 * np.abs(eager - exact).max() + 4 * EPSILON * np.abs(exact).max()


def test_roberta_padding_inside_a_text(qkv_in, family):
    name, model, folder = family
    if name != "roberta":
        return
    ids = tokens(4, 6) + [model.config.pad_token_id] * 2 + tokens(5, 7)
    eager, ours = run(model, ids), logits(qkv_in, folder, ids)
    with all_in_f64():
        exact = run(in_f64(model), ids)
    assert np.abs(ours - exact).max() <= 3 * np.abs(eager - exact).max() + 4 * EPSILON * np.abs(exact).max()


def test_all_families_are_here():
    assert {FAMILIES[name]()[1].model_type for name in FAMILIES} == {
        "bert", "roberta", "distilbert", "gpt2", "gpt_neox", "llama", "mistral", "qwen2", "qwen3", "gemma2", "t5",
        "bart"}
    assert len(DECODERS) + len(ENCODERS) + len(ENCODER_DECODERS) == len(FAMILIES)
    assert hf.__version__
