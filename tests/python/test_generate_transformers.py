# SPDX-License-Identifier: Apache-2.0
"""qkv generate beside transformers' generate: the same tokens."""

import json
from collections import Counter

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import generation_models as models  # noqa: E402


@pytest.fixture(scope="session", params=models.NAMES)
def saved(request, tmp_path_factory):
    model = models.make(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    return request.param, model, folder


@pytest.fixture
def tokens(qkv):
    """The new tokens of one prompt."""

    def call(folder, prompt, count, *options):
        ids = " ".join(map(str, prompt))
        done = qkv("generate", "--model", folder, "--tokens", ids, "--max-tokens", count, "--json", *options)
        return json.loads(done.stdout)["tokens"]

    return call


def edit(folder, path, **values):
    """A copy of a model's folder with other values in generation_config.json."""
    path.mkdir()
    for file in folder.iterdir():
        (path / file.name).symlink_to(file)
    config = json.loads((folder / "generation_config.json").read_text())
    (path / "generation_config.json").unlink()
    (path / "generation_config.json").write_text(json.dumps({**config, **values}))
    return path


def test_greedy(saved, tokens):
    _, model, folder = saved
    for prompt in models.prompts(4, 1):
        assert tokens(folder, prompt, 20) == models.generate(model, prompt, 20, do_sample=False)


def test_beams(saved, tokens):
    _, model, folder = saved
    for beams, prompt in zip((2, 3, 5), models.prompts(3, 2)):
        expected = models.generate(model, prompt, 16, num_beams=beams, do_sample=False)
        assert tokens(folder, prompt, 16, "--beams", beams) == expected


def test_repetition_penalty(saved, tokens):
    _, model, folder = saved
    for penalty, prompt in zip((1.3, 0.8), models.prompts(2, 3)):
        expected = models.generate(model, prompt, 16, do_sample=False, repetition_penalty=penalty)
        assert tokens(folder, prompt, 16, "--repetition-penalty", penalty) == expected
        expected = models.generate(model, prompt, 16, do_sample=False, repetition_penalty=penalty, num_beams=3)
        assert tokens(folder, prompt, 16, "--repetition-penalty", penalty, "--beams", 3) == expected


RULES = [
    {"no_repeat_ngram_size": 2},
    {"min_new_tokens": 6, "eos_token_id": list(range(2, 30))},
    {"min_length": 12, "eos_token_id": list(range(2, 30))},
    {"bad_words_ids": [[n] for n in range(5, 30)] + [[n, n + 1] for n in range(30, 60)]},
    {"sequence_bias": [[[n], 2.5 if n % 2 else -1.5] for n in range(3, 60)]},
    {"suppress_tokens": list(range(10, 40)), "begin_suppress_tokens": list(range(40, 60))},
    {"forced_eos_token_id": 7, "forced_bos_token_id": 9},
    {"repetition_penalty": 1.5, "no_repeat_ngram_size": 3},
]


@pytest.mark.parametrize("rules", RULES, ids=lambda rules: "-".join(rules))
def test_rules_of_generation_config(saved, tokens, rules, tmp_path):
    name, model, folder = saved
    changed = edit(folder, tmp_path / "model", **rules)
    for prompt in models.prompts(2, 4):
        assert tokens(changed, prompt, 14) == models.generate(model, prompt, 14, do_sample=False, **rules)
        expected = models.generate(model, prompt, 14, do_sample=False, num_beams=3, **rules)
        assert tokens(changed, prompt, 14, "--beams", 3) == expected


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0, -1.0])
@pytest.mark.parametrize("early", [False, True, "never"])
def test_length_penalty_and_early_stopping(saved, tokens, penalty, early, tmp_path):
    name, model, folder = saved
    values = {"num_beams": 3, "length_penalty": penalty, "early_stopping": early, "eos_token_id": list(range(2, 12))}
    changed = edit(folder, tmp_path / "model", **values)
    for prompt in models.prompts(2, 5):
        assert tokens(changed, prompt, 12) == models.generate(model, prompt, 12, do_sample=False, **values)


def test_end_tokens_one_or_a_list(saved, tokens, tmp_path):
    _, model, folder = saved
    prompt = models.prompts(1, 6)[0]
    free = models.generate(model, prompt, 20, do_sample=False, eos_token_id=None)
    for ends in (free[4], [free[4], free[9]], [60]):
        changed = edit(folder, tmp_path / str(ends), eos_token_id=ends)
        expected = models.generate(model, prompt, 20, do_sample=False, eos_token_id=ends)
        assert tokens(changed, prompt, 20) == expected


FILTERS = [{"temperature": 0.7}, {"temperature": 1.5, "top_k": 7}, {"temperature": 1.2, "top_p": 0.8},
           {"temperature": 2.0, "min_p": 0.2}, {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "min_p": 0.05}]


@pytest.mark.parametrize("filters", FILTERS, ids=lambda filters: "-".join(filters))
def test_draws_follow_what_the_warpers_leave(filters, qkv, tmp_path):
    from transformers.generation.logits_process import (MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper,
                                                        TopPLogitsWarper)

    model = models.make("llama")
    model.save_pretrained(tmp_path / "model")
    prompt, draws = [5, 9, 3], 2000
    with torch.no_grad():
        scores = model(torch.tensor([prompt])).logits[:, -1]
    warpers = {"temperature": TemperatureLogitsWarper, "top_k": TopKLogitsWarper, "top_p": TopPLogitsWarper,
               "min_p": MinPLogitsWarper}
    for name, value in filters.items():
        scores = warpers[name](value)(None, scores)
    expected = scores[0].softmax(-1).tolist()
    (tmp_path / "prompts").write_text("5 9 3\n" * draws)  # copies have draws of their own
    options = [text for name, value in filters.items() for text in ("--" + name.replace("_", "-"), value)]
    done = qkv("generate", "--model", "model", "--prompts", "prompts", "--max-tokens", 1, *options)
    counts = Counter(map(int, done.stdout.split()))
    assert sum(counts.values()) == draws
    for token, p in enumerate(expected):
        assert p > 0 or counts[token] == 0
        assert abs(counts[token] - draws * p) <= 5 * (draws * p * (1 - p)) ** 0.5 + 1e-9


def test_bf16_does_not_depend_on_threads(saved, qkv):
    name, model, folder = saved
    done = qkv("generate", "--model", folder, "--tokens", "5 9 3", "--max-tokens", 6, "--dtype", "bf16")
    again = qkv("generate", "--model", folder, "--tokens", "5 9 3", "--max-tokens", 6, "--dtype", "bf16", "--threads", 1)
    assert 1 <= len(done.stdout.split()) <= 6 and done.stdout == again.stdout
