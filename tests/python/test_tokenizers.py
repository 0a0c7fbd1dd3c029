# SPDX-License-Identifier: Apache-2.0
"""Whole tokenizers, put together as those of well-known models are: ids and offsets as the package gives them."""

import random

import pytest
from tokenizer_check import assert_same, assert_same_text
from tokenizer_families import EXTRA, FAMILIES
from tokenizer_text import lines

LINES = lines(3000, seed=5, extra=EXTRA)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return FAMILIES[request.param]()


def test_same_ids_and_offsets(family, tmp_path):
    assert_same(family, tmp_path, LINES)


def test_same_without_special_tokens(family, tmp_path):
    assert_same(family, tmp_path, LINES[:300], special=False)


@pytest.mark.parametrize("special", [True, False])
def test_same_text_of_encoded_lines(family, tmp_path, special):
    assert_same_text(family, tmp_path, [family.encode(line).ids for line in LINES[:500]], special)


@pytest.mark.parametrize("special", [True, False])
def test_same_text_of_any_ids(family, tmp_path, special):
    rng = random.Random(3)
    ids = sorted(family.get_vocab().values())
    lists = [[rng.choice(ids) for _ in range(rng.randrange(9))] for _ in range(400)]
    assert_same_text(family, tmp_path, lists, special)


@pytest.mark.parametrize("direction", ["left", "right"])
@pytest.mark.parametrize("length, stride", [(2, 0), (3, 0), (7, 3), (200, 0)])
def test_truncation(tmp_path, direction, length, stride):
    tokenizer = FAMILIES["bert"]()
    tokenizer.enable_truncation(length, stride=stride if stride < length - 2 else 0, direction=direction)
    assert_same(tokenizer, tmp_path, LINES[:300])


def test_padding_is_not_applied(tmp_path):
    tokenizer = FAMILIES["bert"]()
    tokenizer.enable_padding(length=64)
    assert_same(tokenizer, tmp_path, LINES[:50])
