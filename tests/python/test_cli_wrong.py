# SPDX-License-Identifier: Apache-2.0
"""Every wrong call ends with its exit code and one line, and leaves every file as it was."""

import pytest
from cli_files import listing
from cli_wrong import CASES, OUTPUTS, prepare


@pytest.mark.parametrize("name", CASES)
def test_refused(qkv, tmp_path, name):
    case = CASES[name]
    arguments = prepare(case, tmp_path)
    before = listing(tmp_path)
    done = qkv(*arguments, check=False, env=case.env)
    assert_refused(done, case)
    assert listing(tmp_path) == before


@pytest.mark.parametrize("name", [name for name in CASES if name not in OUTPUTS])
def test_existing_output_is_untouched(qkv, tmp_path, name):
    case = CASES[name]
    arguments = prepare(case, tmp_path)
    for output in ("out.safetensors", "out.npy"):
        (tmp_path / output).write_bytes(b"what was here before")
    before = listing(tmp_path)
    assert_refused(qkv(*arguments, check=False, env=case.env), case)
    assert listing(tmp_path) == before


def assert_refused(done, case):
    assert done.returncode == case.code, done.stderr
    lines = done.stderr.split("\n")
    assert len(lines) == 2 and lines[1] == "", "one line, and its end"
    assert lines[0].startswith("qkv: error: ")
    assert case.message in lines[0]
    assert done.stdout == ""


def test_the_table_is_long_enough():
    assert len(CASES) >= 80
