# SPDX-License-Identifier: Apache-2.0
"""How the tests find and call the program.

The program is $QKV, or $QKV_BIN_DIR/qkv, or build/release/bin/qkv of this tree.
"""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def program_path():
    folder = os.environ.get("QKV_BIN_DIR", ROOT / "build" / "release" / "bin")
    return str(os.environ.get("QKV") or Path(folder) / "qkv")


@pytest.fixture(scope="session")
def program():
    path = program_path()
    assert os.access(path, os.X_OK), f"{path}: build the program first, or say where it is in QKV_BIN_DIR"
    return path


@pytest.fixture
def qkv(program, tmp_path):
    """Runs the program in the test's own folder; fails the test unless it succeeds."""

    def call(*arguments, check=True, env=None, **options):
        environment = {**os.environ, **(env or {})}
        done = subprocess.run([program, *map(str, arguments)], cwd=tmp_path, env=environment, capture_output=True,
                              text=True, **options)
        if check:
            assert done.returncode == 0, f"qkv {' '.join(map(str, arguments))}: {done.stderr}"
            assert done.stderr == ""
        return done

    return call
