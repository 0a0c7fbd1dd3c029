# SPDX-License-Identifier: Apache-2.0
"""qkv.attention_jvp and qkv.attention_second_order against differences of the formula in NumPy f64: every option."""

import numpy as np
import pytest
import qkv
from cli_cases import CASES
from test_cli_derivatives import MOVES, STEP, assert_difference, directions, moved, wide
from cli_formula import evaluate

CALLS = {**CASES, "causal_word": CASES["causal_top_left"]}


def call_of(name):
    """The tensors in f64, the formula's options, and the arguments of the package."""
    case = CALLS[name]
    tensors = {key: wide(array) for key, array in case.build("f64").items()}
    options = dict(case.options)
    if name in ("causal_offsets", "together"):
        options["causal"] = "offsets"
    rest = {key: array for key, array in tensors.items() if key not in ("q", "k", "v", "d_out", "d_lse")}
    return tensors, case.options, [tensors[key] for key in "qkv"], {**options, **rest}


@pytest.mark.parametrize("name", CALLS)
def test_jvp(name):
    tensors, options, arrays, arguments = call_of(name)
    tangents = {**directions(tensors, "t_", MOVES), "t_scale": np.array([0.25])}
    got = qkv.attention_jvp(*arrays, **tangents, **arguments)
    assert sorted(got) == ["lse", "out", "t_lse", "t_out"]
    after, before = (moved(tensors, tangents, options, step) for step in (STEP, -STEP))
    for result in ("out", "lse"):
        assert_difference("t_" + result, got["t_" + result], after[result], before[result])
    assert np.array_equal(got["out"], qkv.attention(*arrays, **arguments))


@pytest.mark.parametrize("name", CALLS)
def test_second_order(name):
    tensors, options, arrays, arguments = call_of(name)
    cotangents = directions(tensors, "c_", MOVES)
    got = qkv.attention_second_order(*arrays, tensors["d_out"], d_lse=tensors.get("d_lse"), **cotangents, **arguments)
    names = [name for name in MOVES if name in tensors]
    assert sorted(got) == sorted(["g_d_out", "g_d_lse", *("g_" + name for name in names)])
    along = directions(tensors, "", (*MOVES, "d_out", "d_lse"), seed=8)

    def at(step):
        here = {name: array + step * along[name] if name in along else array for name, array in tensors.items()}
        gradients = evaluate(here, upstream=True, **options)
        return sum((gradients["d_" + name] * cotangents["c_" + name]).sum() for name in names)

    near, far = (at(STEP) - at(-STEP)) / (2 * STEP), (at(2 * STEP) - at(-2 * STEP)) / (4 * STEP)
    derivative = sum((got["g_" + name] * along[name])[np.isfinite(tensors[name])].sum() for name in along)
    assert abs(derivative - near) <= 2 * abs(far - near) + 1e-6 * (1 + abs(near))


def test_lists_where_numbers_will_do():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, 3, 4)).astype(np.float32) for _ in range(3))
    arrays = {"t_slopes": np.array([1, 2], np.float32), "t_scale": np.array([0.5], np.float32)}
    lists = {"t_slopes": [1, 2], "t_scale": [0.5]}
    want, got = (qkv.attention_jvp(q, k, v, slopes=[0.1, 0.2], **given) for given in (arrays, lists))
    assert np.array_equal(want["t_out"], got["t_out"])


def test_wrong_calls():
    x = np.ones((1, 2, 3, 4), np.float32)
    with pytest.raises(ValueError, match="t_bias came without bias"):
        qkv.attention_jvp(x, x, x, t_bias=x)
    with pytest.raises(ValueError, match=r"c_q must be \[1, 2, 3, 4\]"):
        qkv.attention_second_order(x, x, x, x, c_q=x[..., :2])
    with pytest.raises(TypeError, match="t_q: expected an array"):
        qkv.attention_jvp(x, x, x, t_q="q")
