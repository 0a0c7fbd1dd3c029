# SPDX-License-Identifier: Apache-2.0
"""Code points one by one: normalized, split and matched as the package does it. A line for each 64, in text around.

Ideographs, syllables and unassigned planes, where hardly anything differs, are left to long_tokenizer_unicode.py.
"""

import pytest
from test_tokenizer_components import in_bytes
from tokenizer_cases import build
from tokenizer_check import assert_same
from tokenizers import Regex, normalizers, pre_tokenizers

N, P = normalizers, pre_tokenizers
ALL_POINTS = [point for point in range(0x110000) if point != 0x0A and not 0xD800 <= point < 0xE000]
POINTS = [point for point in ALL_POINTS if point < 0x3400 or 0xA000 <= point < 0xAC20 or 0xD790 <= point < 0xE010
          or 0xF900 <= point < 0x12000 or 0x16A00 <= point < 0x17000 or 0x1AFF0 <= point < 0x20000 or 0xE0000 <= point < 0xE0200]


def lines(form):
    characters = [form.format(chr(point)) for point in POINTS]
    return ["".join(characters[first:first + 64]) for first in range(0, len(characters), 64)]


@pytest.mark.parametrize("name", ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "BertNormalizer"])
def test_normalizers_of_every_code_point(tmp_path, name):
    assert_same(in_bytes(normalizer=getattr(N, name)()), tmp_path, lines("a{}"))


@pytest.mark.parametrize("form", ["NFD", "NFC"])
def test_marks_are_sorted_and_composed(tmp_path, form):
    """A starter, the mark that is sorted last, the code point, a mark of the middle, and one that composes."""
    assert_same(in_bytes(normalizer=getattr(N, form)()), tmp_path, lines("e\u0345{}\u0323\u0301"))


@pytest.mark.parametrize("pre_tokenizer", [P.Whitespace(), P.WhitespaceSplit(), P.Punctuation(), P.Digits(True),
                                           P.UnicodeScripts(), P.BertPreTokenizer()], ids=lambda one: type(one).__name__)
def test_pre_tokenizers_of_every_code_point(tmp_path, pre_tokenizer):
    assert_same(build("word_level", pre_tokenizer=pre_tokenizer), tmp_path, lines("a{}1"))


@pytest.mark.parametrize("expression", [
    r"\p{L}+", r"\p{N}", r"\p{M}+", r"\p{Lu}|\p{Lt}", r"\p{Ll}+", r"\p{Lm}", r"\p{Lo}", r"[\p{P}\p{S}]+", r"\s", r"\S+", r"\P{L}",
    r"[^\p{L}\s]", r"(?i:sk|[tk]x)"])
def test_classes_of_regular_expressions(tmp_path, expression):
    tokenizer = build("word_level", pre_tokenizer=P.Split(Regex(expression), "isolated"))
    assert_same(tokenizer, tmp_path, lines("1{}"))
