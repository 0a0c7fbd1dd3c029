# SPDX-License-Identifier: Apache-2.0
"""The scripts of examples/python in a small size: what each claims to show, it shows."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "python"
SCRIPTS = ("drop_in", "relative_bias", "hessian", "flow", "same_bits")


def script(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_scripts_are_those_of_the_folder():
    assert sorted(SCRIPTS) == sorted(path.stem for path in FOLDER.glob("*.py"))


def test_drop_in_takes_less_memory_and_gives_the_same():
    done = subprocess.run([sys.executable, FOLDER / "drop_in.py", "1024"], capture_output=True, text=True, check=True)
    words = done.stdout.split()
    ours, theirs, difference = float(words[3]), float(words[7]), float(words[-1])
    assert ours < theirs and difference < 1e-5


def test_relative_bias_is_learnt():
    losses = script("relative_bias").main(300, 6)
    assert losses[-1] < 0.7 * losses[0]


def test_hessian_finds_the_sharpest_direction():
    estimates = script("hessian").main(12, 30)
    assert estimates[-1] > 0 and abs(estimates[-1] - estimates[-2]) < 0.02 * estimates[-1]


def test_flow_learns():
    before, after = script("flow").main(80)
    assert after < 0.8 * before


def test_same_bits():
    outputs, gradients = script("same_bits").main(200)
    assert len(outputs) == len(gradients) == 1


def test_the_lines_of_the_readme():
    text = (FOLDER.parents[1] / "README.md").read_text(encoding="utf-8")
    code = re.search(r"## From PyTorch\n\n```python\n(.*?)```", text, re.S).group(1)
    code = code.replace("2048", "64")
    done = subprocess.run([sys.executable, "-c", code + "\nprint(bias.grad.shape, float(curvature))"], capture_output=True,
                          text=True, check=False)
    if "No module named 'transformers'" in done.stderr:
        pytest.skip("transformers is not installed")
    assert done.stdout.startswith("torch.Size([1, 8, 1, 64]) "), done.stderr
