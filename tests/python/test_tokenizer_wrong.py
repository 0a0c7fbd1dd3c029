# SPDX-License-Identifier: Apache-2.0
"""Files and calls that are refused, each with its exit code and one line that names what is wrong."""

import json

import pytest
from tokenizer_cases import trained

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def good():
    return {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": dict(BYTE_LEVEL),
            "post_processor": None, "decoder": None, "added_tokens": [token("<s>", 0)],
            "model": json.loads(json.dumps(trained("byte_level")))}


def token(content, id, **more):
    return {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True, **more}


def put(*path):
    """Sets the value at the end of a path of keys: put("model", "dropout", 0.1)."""
    *keys, last, value = path

    def change(file):
        for key in keys:
            file = file[key]
        file[last] = value

    return change


def drop(*path):
    *keys, last = path

    def change(file):
        for key in keys:
            file = file[key]
        del file[last]

    return change


def model(kind, *path):
    def change(file):
        file["model"] = json.loads(json.dumps(trained(kind)))
        put("model", *path)(file)

    return change


def normalizer(**fields):
    return put("normalizer", fields)


def template(single, pair=(), tokens=("<s>",)):
    special = {name: {"id": name, "ids": [0], "tokens": [name]} for name in tokens}
    return put("post_processor", {"type": "TemplateProcessing", "single": single, "pair": list(pair), "special_tokens": special})


FILES = {
    "unknown_key": (put("extra", 1), "unknown key \"extra\""),
    "version": (put("version", "2.0"), "version: expected \"1.0\", got \"2.0\""),
    "no_model": (drop("model"), "expected the key \"model\""),
    "model_is_a_list": (put("model", []), "model: expected an object"),
    "unknown_model": (put("model", "type", "Markov"), "model: type: expected one of BPE, WordPiece, WordLevel, Unigram, got \"Markov\""),
    "unknown_key_of_model": (put("model", "cache", 3), "model: unknown key \"cache\""),
    "dropout": (put("model", "dropout", 0.1), "dropout: expected null, got 0.1"),
    "no_vocab": (drop("model", "vocab"), "\"vocab\""),
    "vocab_is_a_list": (put("model", "vocab", []), "\"vocab\" with an object, got a list"),
    "id_negative": (put("model", "vocab", "xyz", -1), "vocab: expected tokens with ids, got -1"),
    "id_fractional": (put("model", "vocab", "xyz", 1.5), "vocab: expected tokens with ids, got 1.5"),
    "id_too_large": (put("model", "vocab", "xyz", 2**32), "expected an id below 2^32"),
    "id_twice": (put("model", "vocab", "xyz", 5), "the id 5 is given to both"),
    "no_merges": (drop("model", "merges"), "\"merges\""),
    "merge_of_unknown_token": (put("model", "merges", [["xyz", "a"]]), "merges: the token \"xyz\" is not in the vocabulary"),
    "merge_to_unknown_token": (put("model", "merges", [["<s>", "<s>"]]), "merges: the token \"<s><s>\" is not"),
    "merge_of_three": (put("model", "merges", [["a", "b", "c"]]), "merges: expected pairs of tokens"),
    "merge_of_one": (put("model", "merges", [["a"]]), "merges: expected pairs of tokens"),
    "merge_line": (put("model", "merges", ["a b c"]), "expected two tokens with a blank between, got \"a b c\""),
    "merge_number": (put("model", "merges", [7]), "merges: expected pairs of tokens, got 7"),
    "unigram_id": (model("unigram", "unk_id", 10**6), "unk_id: expected one of"),
    "unigram_vocab": (model("unigram", "vocab", [["a"]]), "vocab: expected pairs of a token and a score"),
    "unigram_score": (model("unigram", "vocab", [["a", "b"]]), "vocab: expected pairs of a token and a score, got \"b\""),
    "word_piece_field": (model("word_piece", "max_input_chars_per_word", None), "max_input_chars_per_word: expected an integer"),
    "unknown_normalizer": (normalizer(type="Rot13"), "normalizer: type: expected one of BertNormalizer"),
    "unknown_pre_tokenizer": (put("pre_tokenizer", {"type": "Rot13"}), "pre_tokenizer: type: expected one of BertPreTokenizer"),
    "unknown_post_processor": (put("post_processor", {"type": "Rot13"}), "post_processor: type: expected one of RobertaProcessing"),
    "unknown_decoder": (put("decoder", {"type": "Rot13"}), "decoder: type: expected one of BPEDecoder"),
    "nested": (normalizer(type="Sequence", normalizers=[{"type": "NFC"}, {"type": "Rot13"}]), "normalizer: Sequence: 1: type"),
    "missing_field": (normalizer(type="Strip", strip_left=True), "Strip: expected the key \"strip_right\""),
    "wrong_type": (normalizer(type="Strip", strip_left=1, strip_right=True), "strip_left: expected true or false, got 1"),
    "unknown_field": (normalizer(type="NFC", fast=True), "NFC: unknown key \"fast\""),
    "bad_regex": (normalizer(type="Replace", pattern={"Regex": "(a"}, content=""), "expected a regular expression, got \"(a\""),
    "bad_pattern": (normalizer(type="Replace", pattern={"Glob": "*"}, content=""), "pattern: expected the key \"Regex\""),
    "bad_base64": (normalizer(type="Precompiled", precompiled_charsmap="####"), "expected base64"),
    "short_charsmap": (normalizer(type="Precompiled", precompiled_charsmap="AAAA"), "expected a trie and a text"),
    "long_trie": (normalizer(type="Precompiled", precompiled_charsmap="/////wAAAAA="), "expected a trie of 1073741823 units"),
    "behavior": (put("pre_tokenizer", {"type": "Split", "pattern": {"String": "a"}, "behavior": "Eaten", "invert": False}),
                 "behavior: expected one of Removed"),
    "prepend_scheme": (put("pre_tokenizer", {"type": "Metaspace", "replacement": "_", "prepend_scheme": "often"}), "expected one of always"),
    "add_prefix_space": (put("pre_tokenizer", {"type": "Metaspace", "replacement": "_", "add_prefix_space": False}), "prepend_scheme \"never\""),
    "replacement": (put("pre_tokenizer", {"type": "Metaspace", "replacement": "__"}), "replacement: expected one character"),
    "length_zero": (put("pre_tokenizer", {"type": "FixedLength", "length": 0}), "length: expected at least 1"),
    "template_token": (template([{"SpecialToken": {"id": "<x>", "type_id": 0}}]), "\"<x>\" is not among the special_tokens"),
    "template_pair": (template([{"Sequence": {"id": "B", "type_id": 0}}]), "speaks of a sequence B"),
    "template_piece": (template([{"Word": {}}]), "expected the key \"SpecialToken\""),
    "added_id": (put("added_tokens", [token("new", 7)]), "\"new\": expected the id 900"),
    "added_twice": (put("added_tokens", [token("<s>", 0), token("<s>", 0, lstrip=True)]), "\"<s>\" occurs twice"),
    "added_field": (put("added_tokens", [{"id": 0, "content": "<s>"}]), "added_tokens: 0: expected the key \"single_word\""),
    "added_is_an_object": (put("added_tokens", {}), "added_tokens: expected a list"),
    "truncation": (put("truncation", {"max_length": 3, "stride": 0, "strategy": "Fair", "direction": "Right"}), "expected one of LongestFirst"),
    "max_length": (put("truncation", {"max_length": -3, "stride": 0, "strategy": "LongestFirst"}), "max_length: expected an integer"),
}


@pytest.mark.parametrize("name", FILES)
def test_wrong_file(qkv, tmp_path, name):
    change, message = FILES[name]
    file = good()
    change(file)
    (tmp_path / "tokenizer.json").write_text(json.dumps(file))
    assert_refused(qkv("tokenize", "--model", ".", input="text\n", check=False), 2, message)


TEXTS = {
    "empty": ("", "not valid JSON"), "no_json": ("{", "not valid JSON at byte"), "a_list": ("[]", "expected a JSON object, got a list"),
    "a_number": ("7", "expected a JSON object, got 7"), "mark": ("\ufeff{}", "byte order mark"),
    "key_twice": ('{"version": "1.0", "version": "1.0"}', "the key \"version\" occurs twice"),
    "vocab_twice": ('{"model": {"vocab": {}, "vocab": {}}}', "the key \"vocab\" occurs twice"),
    "merges_twice": ('{"model": {"merges": [], "merges": []}}', "the key \"merges\" occurs twice"),
    "token_twice": ('{"model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "a": 1}}}', "the token \"a\" occurs twice"),
    "deep": ('{"a":' + "[" * 100 + "]" * 100 + "}", "nested more than"),
    "surrogate": ('{"version": "\\ud800"}', "not valid JSON"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_wrong_text(qkv, tmp_path, name):
    text, message = TEXTS[name]
    (tmp_path / "tokenizer.json").write_text(text)
    assert_refused(qkv("tokenize", "--model", "tokenizer.json", input="text\n", check=False), 2, message)


INPUTS = {
    "invalid_utf8": ([], b"good\nab\xffc\n", "line 2: text: byte 3 is not valid UTF-8"),
    "overlong": ([], b"\xc0\x80\n", "line 1: text: byte 1"), "surrogate": ([], b"a\xed\xa0\x80\n", "line 1: text: byte 2"),
    "too_large": ([], b"\xf4\x90\x80\x80\n", "line 1: text: byte 1"), "cut_off": ([], b"\n\nab\xe2\x82", "line 3: text: byte 3"),
    "id_unknown": (["--decode"], b"1 2\n99999\n", "line 2: token id 99999 is not in the vocabulary"),
    "id_negative": (["--decode"], b"-1\n", "line 1: expected token ids, decimal, got '-1'"),
    "id_word": (["--decode"], b"1 two 3\n", "got 'two'"), "id_missing": (["--decode"], b"1,,2\n", "got ''"),
    "id_after_comma": (["--decode"], b"1, 2,\n", "after the last comma"), "id_huge": (["--decode"], b"4294967296\n", "4294967296"),
}


@pytest.mark.parametrize("name", INPUTS)
def test_wrong_input(program, tmp_path, name):
    import subprocess
    options, text, message = INPUTS[name]
    (tmp_path / "tokenizer.json").write_text(json.dumps(good()))
    done = subprocess.run([program, "tokenize", "--model", tmp_path, *options], input=text, capture_output=True)
    assert done.returncode == 2 and message in done.stderr.decode(), done.stderr
    assert done.stderr.count(b"\n") == 1


CALLS = {
    "no_model": ("tokenize", 2, "--model is required"), "model_missing": ("tokenize --model nowhere", 1, "nowhere"),
    "folder_without_file": ("tokenize --model empty", 1, "tokenizer.json"),
    "decode_and_offsets": ("tokenize --model empty --decode --offsets", 2, "exclude each other"),
    "dtype": ("tokenize --model empty --dtype f64", 2, "--dtype: expected f32 or bf16"),
    "threads": ("tokenize --model empty --threads 0", 2, "--threads"),
    "what_to_train": ("tokenizer", 2, "subcommand is required; see qkv tokenizer --help"),
    "train_dtype": ("tokenizer train --data a.txt --vocabulary 300 -o t.json --dtype f64", 2, "--dtype: expected f32 or bf16"),
    "train_option": ("tokenizer train --data a.txt --vocabulary 300 -o t.json --nosuch", 2, "see qkv tokenizer train --help"),
    "no_data": ("tokenizer train --vocabulary 300 -o t.json", 2, "--data is required; see qkv tokenizer train --help"),
    "data_missing": ("tokenizer train --data nowhere.txt --vocabulary 300 -o t.json", 1, "nowhere.txt"),
    "vocabulary": ("tokenizer train --data a.txt --vocabulary 256 -o t.json", 2, "expected a vocabulary of at least 257"),
    "vocabulary_word": ("tokenizer train --data a.txt --vocabulary many -o t.json", 2, "--vocabulary"),
    "output_is_data": ("tokenizer train --data a.txt --vocabulary 300 -o ./a.txt", 2, "is the input a.txt"),
    "output_is_folder": ("tokenizer train --data a.txt --vocabulary 300 -o empty", 2, "a folder stands where a file goes"),
    "output_nowhere": ("tokenizer train --data a.txt --vocabulary 300 -o no/t.json", 1, "no/t.json: no such folder: no"),
    "data_invalid": ("tokenizer train --data bad.txt --vocabulary 300 -o t.json", 2, "bad.txt: line 2: byte 3 is not valid UTF-8"),
    "special_twice": ("tokenizer train --data a.txt --vocabulary 300 -o t.json --special x1 x1", 2, "\"x1\" is given twice"),
    "special_byte": ("tokenizer train --data a.txt --vocabulary 300 -o t.json --special x", 2, "is the token of a byte"),
}


@pytest.mark.parametrize("name", CALLS)
def test_wrong_call(qkv, tmp_path, name):
    arguments, code, message = CALLS[name]
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.txt").write_text("some text\n")
    (tmp_path / "bad.txt").write_bytes(b"some\nab\xff\n")
    before = sorted(path.name for path in tmp_path.iterdir())
    done = qkv(*arguments.split(), input="", check=False)
    assert_refused(done, code, message)
    assert done.stdout == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_truncation_that_cannot_be(qkv, tmp_path):
    file = good()
    file["truncation"] = {"max_length": 4, "stride": 4, "strategy": "LongestFirst", "direction": "Right"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(file))
    assert_refused(qkv("tokenize", "--model", ".", input="a\none two three four five six\n", check=False), 2, "expected a stride below 4, got 4")
    file["truncation"] = {"max_length": 1, "stride": 0, "strategy": "OnlySecond", "direction": "Right"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(file))
    assert_refused(qkv("tokenize", "--model", ".", input="one two\n", check=False), 2, "OnlySecond cuts no single text")


def assert_refused(done, code, message):
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("qkv: error: ") and done.stderr.count("\n") == 1
    assert message in done.stderr, done.stderr
