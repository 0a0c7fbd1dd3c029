# SPDX-License-Identifier: Apache-2.0
"""qkv jvp and qkv second against differences of the formula in NumPy f64: every option."""

import numpy as np
import pytest
from cli_cases import CASES
from cli_files import TYPES, read, write
from cli_formula import evaluate

STEP = 2.0**-16
MOVES = ("q", "k", "v", "bias", "slopes", "sinks", "table")


def wide(array):
    return np.asarray(array).astype(np.float64) if np.asarray(array).dtype.kind in "fV" else array


def problem_of(case):
    """In f64 throughout, so that differences are exact enough."""
    return {name: wide(array) for name, array in case.build("f64").items() if name != "d_lse"}


def directions(tensors, prefix, names, seed=3):
    rng = np.random.default_rng(seed)
    return {prefix + name: rng.standard_normal(tensors[name].shape) for name in names if name in tensors}


def default_scale(tensors):
    width = tensors["q"].shape[-1]
    return 1 / np.sqrt(width) if width else 1.0


def moved(tensors, tangents, options, step):
    """The formula's results with inputs moved along the tangents."""
    here = {name: array + step * tangents["t_" + name] if "t_" + name in tangents else array
            for name, array in tensors.items()}
    scale = options.get("scale", default_scale(tensors)) + step * float(tangents.get("t_scale", np.zeros(1))[0])
    return evaluate(here, **{**options, "scale": scale})


def assert_difference(name, got, after, before):
    with np.errstate(invalid="ignore"):
        want = (after - before) / (2 * STEP)
    want = np.where(np.isfinite(want), want, 0)  # lse of an empty row
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", CASES)
def test_jvp(qkv, tmp_path, name):
    case = CASES[name]
    tensors = problem_of(case)
    tangents = {**directions(tensors, "t_", MOVES), "t_scale": np.array([0.25])}
    write(tmp_path / "in.safetensors", {**tensors, **tangents})
    qkv("jvp", "in.safetensors", *case.arguments, "-o", "out.safetensors")
    got = read(tmp_path / "out.safetensors")
    assert sorted(got) == ["lse", "out", "t_lse", "t_out"]
    after, before = (moved(tensors, tangents, case.options, step) for step in (STEP, -STEP))
    for result in ("out", "lse"):
        assert_difference("t_" + result, got["t_" + result], after[result], before[result])


@pytest.mark.parametrize("moving", MOVES[:3])
def test_jvp_of_one_tensor(qkv, tmp_path, moving):
    tensors = problem_of(CASES["plain"])
    tangents = directions(tensors, "t_", [moving])
    write(tmp_path / "in.safetensors", {**tensors, **tangents})
    qkv("jvp", "in.safetensors", "-o", "out.safetensors")
    after, before = (moved(tensors, tangents, {}, step) for step in (STEP, -STEP))
    assert_difference("t_out", read(tmp_path / "out.safetensors")["t_out"], after["out"], before["out"])


@pytest.mark.parametrize("dtype", TYPES)
def test_jvp_of_every_dtype_keeps_the_promise(qkv, tmp_path, dtype):
    case = CASES["together"]
    tensors = case.build(dtype)
    rng = np.random.default_rng(5)
    tangents = {"t_" + name: rng.standard_normal(tensors[name].shape).astype(tensors[name].dtype)
                for name in MOVES if name in tensors}
    write(tmp_path / "in.safetensors", {**tensors, **tangents})
    text = qkv("jvp", "in.safetensors", *case.arguments, "--check", "-o", "out.safetensors").stdout
    for name in ("out", "lse", "t_out", "t_lse"):
        assert f"        {name} " in text
    assert read(tmp_path / "out.safetensors")["t_out"].dtype == TYPES[dtype]


DOUBLE = ("q", "k", "v", "bias")


def pulled(tensors, cotangents, options):
    """<cotangents, gradients> by the formula."""
    gradients = evaluate(tensors, upstream=True, **options)
    return sum((gradients["d_" + name] * cotangents["c_" + name]).sum() for name in DOUBLE if name in tensors)


@pytest.mark.parametrize("name", CASES)
def test_second(qkv, tmp_path, name):
    case = CASES[name]
    tensors = problem_of(case)
    cotangents = directions(tensors, "c_", DOUBLE)
    write(tmp_path / "in.safetensors", {**tensors, **cotangents})
    qkv("second", "in.safetensors", *case.arguments, "-o", "out.safetensors")
    got = read(tmp_path / "out.safetensors")
    assert sorted(got) == sorted(["g_d_out", *("g_" + name for name in DOUBLE if name in tensors)])
    along = directions(tensors, "", (*DOUBLE, "d_out"), seed=8)

    def at(step):
        return pulled({name: array + step * along[name] if name in along else array for name, array in tensors.items()},
                      cotangents, case.options)

    near, far = (at(STEP) - at(-STEP)) / (2 * STEP), (at(2 * STEP) - at(-2 * STEP)) / (4 * STEP)
    derivative = sum((got["g_" + name] * along[name])[np.isfinite(tensors[name])].sum() for name in along)
    assert abs(derivative - near) <= 2 * abs(far - near) + 1e-6 * (1 + abs(near))


@pytest.mark.parametrize("dtype", TYPES)
def test_second_of_every_dtype_keeps_the_promise(qkv, tmp_path, dtype):
    case = CASES["together"]
    tensors = case.build(dtype)
    rng = np.random.default_rng(5)
    cotangents = {"c_" + name: rng.standard_normal(tensors[name].shape).astype(tensors[name].dtype) for name in DOUBLE}
    write(tmp_path / "in.safetensors", {**tensors, **cotangents})
    text = qkv("second", "in.safetensors", *case.arguments, "--check", "-o", "out.safetensors").stdout
    for name in ("g_q", "g_k", "g_v", "g_bias", "g_d_out"):
        assert f"        {name} " in text
    assert read(tmp_path / "out.safetensors")["g_q"].dtype == TYPES[dtype]
