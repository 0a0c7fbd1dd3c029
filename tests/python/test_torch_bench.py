# SPDX-License-Identifier: Apache-2.0
"""bench/python/table.py in a small size: every case gives qkv's own figures, and PyTorch's results agree."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

TABLE = Path(__file__).resolve().parents[2] / "bench" / "python" / "table.py"


def test_every_case_has_figures():
    done = subprocess.run([sys.executable, TABLE, "--shrink", "64", "--rounds", "1", "--filter", "T = 1024"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if re.search(r"\d ms", line)]
    assert len(rows) == 3
    for row in rows:
        _, name, ours, sdpa, _, eager, _ = (cell.strip() for cell in row.split("|"))
        for cell in (ours, sdpa, eager):
            assert re.fullmatch(r"[\d.]+ ms( \([\d.]+\))?, \d+ MiB", cell), f"{name}: {cell}"
    assert "another result" not in done.stdout
    assert re.search(r"\| qkv.torch.attention \| [\d.]+ \|", done.stdout)
