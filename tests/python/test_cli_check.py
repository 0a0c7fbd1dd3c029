# SPDX-License-Identifier: Apache-2.0
"""--check and --json."""

import json

import numpy as np
import pytest
from cli_cases import CASES
from cli_files import TYPES, problem, write

KEYS = {"error", "plain_error", "ratio", "factor", "allowance", "kept"}


def gradients(tensors):
    return {"d_" + name for name in ("q", "k", "v", "bias", "slopes", "sinks", "table") if name in tensors} | {"d_scale"}


def checked(qkv, folder, tensors, verb, *arguments):
    write(folder / "in.safetensors", tensors)
    done = qkv(verb, "in.safetensors", *arguments, "--check", "--json", "-o", "out.safetensors")
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout)["check"]


@pytest.mark.parametrize("name", CASES)
def test_every_case_keeps_the_promise(qkv, tmp_path, name):
    case = CASES[name]
    tensors = case.build()
    check = checked(qkv, tmp_path, tensors, "grad", *case.arguments)
    assert check["passed"] is True
    assert set(check["tensors"]) == {"out", "lse"} | gradients(tensors)
    for one in check["tensors"].values():
        assert set(one) == KEYS
        assert one["error"] <= one["factor"] * one["plain_error"] + one["allowance"]
        assert one["kept"] is True
    assert check["tensors"]["out"]["factor"] == 2 and check["tensors"]["d_q"]["factor"] == 3


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("verb", ["attend", "grad", "probe"])
def test_every_dtype_and_verb(qkv, tmp_path, verb, dtype):
    case = CASES["together"]
    tensors = case.build(dtype)
    check = checked(qkv, tmp_path, tensors, verb, *case.arguments)
    expected = {"attend": {"out", "lse"}, "grad": {"out", "lse"} | gradients(tensors),
                "probe": {"row_entropy", "row_max", "row_top", "key_mass"}}[verb]
    assert check["passed"] is True and set(check["tensors"]) == expected


@pytest.mark.parametrize("name", CASES)
def test_probes_are_checked(qkv, tmp_path, name):
    case = CASES[name]
    tensors = case.build()
    keys = tensors["k"].shape[0 if "query_starts" in tensors else -2]
    tile = [] if "query_starts" in tensors or name == "no_queries" else ["--tile", f"1:4,0:{min(keys, 3)}"]
    check = checked(qkv, tmp_path, tensors, "probe", *case.arguments, *tile)
    assert check["passed"] is True and ("weights" in check["tensors"]) == bool(tile)


def test_more_keys_than_a_strip(qkv, tmp_path):
    """The check of probes takes keys in strips of 64."""
    tensors = problem(B=1, H=2, Hkv=1, Tq=3, Tk=200)
    assert checked(qkv, tmp_path, tensors, "probe", "--tile", "0:3,60:140")["passed"] is True


def test_nan_and_infinity_agree_with_the_reference(qkv, tmp_path):
    tensors = CASES["plain"].build()
    tensors["q"][0, 1, 2] = np.nan
    tensors["v"][1, 0, 3, 2] = np.inf
    assert checked(qkv, tmp_path, tensors, "grad")["passed"] is True
    assert checked(qkv, tmp_path, tensors, "probe")["passed"] is True


def test_check_as_text(qkv, tmp_path):
    write(tmp_path / "in.safetensors", CASES["plain"].build())
    lines = qkv("grad", "in.safetensors", "--check", "-o", "out.safetensors").stdout.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("check"))
    names = [line.split()[0] for line in lines[start + 1:]]
    assert names == ["out", "lse", "d_q", "d_k", "d_v", "d_scale"]
    assert all(len(line.split()) == 5 for line in lines[start + 1:]), "error, plain formula's, ratio, allowed"


def test_json_says_what_was_read_and_written(qkv, tmp_path):
    case = CASES["sinks"]
    write(tmp_path / "in.safetensors", case.build())
    done = qkv("attend", "in.safetensors", "--threads", "1", "--json", "-o", "out.safetensors")
    said = json.loads(done.stdout)
    assert said["verb"] == "attend" and said["output"] == "out.safetensors" and said["threads"] == 1
    assert said["inputs"]["q"] == {"dtype": "f32", "shape": [2, 4, 5, 8]} and set(said["inputs"]) == {"q", "k", "v", "sinks"}
    assert said["outputs"] == {"lse": {"dtype": "f32", "shape": [2, 4, 5]}, "out": {"dtype": "f32", "shape": [2, 4, 5, 6]}}
    assert said["target"] in json.loads(qkv("info", "--json").stdout)["targets"]
    assert said["seconds"] >= 0 and "check" not in said


def test_text_says_what_was_read_and_written(qkv, tmp_path):
    write(tmp_path / "in.safetensors", CASES["sinks"].build())
    text = qkv("attend", "in.safetensors", "--threads", "1", "-o", "out.safetensors").stdout
    for part in ("sinks", "[2, 4, 5, 6]", "f32", "out.safetensors", "1 thread"):
        assert part in text


def test_json_of_a_path_that_is_no_utf8(qkv, tmp_path):
    write(tmp_path / "in.safetensors", CASES["plain"].build())
    done = qkv("attend", "in.safetensors", "--json", "-o", b"\xff.npy".decode(errors="surrogateescape"))
    assert json.loads(done.stdout)["output"].endswith(".npy")
