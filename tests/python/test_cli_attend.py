# SPDX-License-Identifier: Apache-2.0
"""qkv attend and qkv grad against the formula in NumPy f64: every option, dtype, rank, and way to give a problem."""

import json

import numpy as np
import pytest
from cli_cases import CASES, Case, assert_close, dtype_name, terms
from cli_files import TYPES, read, read_folder, write, write_arrays
from cli_formula import evaluate

UPSTREAM = ("d_out", "d_lse")


def without_upstream(tensors):
    return {name: array for name, array in tensors.items() if name not in UPSTREAM}


def check_outputs(got, want, names, tensors):
    assert sorted(got) == sorted(names)
    for name in names:
        assert_close(name, got[name], want[name], terms(tensors))


def gradient_names(tensors):
    given = [name for name in ("q", "k", "v", "bias", "slopes", "sinks", "table") if name in tensors]
    return ["out", "lse", "d_scale", *("d_" + name for name in given)]


@pytest.mark.parametrize("name", CASES)
def test_attend(qkv, tmp_path, name):
    case = CASES[name]
    tensors = case.build()
    write(tmp_path / "in.safetensors", tensors)  # d_out is there too: one file serves every verb
    weights = [] if "query_starts" in tensors else ["--weights"]
    qkv("attend", "in.safetensors", *case.arguments, *weights, "-o", "out.safetensors")
    want = evaluate(tensors, **case.options)
    check_outputs(read(tmp_path / "out.safetensors"), want, ["out", "lse", *(w[2:] for w in weights)], tensors)


@pytest.mark.parametrize("name", CASES)
def test_grad(qkv, tmp_path, name):
    case = CASES[name]
    tensors = case.build()
    write(tmp_path / "in.safetensors", tensors)
    qkv("grad", "in.safetensors", *case.arguments, "-o", "out.safetensors")
    want = evaluate(tensors, upstream=True, **case.options)
    check_outputs(read(tmp_path / "out.safetensors"), want, gradient_names(tensors), tensors)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", ["plain", "together", "sinks", "no_keys"])
def test_dtypes(qkv, tmp_path, name, dtype):
    """Each dtype as stored. A bias is f32 beside any of them."""
    case = CASES[name]
    tensors = case.build(dtype)
    write(tmp_path / "in.safetensors", tensors)
    qkv("grad", "in.safetensors", *case.arguments, "-o", "out.safetensors")
    got = read(tmp_path / "out.safetensors")
    compute = "f64" if dtype == "f64" else "f32"
    kinds = {array: dtype_name(values) for array, values in got.items()}
    assert all(kinds[array] == dtype for array in ("out", "d_q", "d_k", "d_v"))
    assert all(kinds[array] == compute for array in kinds if array in ("lse", "d_scale", "d_slopes", "d_sinks", "d_table"))
    check_outputs(got, evaluate(tensors, upstream=True, **case.options), gradient_names(tensors), tensors)


@pytest.mark.parametrize("after", TYPES)
@pytest.mark.parametrize("before", TYPES)
def test_dtype_option_converts_what_follows_q(qkv, tmp_path, before, after):
    case = Case(["--buckets", "causal"], {"buckets": "causal"},
                lambda rng, real: {**CASES["together"].tensors(rng, real)})
    tensors = case.build(before)
    del tensors["offsets"]
    tensors["bias"] = tensors["bias"].astype(TYPES[before])
    write(tmp_path / "in.safetensors", tensors)
    qkv("grad", "in.safetensors", *case.arguments, "--dtype", after, "-o", "out.safetensors")
    real = np.float64 if after == "f64" else np.float32
    follows = {"q": TYPES[after], "k": TYPES[after], "v": TYPES[after], "d_out": TYPES[after], "bias": TYPES[after],
               "d_lse": real, "slopes": real, "sinks": real, "table": real}
    converted = {name: array.astype(follows.get(name, array.dtype)) for name, array in tensors.items()}
    got = read(tmp_path / "out.safetensors")
    assert got["out"].dtype == TYPES[after] and got["d_bias"].dtype == TYPES[after] and got["d_sinks"].dtype == real
    check_outputs(got, evaluate(converted, upstream=True, **case.options), gradient_names(tensors), converted)


def test_dtype_option_keeps_an_f32_bias_of_another_dtype(qkv, tmp_path):
    tensors = CASES["bias_full"].build("f16")
    write(tmp_path / "in.safetensors", tensors)
    qkv("grad", "in.safetensors", "--dtype", "bf16", "-o", "out.safetensors")
    assert read(tmp_path / "out.safetensors")["d_bias"].dtype == np.float32


def test_dtype_option_joins_mixed_dtypes(qkv, tmp_path):
    tensors = CASES["plain"].build("f32")
    tensors["k"] = tensors["k"].astype(np.float16)
    write(tmp_path / "in.safetensors", tensors)
    qkv("attend", "in.safetensors", "--dtype", "f32", "-o", "out.safetensors")
    check_outputs(read(tmp_path / "out.safetensors"), evaluate(tensors), ["out", "lse"], tensors)


@pytest.mark.parametrize("name", ["plain", "together", "packed", "mask_bool", "mask_u8", "lengths", "segments"])
def test_npy_in_and_a_folder_out(qkv, tmp_path, name):
    case = CASES[name]
    tensors = case.build()
    options = write_arrays(tmp_path, tensors)
    qkv("grad", *options, *case.arguments, "-o", "gradients")
    want = evaluate(tensors, upstream=True, **case.options)
    check_outputs(read_folder(tmp_path / "gradients"), want, gradient_names(tensors), tensors)


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16"])
def test_npy_in_and_npy_out(qkv, tmp_path, dtype):
    tensors = without_upstream(CASES["plain"].build(dtype))
    qkv("attend", *write_arrays(tmp_path, tensors), "-o", "result.npy")
    assert_close("out", np.load(tmp_path / "result.npy"), evaluate(tensors)["out"], terms(tensors))


def test_npy_beside_a_safetensors_file(qkv, tmp_path):
    case = CASES["mask_bool"]
    tensors = without_upstream(case.build())
    options = write_arrays(tmp_path, {"mask": tensors["mask"]})
    write(tmp_path / "in.safetensors", {name: array for name, array in tensors.items() if name != "mask"})
    qkv("attend", "in.safetensors", *options, "-o", "out.safetensors")
    check_outputs(read(tmp_path / "out.safetensors"), evaluate(tensors), ["out", "lse"], tensors)


def test_fortran_order_and_big_endian_arrays(qkv, tmp_path):
    tensors = without_upstream(CASES["plain"].build())
    stored = {"q": np.asfortranarray(tensors["q"]), "k": tensors["k"].astype(">f4"),
              "v": np.asfortranarray(tensors["v"].astype(">f4"))}
    qkv("attend", *write_arrays(tmp_path, stored), "-o", "out.npy")
    assert_close("out", np.load(tmp_path / "out.npy"), evaluate(tensors)["out"], terms(tensors))


@pytest.mark.parametrize("verb", ["attend", "grad", "probe"])
def test_threads_and_targets(qkv, tmp_path, verb):
    """The same bits for any number of threads; on each instruction set its own, all close to the formula."""
    case = CASES["together"]
    tensors = case.build()
    write(tmp_path / "in.safetensors", tensors)
    for target in json.loads(qkv("info", "--json").stdout)["targets"]:
        files = []
        for threads in ("1", "3", "4096"):
            done = qkv(verb, "in.safetensors", *case.arguments, "--target", target, "--threads", threads, "--json",
                       "-o", "out.safetensors")
            assert json.loads(done.stdout)["target"] == target
            assert json.loads(done.stdout)["threads"] == int(threads)
            files.append((tmp_path / "out.safetensors").read_bytes())
        assert files[0] == files[1] == files[2]
        got = read(tmp_path / "out.safetensors")
        want = evaluate(tensors, upstream=True, **case.options)
        check_outputs(got, want, list(got), tensors)


def test_target_of_the_environment(qkv, tmp_path):
    write(tmp_path / "in.safetensors", CASES["plain"].build())
    last = json.loads(qkv("info", "--json").stdout)["targets"][-1]
    done = qkv("attend", "in.safetensors", "--json", "-o", "out.safetensors", env={"QKV_TARGET": last})
    assert json.loads(done.stdout)["target"] == last
    by_option = qkv("attend", "in.safetensors", "-o", "two.safetensors", "--target", last)
    assert last in by_option.stdout
    assert (tmp_path / "out.safetensors").read_bytes() == (tmp_path / "two.safetensors").read_bytes()


def test_hidden_nan_stays_hidden(qkv, tmp_path):
    tensors = CASES["plain"].build()
    tensors["key_lengths"] = np.array([4, 4], np.int64)
    clean = {name: array.copy() for name, array in tensors.items()}
    tensors["k"][:, :, 4:] = np.nan
    tensors["v"][:, :, 4:] = np.inf
    write(tmp_path / "in.safetensors", tensors)
    qkv("grad", "in.safetensors", "-o", "out.safetensors")
    got = read(tmp_path / "out.safetensors")
    check_outputs(got, evaluate(clean, upstream=True), gradient_names(clean), clean)
