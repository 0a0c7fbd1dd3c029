# SPDX-License-Identifier: Apache-2.0
"""The Python package against the formula in NumPy f64, and how it behaves as a guest in Python."""

import ast
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import qkv
from cli_cases import CASES, EPSILON, Case, assert_close, terms
from cli_files import TYPES
from cli_formula import evaluate

PACKAGE = Path(qkv.__file__).parent


def split(tensors):
    """Positional arguments, upstream, and the rest by keyword."""
    rest = {name: array for name, array in tensors.items() if name not in ("q", "k", "v", "d_out", "d_lse")}
    return [tensors[name] for name in ("q", "k", "v")], tensors["d_out"], tensors.get("d_lse"), rest


def keywords(name, case, rest):
    options = dict(case.options)
    if name in ("causal_offsets", "together"):
        options["causal"] = "offsets"
    return {**options, **rest}


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def inputs(dtype=np.float32, B=2, H=4, Hkv=2, Tq=9, Tk=11, D=8, Dv=6, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for shape in ((B, H, Tq, D), (B, Hkv, Tk, D), (B, Hkv, Tk, Dv))]


@pytest.mark.parametrize("name", CASES)
def test_attention_and_gradients_are_the_formula(name):
    case = CASES[name]
    tensors = case.build()
    arrays, d_out, d_lse, rest = split(tensors)
    options = keywords(name, case, rest)
    want = evaluate(tensors, upstream=True, **case.options)
    out, lse = qkv.attention(*arrays, return_lse=True, **options)
    assert_close("out", out, want["out"], terms(tensors))
    assert_close("lse", lse, want["lse"], terms(tensors))
    got = qkv.attention_grad(*arrays, d_out, d_lse=d_lse, **options)
    given = [x for x in ("q", "k", "v", "bias", "slopes", "sinks", "table") if x in tensors]
    assert sorted(got) == sorted(["out", "lse", "d_scale", *("d_" + x for x in given)])
    for result, array in got.items():
        assert_close(result, array, want[result], terms(tensors))
    assert same_bits(got["out"], out) and same_bits(got["lse"], lse)


@pytest.mark.parametrize("dtype", TYPES)
def test_every_dtype(dtype):
    case = Case()
    tensors = case.build(dtype)
    arrays, d_out, _, _ = split(tensors)
    want = evaluate(tensors, upstream=True)
    got = qkv.attention_grad(*arrays, d_out)
    for name in ("out", "d_q", "d_k", "d_v"):
        assert got[name].dtype == TYPES[dtype]
        assert_close(name, got[name], want[name], terms(tensors))


def test_probe_gives_what_the_weights_say():
    q, k, v = inputs()
    weights = qkv.probe(q, k, v, causal="bottom_right", tile=((0, 9), (0, 11)))
    a = weights["weights"].astype(np.float64)
    np.testing.assert_allclose(a.sum(-1), 1, rtol=1e-6)
    np.testing.assert_allclose(weights["key_mass"], a.sum(2), rtol=1e-6)
    np.testing.assert_allclose(weights["row_max"], a.max(-1), rtol=1e-6)
    assert (weights["row_top"] == a.argmax(-1)).all()
    np.testing.assert_allclose(weights["row_entropy"], -(a * np.log(np.where(a > 0, a, 1))).sum(-1), rtol=1e-5)
    edges = qkv.probe(q, k, v, edges=(3, 2))
    assert edges["edge_keys"].shape == (2, 4, 2) and edges["edge_hide_key"].shape == (2, 4, 2, 6)
    hidden = np.ones((2, 4, 9, 11), bool)
    hidden[1, 2, 3, edges["edge_keys"][1, 2, 0]] = False
    change = qkv.attention(q, k, v, mask=hidden) - qkv.attention(q, k, v)
    np.testing.assert_allclose(edges["edge_hide_key"][1, 2, 0], change[1, 2, 3], atol=1e-6)


def test_any_strides_without_copies_and_read_only():
    q, k, v = inputs()
    want = qkv.attention(q, k, v)
    token_major = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for x in (q, k, v)]
    columns = [np.ascontiguousarray(x.swapaxes(2, 3)).swapaxes(2, 3) for x in (q, k, v)]
    reverse = [x[:, :, ::-1].copy()[:, :, ::-1] for x in (q, k, v)]
    apart = [np.repeat(x, 3, axis=-1)[..., ::3] for x in (q, k, v)]
    for arrays in (token_major, columns, reverse, apart):
        for array in arrays:
            array.flags.writeable = False
        assert same_bits(qkv.attention(*arrays), want)
    one = np.broadcast_to(k[:1], k.shape)
    assert same_bits(qkv.attention(q, one, v), qkv.attention(q, one.copy(), v))
    # A problem of 16 TB that is one row of memory: a copy could not be made.
    huge = np.broadcast_to(np.float32(1), (1, 1, 2**40, 4))
    assert qkv.attention(q[:1, :1, :1, :4], huge, huge, key_lengths=[3])[0, 0, 0, 0] == 1


class Exporter:
    """An array that only speaks DLPack, as those of other libraries do."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_dlpack_and_memoryviews():
    q, k, v = inputs()
    want = qkv.attention(q, k, v)
    assert same_bits(qkv.attention(Exporter(q), Exporter(k), Exporter(v)), want)
    assert same_bits(qkv.attention(memoryview(q), memoryview(k), memoryview(v)), want)


def test_bfloat16_of_any_strides():
    q, k, v = inputs(ml_dtypes.bfloat16)
    want = qkv.attention(q, k, v)
    assert want.dtype == ml_dtypes.bfloat16
    assert same_bits(qkv.attention(q, np.repeat(k, 2, axis=2)[:, :, ::2], v), want)


def test_lists_where_numbers_will_do():
    q, k, v = inputs()
    lists = qkv.attention(q, k, v, key_lengths=[3, 7], slopes=[1, 0.5, 0.25, 0.125], sinks=(0, 0, 1, 1))
    arrays = qkv.attention(q, k, v, key_lengths=np.array([3, 7], np.int32),
                           slopes=np.array([1, 0.5, 0.25, 0.125], np.float32), sinks=np.array([0, 0, 1, 1], np.float32))
    assert same_bits(lists, arrays)


def test_only_the_gradients_that_are_wanted():
    q, k, v = inputs()
    bias = np.zeros((1, 4, 9, 11), np.float32)
    everything = qkv.attention_grad(q, k, v, np.ones((2, 4, 9, 6), np.float32), bias=bias)
    some = qkv.attention_grad(q, k, v, np.ones((2, 4, 9, 6), np.float32), bias=bias, wanted=["bias", "v"])
    assert sorted(some) == ["d_bias", "d_v", "lse", "out"]
    for name, array in some.items():
        assert same_bits(array, everything[name])


Q, K, V = inputs()
WRONG = {
    "not an array": (TypeError, "q: expected an array", lambda: qkv.attention("q", K, V)),
    "a list for q": (TypeError, "q: expected an array", lambda: qkv.attention([[1.0]], K, V)),
    "complex": (TypeError, "k: expected float64", lambda: qkv.attention(Q, K.astype(complex), V)),
    "byte order": (TypeError, "native byte order", lambda: qkv.attention(Q.astype(">f4"), K, V)),
    "integers": (TypeError, "q must be f64, f32, bf16 or f16", lambda: qkv.attention(Q.astype(np.int32), K, V)),
    "two dtypes": (TypeError, "k is f64, q is f32", lambda: qkv.attention(Q, K.astype(np.float64), V)),
    "bias of integers": (TypeError, "bias must be f32", lambda: qkv.attention(Q, K, V, bias=np.zeros((1, 1, 1, 1), int))),
    "mask of floats": (TypeError, "mask must be bool or u8", lambda: qkv.attention(Q, K, V, mask=np.zeros((1, 1, 1, 1)))),
    "keys and values": (ValueError, "v has 11 keys, k has 10", lambda: qkv.attention(Q, K[:, :, 1:], V)),
    "rank": (ValueError, "q", lambda: qkv.attention(Q[0, 0, 0], K, V)),
    "too many axes": (ValueError, "q has 6 axes", lambda: qkv.attention(Q[None, None], K, V)),
    "only causal": (ValueError, "'top_left'", lambda: qkv.attention(Q, K, V, causal=True)),
    "causal word": (ValueError, "'bottom_right'", lambda: qkv.attention(Q, K, V, causal="upper")),
    "causal offsets": (ValueError, "needs the array offsets", lambda: qkv.attention(Q, K, V, causal="offsets")),
    "causal and offset": (ValueError, "exclude", lambda: qkv.attention(Q, K, V, causal=2, offset=1)),
    "unknown option": (TypeError, "'slope'", lambda: qkv.attention(Q, K, V, slope=1)),
    "window": (ValueError, "window: expected (left, right)", lambda: qkv.attention(Q, K, V, window=3)),
    "window of words": (TypeError, "window: expected an integer", lambda: qkv.attention(Q, K, V, window=("a", 1))),
    "negative window": (ValueError, "window", lambda: qkv.attention(Q, K, V, window=(-1, 1))),
    "scale": (TypeError, "scale: expected a number", lambda: qkv.attention(Q, K, V, scale="big")),
    "scale of nan": (ValueError, "scale", lambda: qkv.attention(Q, K, V, scale=float("nan"))),
    "dropout without seed": (ValueError, "seed", lambda: qkv.attention(Q, K, V, dropout=0.1)),
    "dropout of 1": (ValueError, "dropout", lambda: qkv.attention(Q, K, V, dropout=1.0, seed=1)),
    "negative seed": (TypeError, "seed", lambda: qkv.attention(Q, K, V, dropout=0.1, seed=-1)),
    "threads": (ValueError, "threads: expected 0 (all) to 4096", lambda: qkv.attention(Q, K, V, threads=-1)),
    "lengths": (ValueError, "key_lengths[1] is 12", lambda: qkv.attention(Q, K, V, key_lengths=[1, 12])),
    "table": (ValueError, "buckets=", lambda: qkv.attention(Q, K, V, table=np.zeros((4, 8), np.float32))),
    "d_out": (ValueError, "d_out", lambda: qkv.attention_grad(Q, K, V, Q)),
    "wanted": (ValueError, "wanted", lambda: qkv.attention_grad(Q, K, V, Q[..., :6], wanted=["out"])),
    "wanted bias": (ValueError, "bias", lambda: qkv.attention_grad(Q, K, V, Q[..., :6], wanted=["bias"])),
    "tile": (ValueError, "tile", lambda: qkv.probe(Q, K, V, tile=(0, 1))),
    "tile beyond": (ValueError, "12", lambda: qkv.probe(Q, K, V, tile=((0, 1), (0, 12)))),
    "memory": (MemoryError, "no memory for", lambda: qkv.probe(Q, K, V, edges=(0, 2**44))),
    "edges": (ValueError, "edges", lambda: qkv.probe(Q, K, V, edges=3)),
    "target": (ValueError, "'Z80'", lambda: qkv.choose_target("Z80")),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_say_what_was_expected(name):
    kind, part, call = WRONG[name]
    with pytest.raises(kind) as error:
        call()
    assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_references_are_given_back():
    q, k, v = inputs()
    bias = np.zeros((1, 1, 9, 11), np.float32)
    before = [sys.getrefcount(x) for x in (q, k, v, bias)]
    for _ in range(20):
        qkv.attention(q, k, v, bias=bias)
        with pytest.raises(ValueError):
            qkv.attention(q, k[:, :, 1:], v, bias=bias)
    assert [sys.getrefcount(x) for x in (q, k, v, bias)] == before


def test_same_bits_in_many_threads_at_once():
    arrays = inputs(H=4, Tq=150, Tk=300, D=32, Dv=32)
    want = qkv.attention(*arrays)
    results = [None] * 6

    def work(n):
        results[n] = [qkv.attention(*arrays, threads=n) for _ in range(5)]

    workers = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(same_bits(out, want) for outs in results for out in outs)


def test_other_threads_run_during_a_call():
    arrays = inputs(B=1, H=1, Hkv=1, Tq=6000, Tk=6000, D=32, Dv=32)
    done = threading.Event()
    worker = threading.Thread(target=lambda: (qkv.attention(*arrays, threads=1), done.set()))
    worker.start()
    turns = 0
    while not done.is_set():
        time.sleep(0)
        turns += 1
    worker.join()
    assert turns > 3


def child(queue, arrays):
    queue.put(qkv.attention(*arrays, threads=2))


def test_after_fork():
    arrays = inputs(Tq=200, Tk=200)
    want = qkv.attention(*arrays, threads=2)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue, arrays))
    process.start()
    assert same_bits(queue.get(timeout=60), want)
    process.join()
    assert process.exitcode == 0


LONG_CALL = """
import numpy as np, qkv, sys
x = np.zeros((1, 64, 16384, 64), np.float32)
print("ready", flush=True)
try:
    qkv.attention_grad(x, x, x, x) if sys.argv[1] == "grad" else qkv.attention(x, x, x)
except KeyboardInterrupt:
    print("interrupted", qkv.attention(x[:, :1, :9], x[:, :1, :9], x[:, :1, :9]).shape, flush=True)
"""


@pytest.mark.parametrize("which", ["forward", "grad"])
def test_ctrl_c_ends_a_long_call(which):
    process = subprocess.Popen([sys.executable, "-c", LONG_CALL, which], stdout=subprocess.PIPE, text=True,
                               env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)})
    assert process.stdout.readline() == "ready\n"
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert output == "interrupted (1, 1, 9, 64)\n"
    assert process.returncode == 0


def test_the_program_is_python_m_qkv(tmp_path):
    def call(*arguments):
        return subprocess.run([sys.executable, "-m", "qkv", *arguments], capture_output=True, text=True, cwd=tmp_path,
                              env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)})

    info = call("info", "--json")
    assert info.returncode == 0
    assert json.loads(info.stdout)["version"] == qkv.__version__
    missing = call("attend", "none.safetensors", "-o", "out.safetensors")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr.startswith("qkv: error: none.safetensors")
    assert call("attend").returncode == 2


def test_targets():
    assert qkv.target() == qkv.targets()[0] or "QKV_TARGET" in os.environ
    best = qkv.target()
    arrays = inputs()
    want = qkv.attention(*arrays).astype(np.float64)
    for name in qkv.targets():
        qkv.choose_target(name)
        np.testing.assert_allclose(qkv.attention(*arrays), want, atol=100 * EPSILON["f32"])
    qkv.choose_target(best)


def test_every_public_name_is_documented_and_in_the_stub():
    stub = ast.parse((PACKAGE / "_core.pyi").read_text())
    names = {node.name for node in stub.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    for name in set(qkv.__all__):
        assert name in names or name == "Transformer"  # which is written in Python
        assert getattr(qkv, name).__doc__
