# SPDX-License-Identifier: Apache-2.0
"""qkv.jax against the formula in jax.numpy: values, derivatives in both modes and second ones, transforms, errors."""

import ml_dtypes
import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

jax.config.update("jax_enable_x64", True)

import qkv  # noqa: E402
import qkv.jax  # noqa: E402


def arrays(*shapes, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes]


def qkv_arrays(B=2, H=2, Hkv=1, Tq=2, Tk=4, D=2, Dv=3, **options):
    return arrays((B, H, Tq, D), (B, Hkv, Tk, D), (B, Hkv, Tk, Dv), **options)


OPTIONS = {
    "plain": {}, "scale": {"scale": 0.7}, "softcap": {"softcap": 1.5}, "top_left": {"causal": "top_left"},
    "bottom_right": {"causal": "bottom_right"}, "causal_offset": {"causal": 1},
    "offsets": {"causal": "offsets", "offsets": [1, -1]}, "window": {"window": (1, None), "offset": 1},
    "key_lengths": {"key_lengths": [4, 2]}, "query_lengths": {"query_lengths": [1, 2]},
    "mask": {"mask": np.array([[1, 0, 1, 1], [0, 0, 0, 0]], bool)[None, None]},
    "segments": {"query_segment": np.array([[0, 1], [0, 2]]), "key_segment": np.array([[0, 0, 1, 1], [0, 0, 0, 2]])},
    "block_mask": {"block_mask": np.array([[1, 0], [1, 1]], bool)[None, None], "block": (1, 2)},
    "dropout": {"dropout": 0.3, "seed": 2**64 - 1}, "slopes": {"slopes": [0.5, 0.1]}, "sinks": {"sinks": [0.5, -1.0]},
}
PARAMETERS = {"bias": (1, 2, 2, 4), "slopes": (2,), "sinks": (2,), "table": (2, 4), "scale": ()}
TABLE = {"buckets": "bidirectional", "max_distance": 3}


def check(function, inputs):
    """First derivatives in both modes, second ones in the three orders that exist, against differences and each other."""
    check_grads(function, inputs, order=1, atol=1e-5, rtol=1e-5)
    check_grads(function, inputs, order=2, modes=["rev"], atol=1e-4, rtol=1e-4)
    total = lambda *x: sum(jnp.sum(y**2) for y in jax.tree.leaves(function(*x)))  # noqa: E731
    every = tuple(range(len(inputs)))
    gradient = jax.grad(total, every)
    vector = tuple(arrays(*[x.shape for x in inputs], seed=9))
    want = jax.jvp(gradient, tuple(inputs), vector)[1]
    for got in (jax.vjp(gradient, *inputs)[1](vector), jax.grad(lambda *x: jax.jvp(total, x, vector)[1], every)(*inputs)):
        for a, b in zip(got, want):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", OPTIONS)
def test_values_are_those_of_numpy(name):
    q, k, v = qkv_arrays()
    ours, lse = qkv.jax.attention(q, k, v, return_lse=True, **OPTIONS[name])
    want, want_lse = qkv.attention(*map(np.asarray, (q, k, v)), return_lse=True, **OPTIONS[name])
    assert np.array_equal(ours, want) and np.array_equal(lse, want_lse)
    assert np.array_equal(jax.jit(lambda *x: qkv.jax.attention(*x, **OPTIONS[name]))(q, k, v), want)


@pytest.mark.parametrize("name", OPTIONS)
def test_derivatives_with_every_option(name):
    check(lambda q, k, v: qkv.jax.attention(q, k, v, **OPTIONS[name]), qkv_arrays())


@pytest.mark.parametrize("name", PARAMETERS)
def test_derivatives_of_every_parameter(name):
    options = {"softcap": 1.5, "causal": 1, **(TABLE if name == "table" else {})}
    check(lambda q, k, v, parameter: qkv.jax.attention(q, k, v, return_lse=True, **{name: parameter}, **options),
          [*qkv_arrays(), *arrays(PARAMETERS[name], seed=1)])


def test_derivatives_of_packed_sequences_and_lower_ranks():
    starts = {"query_starts": [0, 1, 4], "key_starts": [0, 2, 5]}
    check(lambda q, k, v: qkv.jax.attention(q, k, v, causal="bottom_right", **starts),
          arrays((4, 2, 2), (5, 1, 2), (5, 1, 3)))
    check(lambda q, k, v: qkv.jax.attention(q, k, v), arrays((2, 2), (3, 2), (3, 3)))


def plain(q, k, v, bias):
    k, v = (jnp.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    return jax.nn.softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + bias, -1) @ v


@pytest.mark.parametrize("transform", ["hessian", "jacrev_of_jacrev", "jacrev_of_jacfwd", "jit_of_hessian"])
def test_hessians(transform):
    point = [*qkv_arrays(), *arrays((1, 2, 2, 4), seed=1)]
    outer = {"hessian": jax.hessian, "jacrev_of_jacrev": lambda f, n: jax.jacrev(jax.jacrev(f, n), n),
             "jacrev_of_jacfwd": lambda f, n: jax.jacrev(jax.jacfwd(f, n), n),
             "jit_of_hessian": lambda f, n: jax.jit(jax.hessian(f, n))}[transform]
    ours, theirs = (outer(lambda *x: jnp.sum(attend(*x)**2), (0, 3))(*point)
                    for attend in (lambda q, k, v, bias: qkv.jax.attention(q, k, v, bias=bias), plain))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs)):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_vmap_in_any_place_and_of_gradients():
    q, k, v = arrays((3, 2, 2, 4, 2), (2, 1, 5, 2), (2, 3, 1, 5, 3))
    attend = lambda q, k, v: qkv.jax.attention(q, k, v, causal="bottom_right")  # noqa: E731
    together = jax.vmap(attend, (0, None, 1))(q, k, v)
    gradient = jax.grad(lambda *x: attend(*x).sum())
    gradients = jax.jit(jax.vmap(gradient, (0, None, 1)))(q, k, v)
    for n in range(3):
        np.testing.assert_array_equal(together[n], attend(q[n], k, v[:, n]))
        np.testing.assert_array_equal(gradients[n], gradient(q[n], k, v[:, n]))


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_every_dtype(dtype):
    point = qkv_arrays(Tq=17, Tk=23, D=16, Dv=16, dtype=dtype)
    out = qkv.jax.attention(*point)
    assert out.dtype == dtype
    assert np.array_equal(out, qkv.attention(*map(np.asarray, point)))
    loss = lambda *x: jnp.sum(qkv.jax.attention(*x).astype(jnp.float64)**2)  # noqa: E731
    narrow = jax.grad(loss, (0, 1, 2))(*point)
    wide = jax.grad(loss, (0, 1, 2))(*(x.astype(jnp.float64) for x in point))
    for a, b in zip(narrow, wide):
        assert a.dtype == dtype
        assert np.linalg.norm(np.asarray(a, np.float64) - b) <= 20 * float(jnp.finfo(dtype).eps) * np.linalg.norm(b)


def test_a_seed_may_be_traced():
    point = qkv_arrays(Tq=8, Tk=8)
    attend = lambda seed: qkv.jax.attention(*point, dropout=0.5, seed=seed)  # noqa: E731
    for dtype in (np.uint32, np.int32, np.uint64, np.int64):
        assert np.array_equal(jax.jit(attend)(jnp.asarray(7, dtype)), attend(7))
    assert not np.array_equal(attend(7), attend(8))


def test_another_seed_is_not_another_compilation():
    point = qkv_arrays()
    qkv.jax.attention(*point, dropout=0.5, seed=0)
    before = qkv.jax.primitives.forward.compiled.cache_info().misses
    for seed in range(1, 4):
        qkv.jax.attention(*point, dropout=0.5, seed=seed)
    assert qkv.jax.primitives.forward.compiled.cache_info().misses == before


def test_a_step_of_training_under_jit():
    q, k, v, bias = *qkv_arrays(B=1, Tq=8, Tk=8), jnp.zeros((1, 2, 8, 8))
    target = arrays((1, 2, 8, 3), seed=4)[0]
    loss = lambda bias: jnp.mean((qkv.jax.attention(q, k, v, bias=bias) - target)**2)  # noqa: E731
    step = jax.jit(lambda bias: bias - 0.5 * jax.grad(loss)(bias))
    before = loss(bias)
    for _ in range(5):
        bias = step(bias)
    assert loss(bias) < before


WRONG = {
    "keys": (RuntimeError, "v has 4 keys, k has 3", lambda q, k, v: qkv.jax.attention(q, k[:, :, 1:], v)),
    "causal": (ValueError, "'top_left'", lambda q, k, v: qkv.jax.attention(q, k, v, causal=True)),
    "causal_word": (RuntimeError, "'bottom_right'", lambda q, k, v: qkv.jax.attention(q, k, v, causal="upper")),
    "window": (ValueError, "window: expected", lambda q, k, v: qkv.jax.attention(q, k, v, window=3)),
    "offset": (ValueError, "exclude", lambda q, k, v: qkv.jax.attention(q, k, v, causal=1, offset=1)),
    "table": (RuntimeError, "buckets=", lambda q, k, v: qkv.jax.attention(q, k, v, table=jnp.zeros((2, 4)))),
    "seed": (RuntimeError, "seed", lambda q, k, v: qkv.jax.attention(q, k, v, dropout=0.5)),
    "negative_seed": (TypeError, "seed: expected", lambda q, k, v: qkv.jax.attention(q, k, v, dropout=0.5, seed=-1)),
    "long_seed": (TypeError, "seed: expected", lambda q, k, v: qkv.jax.attention(q, k, v, dropout=0.5, seed=2**64)),
    "dropout": (TypeError, "dropout: expected a number", lambda q, k, v: qkv.jax.attention(q, k, v, dropout="x")),
    "traced": (TypeError, "softcap: expected a number that does not depend",
               lambda q, k, v: jax.jit(lambda cap: qkv.jax.attention(q, k, v, softcap=cap))(1.0)),
    "third": (NotImplementedError, "got a third", lambda q, k, v: jax.grad(jax.grad(jax.grad(
        lambda s: qkv.jax.attention(q * s, k, v).sum())))(1.0)),
    "forward_twice": (NotImplementedError, "got forward over forward", lambda q, k, v: jax.jvp(
        lambda x: jax.jvp(lambda y: qkv.jax.attention(y, k, v), (x,), (q,))[1], (q,), (q,))),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls(name):
    kind, part, call = WRONG[name]
    with pytest.raises(kind) as error:
        jax.block_until_ready(call(*qkv_arrays()))
    assert part in str(error.value)
