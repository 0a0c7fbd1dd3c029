# SPDX-License-Identifier: Apache-2.0
"""100,000 lines of mixed text through each family's tokenizer."""

import pytest
from tokenizer_check import assert_same
from tokenizer_families import EXTRA, FAMILIES
from tokenizer_text import lines


@pytest.fixture(scope="module")
def many():
    return lines(100_000, seed=2024, extra=EXTRA)


@pytest.mark.parametrize("name", FAMILIES)
def test_same_ids_and_offsets(tmp_path, many, name):
    assert_same(FAMILIES[name](), tmp_path, many)
