# SPDX-License-Identifier: Apache-2.0
"""The numbers that tests/nn and tests/positions compare with are what PyTorch and transformers give today."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import load_file  # noqa: E402

DATA = Path(__file__).resolve().parent.parent / "data"
sys.path.insert(0, str(DATA))

import layers  # noqa: E402


def test_the_files_hold_what_the_script_gives():
    for name, tensors in layers.files().items():
        stored = load_file(DATA / name)
        assert stored.keys() == tensors.keys()
        for key, tensor in tensors.items():
            # Another version may sum in another order: some hundred roundings of the largest number.
            largest = max(1.0, tensor.abs().max().item())
            unit = 2.0 ** -52 if tensor.dtype.itemsize == 8 else 2.0 ** -23
            assert stored[key].dtype == tensor.dtype, key
            assert (stored[key] - tensor).abs().max().item() <= 512 * unit * largest, key
