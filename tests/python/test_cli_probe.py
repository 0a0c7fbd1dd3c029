# SPDX-License-Identifier: Apache-2.0
"""qkv probe against the formula in NumPy f64."""

import numpy as np
import pytest
from cli_cases import CASES, assert_close, terms
from cli_files import TYPES, read, read_folder, write
from cli_formula import evaluate

STATISTICS = ["row_entropy", "row_max", "row_top", "key_mass"]


@pytest.mark.parametrize("name", CASES)
def test_statistics(qkv, tmp_path, name):
    case = CASES[name]
    tensors = case.build()
    write(tmp_path / "in.safetensors", tensors)
    qkv("probe", "in.safetensors", *case.arguments, "-o", "out.safetensors")
    got = read(tmp_path / "out.safetensors")
    assert sorted(got) == sorted(STATISTICS)
    want = evaluate(tensors, **case.options)
    if name in ("packed", "packed_causal"):
        want["key_mass"] = packed_key_mass(tensors, case)
    for statistic in STATISTICS:
        assert_close(statistic, got[statistic], want[statistic], terms(tensors))


def packed_key_mass(tensors, case):
    """[total_k, H], sequence by sequence."""
    options = {name: value for name, value in case.options.items() if name not in ("dropout", "seed")}
    return evaluate(tensors, **options)["key_mass"]


@pytest.mark.parametrize("dtype", TYPES)
def test_dtypes_and_a_folder(qkv, tmp_path, dtype):
    """Statistics are f32, or f64 for f64: .npy can hold them for bf16 too."""
    tensors = CASES["sinks"].build(dtype)
    write(tmp_path / "in.safetensors", tensors)
    qkv("probe", "in.safetensors", "-o", "probes")
    got = read_folder(tmp_path / "probes")
    want = evaluate(tensors)
    for statistic in ("row_entropy", "row_max", "key_mass"):
        assert got[statistic].dtype == (np.float64 if dtype == "f64" else np.float32)
        assert_close(statistic, got[statistic], want[statistic], terms(tensors))


@pytest.mark.parametrize("name", ["plain", "rank_3", "rank_2", "together", "no_keys"])
@pytest.mark.parametrize("tile", ["0:5,0:7", "1:4,2:3", "2:2,0:0"])
def test_tile(qkv, tmp_path, name, tile):
    case = CASES[name]
    tensors = case.build()
    q0, q1, k0, k1 = (int(number) for number in tile.replace(",", ":").split(":"))
    if name == "no_keys":
        k0 = k1 = 0
    write(tmp_path / "in.safetensors", tensors)
    qkv("probe", "in.safetensors", *case.arguments, "--tile", f"{q0}:{q1},{k0}:{k1}", "-o", "out.safetensors")
    want = evaluate(tensors, **case.options)["weights"][..., q0:q1, k0:k1]
    assert_close("weights", read(tmp_path / "out.safetensors")["weights"], want, terms(tensors))


def edges(tensors, case, query, count):
    """Removal effects by the formula, and by evaluating without the key."""
    full = evaluate(tensors, **case.options)
    v = np.repeat(np.asarray(tensors["v"], np.float64), tensors["q"].shape[1] // tensors["v"].shape[1], 1)
    B, H = tensors["q"].shape[:2]
    keys = np.full((B, H, count), -1)
    zero, hide = np.zeros((2, B, H, count, v.shape[3]))
    for b, h in np.ndindex(B, H):
        a = full["weights"][b, h, query]
        for n, j in enumerate(np.argsort(-a, kind="stable")[:count]):
            if a[j] == 0:
                continue
            keys[b, h, n] = j
            zero[b, h, n] = -a[j] * v[b, h, j]
            shown = np.ones(np.asarray(tensors["k"]).shape[2], np.uint8)
            shown[j] = 0
            other = evaluate({**tensors, "mask": shown[None, None, None] & tensors.get("mask", np.uint8(1))}, **case.options)
            hide[b, h, n] = (other["out"] - full["out"])[b, h, query]
    return {"edge_keys": keys, "edge_zero_value": zero, "edge_hide_key": hide}


@pytest.mark.parametrize("name", ["plain", "sinks", "causal_top_left", "lengths", "one_key"])
def test_edges(qkv, tmp_path, name):
    case = CASES[name]
    tensors = case.build()
    count = min(3, tensors["k"].shape[2])
    write(tmp_path / "in.safetensors", tensors)
    qkv("probe", "in.safetensors", *case.arguments, "--edges", f"2:{count}", "-o", "out.safetensors")
    got = read(tmp_path / "out.safetensors")
    for array, want in edges(tensors, case, 2, count).items():
        assert_close(array, got[array], want, terms(tensors))
