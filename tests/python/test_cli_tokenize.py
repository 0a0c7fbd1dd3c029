# SPDX-License-Identifier: Apache-2.0
"""What `qkv tokenize` and `qkv tokenizer train` read and write, as a user sees it."""

import json

import pytest
from tokenizer_check import assert_same
from tokenizer_families import FAMILIES
from tokenizer_text import SENTENCES, lines
from tokenizers import Tokenizer, models, pre_tokenizers, trainers


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tokenizer.json").write_text(FAMILIES["bert"]().to_str())
    return tmp_path


def test_a_line_for_every_line(qkv, folder):
    text = "the\n\nthe quick\r\n\x0b\u2028\n"
    out = qkv("tokenize", "--model", ".", input=text).stdout.split("\n")
    assert len(out) == 5 and out[4] == ""
    assert out[1] == "3 4" and out[0].split()[0] == "3" and out[0].split()[-1] == "4"


def test_the_last_line_needs_no_end(qkv, folder):
    assert qkv("tokenize", "--model", ".", input="the").stdout == qkv("tokenize", "--model", ".", input="the\n").stdout
    assert qkv("tokenize", "--model", ".", input="").stdout == ""


def test_offsets_and_json_say_the_same(qkv, folder):
    text = "\n".join(SENTENCES) + "\n"
    ids = [line.split() for line in qkv("tokenize", "--model", ".", input=text).stdout.split("\n")[:-1]]
    offsets = [line.split() for line in qkv("tokenize", "--model", ".", "--offsets", input=text).stdout.split("\n")[:-1]]
    objects = [json.loads(line) for line in qkv("tokenize", "--model", ".", "--json", input=text).stdout.split("\n")[:-1]]
    for one, with_offsets, said in zip(ids, offsets, objects, strict=True):
        assert [int(id) for id in one] == said["ids"]
        assert with_offsets == [f"{id}:{begin}-{end}" for id, (begin, end) in zip(said["ids"], said["offsets"], strict=True)]
        assert said["offsets"][0] == [0, 0] == said["offsets"][-1]


def test_decoding_what_was_encoded(qkv, folder):
    ids = qkv("tokenize", "--model", ".", input="the quick brown fox\n").stdout
    assert qkv("tokenize", "--model", ".", "--decode", input=ids).stdout == "[CLS] the quick brown fox [SEP]\n"
    assert qkv("tokenize", "--model", ".", "--decode", "--no-special", input=ids).stdout == "the quick brown fox\n"
    with_commas = ids.replace(" ", " , ")
    said = qkv("tokenize", "--model", ".", "--decode", "--no-special", "--json", input=with_commas).stdout
    assert json.loads(said) == {"text": "the quick brown fox"}
    assert qkv("tokenize", "--model", ".", "--decode", input="\n").stdout == "\n"


def test_only_tokenizer_json_is_read(qkv, folder):
    (folder / "config.json").write_text("not JSON")
    (folder / "tokenizer_config.json").write_text("not JSON")
    qkv("tokenize", "--model", str(folder), input="a\n")


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_change_nothing(qkv, folder, threads):
    text = "".join(f"{line}\n" for line in lines(9000, seed=6))
    expected = qkv("tokenize", "--model", ".", "--offsets", "--threads", 3, input=text).stdout
    assert qkv("tokenize", "--model", ".", "--offsets", "--threads", threads, input=text).stdout == expected


@pytest.mark.parametrize("good", [0, 3, 4096, 5000])
def test_lines_before_a_bad_one_are_written(qkv, folder, good):
    done = qkv("tokenize", "--model", ".", "--decode", input="7\n" * good + "x\n7\ny\n", check=False)
    assert done.returncode == 2 and done.stderr.startswith(f"qkv: error: standard input: line {good + 1}: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == qkv("tokenize", "--model", ".", "--decode", input="7\n" * good).stdout


# ---- Training

def train(qkv, text, vocabulary, *more):
    """A tokenizer.json made of a text, as the package reads it."""
    qkv("tokenizer", "train", "--data", text, "--vocabulary", vocabulary, "-o", "tokenizer.json", *more)
    return Tokenizer.from_file(str(text.parent / "tokenizer.json"))


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{line}\n" for line in SENTENCES * 2 + lines(1500, seed=8)), newline="")
    return path


def test_what_is_trained_encodes_the_same_there_and_here(qkv, tmp_path, text):
    tokenizer = train(qkv, text, 1000)
    assert tokenizer.get_vocab_size() == 1000
    assert tokenizer.token_to_id("<|endoftext|>") == 0
    assert_same((tmp_path / "tokenizer.json").read_text(), tmp_path, lines(1000, seed=9, extra=["<|endoftext|>"]))


def test_the_tokens_are_those_of_the_package(qkv, text):
    """Its trainer merges by the same rule, where no token can be made in two ways."""
    tokenizer = train(qkv, text, 700, "--special", "<s>", "</s>")
    reference = Tokenizer(models.BPE())
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    text_lines = [f"{line}\n" for line in text.read_bytes().decode().split("\n")[:-1]]
    reference.train_from_iterator(text_lines, trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<s>", "</s>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    merges = [json.loads(one.to_str())["model"]["merges"] for one in (tokenizer, reference)]
    assert merges[0] == merges[1]
    assert tokenizer.get_vocab() == reference.get_vocab()


def test_training_is_deterministic_and_ignores_order(qkv, tmp_path, text):
    train(qkv, text, 600)
    first = (tmp_path / "tokenizer.json").read_bytes()
    backwards = tmp_path / "backwards.txt"
    backwards.write_bytes(b"".join(reversed(text.read_bytes().splitlines(keepends=True))))
    train(qkv, backwards, 600)
    assert (tmp_path / "tokenizer.json").read_bytes() == first
    halves = [tmp_path / "a.txt", tmp_path / "b.txt"]
    whole = text.read_bytes().split(b"\n")
    halves[0].write_bytes(b"\n".join(whole[:700]) + b"\n")
    halves[1].write_bytes(b"\n".join(whole[700:]))
    qkv("tokenizer", "train", "--data", *halves, "--vocabulary", 600, "-o", "tokenizer.json")
    assert (tmp_path / "tokenizer.json").read_bytes() == first


def test_a_small_text_gives_fewer_tokens(qkv, tmp_path):
    path = tmp_path / "small.txt"
    path.write_text("abab abab\n")
    said = json.loads(qkv("tokenizer", "train", "--data", path, "--vocabulary", 5000, "-o", "t.json", "--json").stdout)
    tokenizer = Tokenizer.from_file(str(tmp_path / "t.json"))
    assert said["vocabulary"] == tokenizer.get_vocab_size() == 257 + said["merges"] and said["words"] == 3
    assert tokenizer.encode("abab abab").tokens == ["abab", "Ġabab"]


def test_training_on_nothing(qkv, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    tokenizer = train(qkv, tmp_path / "empty.txt", 300)
    assert tokenizer.get_vocab_size() == 257
