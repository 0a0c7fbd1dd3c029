# SPDX-License-Identifier: Apache-2.0
"""qkv.Tokenizer against the package `tokenizers`: ids, offsets, text, many threads, errors."""

import threading

import pytest
import qkv
from tokenizer_families import EXTRA, FAMILIES
from tokenizer_text import lines

LINES = lines(300, seed=11, extra=EXTRA)


def pair(name, folder):
    theirs = FAMILIES[name]()
    theirs.no_padding()
    (folder / "tokenizer.json").write_text(theirs.to_str())
    return theirs, qkv.Tokenizer.from_file(str(folder))


@pytest.mark.parametrize("name", FAMILIES)
def test_ids_offsets_and_text(name, tmp_path):
    theirs, ours = pair(name, tmp_path)
    for special in (True, False):
        wanted = [theirs.encode(line, add_special_tokens=special) for line in LINES]
        for line, want in zip(LINES, wanted):
            assert ours.encode(line, special_tokens=special, offsets=True) == (want.ids, want.offsets), repr(line)
            assert ours.decode(want.ids, special_tokens=special) == theirs.decode(want.ids, skip_special_tokens=not special)
        assert ours.encode_batch(LINES, special_tokens=special) == [want.ids for want in wanted]
    for token, number in theirs.get_vocab().items():
        assert ours.id(token) == number < ours.id_limit
        assert ours.token(number) == theirs.id_to_token(number)
    assert ours.id("no token, surely") is None


def test_many_threads_at_once(tmp_path):
    _, tokenizer = pair("gpt2", tmp_path)
    want = [tokenizer.encode(line) for line in LINES]
    results = [None] * 4

    def work(n):
        results[n] = [tokenizer.encode(line) for line in LINES]

    workers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert results == [want] * 4
    assert tokenizer.encode_batch(LINES, threads=1) == tokenizer.encode_batch(LINES, threads=3) == want


def test_wrong_calls(tmp_path):
    _, tokenizer = pair("bert", tmp_path)
    with pytest.raises(OSError, match="none.json"):
        qkv.Tokenizer.from_file(str(tmp_path / "none.json"))
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ValueError, match="broken.json"):
        qkv.Tokenizer.from_file(str(tmp_path / "broken.json"))
    with pytest.raises(ValueError, match="123456"):
        tokenizer.decode([123456])
    with pytest.raises(TypeError):
        tokenizer.encode(b"bytes")
    with pytest.raises(ValueError, match="threads"):
        tokenizer.encode_batch(["a"], threads=-1)
