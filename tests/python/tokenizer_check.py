# SPDX-License-Identifier: Apache-2.0
"""Holds the program's tokens against those of the package `tokenizers`."""

import json
import subprocess

from conftest import program_path
from tokenizers import Tokenizer


def run(folder, arguments, text):
    """The finished process `qkv tokenize` of the folder's tokenizer."""
    return subprocess.run([program_path(), "tokenize", "--model", str(folder), *arguments], input=text,
                          capture_output=True)


def encode(folder, lines, *arguments):
    """What the program makes of lines: (ids, offsets) each."""
    done = run(folder, ["--json", *arguments], "".join(f"{line}\n" for line in lines).encode())
    assert done.returncode == 0, done.stderr.decode()
    found = [json.loads(line) for line in done.stdout.decode().split("\n")[:-1]]
    return [(one["ids"], [tuple(offsets) for offsets in one["offsets"]]) for one in found]


def decode(folder, lists, *arguments):
    text = "".join(" ".join(map(str, ids)) + "\n" for ids in lists)
    done = run(folder, ["--json", "--decode", *arguments], text.encode())
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line)["text"] for line in done.stdout.decode().split("\n")[:-1]]


def save(tokenizer, folder):
    (folder / "tokenizer.json").write_text(tokenizer if isinstance(tokenizer, str) else tokenizer.to_str())


def assert_same(tokenizer, folder, lines, special=True):
    """Every line: the same ids and the same offsets."""
    save(tokenizer, folder)
    if isinstance(tokenizer, str):
        tokenizer = Tokenizer.from_str(tokenizer)
    tokenizer.no_padding()
    actual = encode(folder, lines, *([] if special else ["--no-special"]))
    assert len(actual) == len(lines)
    for line, (ids, offsets) in zip(lines, actual):
        expected = tokenizer.encode(line, add_special_tokens=special)
        assert ids == expected.ids, repr(line)
        assert offsets == expected.offsets, repr(line)


def panics(tokenizer, line):
    try:
        tokenizer.encode(line)
    except BaseException as error:  # what the package raises for a bug of its own is no Exception
        return type(error).__name__ == "PanicException"
    return False


def assert_same_or_refused(tokenizer, folder, lines):
    """The same where the package gives an answer; where it gives up, a refusal."""
    hopeless = [line for line in lines if panics(tokenizer, line)]
    assert_same(tokenizer, folder, [line for line in lines if line not in hopeless])
    for line in hopeless[:5]:
        done = run(folder, [], f"{line}\n".encode())
        assert done.returncode == 2 and b"characters that are not there" in done.stderr, repr(line)


def assert_same_text(tokenizer, folder, lists, special=True):
    """Every list of ids: the same text."""
    save(tokenizer, folder)
    actual = decode(folder, lists, *([] if special else ["--no-special"]))
    for ids, text in zip(lists, actual, strict=True):
        assert text == tokenizer.decode(ids, skip_special_tokens=not special), ids
