# SPDX-License-Identifier: Apache-2.0
"""What NumPy and the safetensors package write, qkv reads, and the reverse; what they refuse, it refuses."""

import json
import os
import struct
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

ROOT = Path(__file__).resolve().parents[2]
CONVERT = Path(os.environ.get("QKV_BIN_DIR", ROOT / "build/release/bin")) / "tensor_convert"

NUMPY_DTYPES = ["f8", "f4", "f2", "i8", "i4", "u1", "b1"]
SHAPES = [(), (1,), (7,), (0,), (3, 0, 2), (2, 3), (2, 1, 3, 2), (2, 3, 1, 2, 2)]


def convert(source, target):
    return subprocess.run([CONVERT, source, target], capture_output=True, text=True, timeout=60)


def converted(source, target):
    result = convert(source, target)
    assert result.returncode == 0, result.stderr
    return target


def sample(dtype, shape):
    """Any bits: NaN with a payload, infinity and subnormals among the floating ones."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    random = np.random.default_rng([count, *dtype.str.encode()])
    if dtype.kind == "b":
        return (random.integers(0, 2, count) == 1).reshape(shape)
    return np.frombuffer(random.bytes(count * dtype.itemsize), dtype).reshape(shape)


def assert_same(actual, expected):
    """The same dtype, shape and bits, whatever the byte order and memory order of either."""
    native = expected.dtype.newbyteorder("=")
    assert actual.dtype == native
    assert actual.shape == expected.shape
    assert actual.tobytes() == expected.astype(native).tobytes()


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_npy_to_safetensors_and_back(tmp_path, dtype, shape):
    array = sample(dtype, shape)
    np.save(tmp_path / "in.npy", array)
    there = converted(tmp_path / "in.npy", tmp_path / "there.safetensors")
    assert_same(safetensors.numpy.load_file(there)["array"], array)
    back = converted(there, tmp_path / "back.npy")
    assert_same(np.load(back, allow_pickle=False), array)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("byte_order", ["<", ">"])
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)], ids=str)
@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_npy_orders_and_versions(tmp_path, dtype, version, byte_order, order):
    array = np.array(sample(dtype, (2, 3, 4)).astype(np.dtype(dtype).newbyteorder(byte_order)), order=order)
    with open(tmp_path / "in.npy", "wb") as file:
        np.lib.format.write_array(file, array, version=version, allow_pickle=False)
    assert_same(np.load(converted(tmp_path / "in.npy", tmp_path / "out.npy")), array)


def test_npy_of_views(tmp_path):
    base = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    for view in (base[::-1, ::2], base.transpose(2, 0, 1), np.broadcast_to(base[:1], (2, 4, 5)), base[1, 2]):
        np.save(tmp_path / "in.npy", view)
        assert_same(np.load(converted(tmp_path / "in.npy", tmp_path / "out.npy")), view)


def test_numpy_maps_what_qkv_writes(tmp_path):
    array = sample("f4", (5, 3))
    safetensors.numpy.save_file({"array": array}, tmp_path / "in.safetensors")
    mapped = np.load(converted(tmp_path / "in.safetensors", tmp_path / "out.npy"), mmap_mode="r")
    assert_same(np.asarray(mapped), array)
    assert mapped.offset % 64 == 0


def test_safetensors_with_all_dtypes_names_and_metadata(tmp_path):
    names = iter(["a", "", "a.b/c", 'quote"back\\slash', "line\nbreak", "é", "漢字", "😀", "x" * 300])
    tensors = {next(names): sample(dtype, (2, 3)) for dtype in NUMPY_DTYPES}
    tensors[next(names)] = sample("u2", (4,)).view(ml_dtypes.bfloat16)
    tensors[next(names)] = sample("f8", ())
    metadata = {"format": "np", "": "", "é\n\"": "\t漢"}
    safetensors.numpy.save_file(tensors, tmp_path / "in.safetensors", metadata)
    out = converted(tmp_path / "in.safetensors", tmp_path / "out.safetensors")
    content = dict(safetensors.deserialize(out.read_bytes()))
    assert content.keys() == tensors.keys()
    assert content == dict(safetensors.deserialize((tmp_path / "in.safetensors").read_bytes()))
    with safetensors.safe_open(out, "np") as file:
        assert file.metadata() == metadata
    header_length = struct.unpack("<Q", out.read_bytes()[:8])[0]
    assert header_length % 8 == 0


def test_bf16_stays_bits(tmp_path):
    array = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16)
    safetensors.numpy.save_file({"array": array}, tmp_path / "in.safetensors")
    out = converted(tmp_path / "in.safetensors", tmp_path / "out.safetensors")
    assert dict(safetensors.deserialize(out.read_bytes()))["array"]["data"] == array.tobytes()
    refused = convert(out, tmp_path / "out.npy")
    assert refused.returncode == 2
    assert "NumPy has no name for bf16" in refused.stderr
    assert not (tmp_path / "out.npy").exists()


UNREADABLE = {
    "object": (np.array([None, 1], dtype=object), "Python objects"),
    "structured": (np.zeros(2, dtype=[("a", "<f4"), ("b", "<i4")]), "structured arrays"),
    "nested": (np.zeros(2, dtype=[("a", [("b", "<f4", (2,))])]), "structured arrays"),
    "text": (np.array(["abc"]), "strings"),
    "bytes": (np.array([b"abc"]), "strings"),
    "raw": (np.zeros(2, dtype="V3"), "raw or structured records"),
    "date": (np.zeros(2, dtype="M8[ns]"), "dates or durations"),
    "duration": (np.zeros(2, dtype="m8[s]"), "dates or durations"),
    "complex": (np.zeros(2, dtype="c8"), "complex numbers"),
    "short": (np.zeros(2, dtype="i2"), "a width qkv lacks"),
    "unsigned": (np.zeros(2, dtype="u8"), "a width qkv lacks"),
    "long double": (np.zeros(2, dtype="g"), "a width qkv lacks"),
    "six axes": (np.zeros((1,) * 6, dtype="f4"), "6 dimensions"),
}


@pytest.mark.parametrize("array, reason", UNREADABLE.values(), ids=UNREADABLE)
def test_npy_of_other_things(tmp_path, array, reason):
    np.save(tmp_path / "in.npy", array)
    result = convert(tmp_path / "in.npy", tmp_path / "out.safetensors")
    assert result.returncode == 2
    assert result.stderr.startswith(f"{tmp_path}/in.npy: ")
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.npy"]


def header_bytes(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


# Files the reference reader refuses; qkv must not be more trusting.
REFUSED_BY_BOTH = {
    "empty": b"",
    "too short": b"1234567",
    "long header": struct.pack("<Q", 1 << 40) + b"{}",
    "beyond the file": struct.pack("<Q", 10) + b"{}",
    "no json": header_bytes(b"{"),
    "a list": header_bytes(b"[]"),
    "not utf-8": header_bytes(b'{"\xff":{}}'),
    "no shape": header_bytes({"a": {"dtype": "F32", "data_offsets": [0, 0]}}),
    "unknown dtype": header_bytes({"a": tensor("F31")}, bytes(8)),
    "a hole": header_bytes({"a": tensor(offsets=(4, 12))}, bytes(12)),
    "overlap": header_bytes({"a": tensor(), "b": tensor()}, bytes(8)),
    "reversed": header_bytes({"a": tensor(shape=(0,), offsets=(8, 0))}, bytes(8)),
    "wrong size": header_bytes({"a": tensor(shape=(3,))}, bytes(8)),
    "missing data": header_bytes({"a": tensor()}, bytes(7)),
    "bytes after the end": header_bytes({"a": tensor()}, bytes(9)),
    "overflow": header_bytes({"a": tensor(shape=(1 << 40, 1 << 40))}, bytes(8)),
    "negative": header_bytes({"a": tensor(shape=(-2,))}, bytes(8)),
    "fraction": header_bytes({"a": tensor(shape=(2.5,))}, bytes(8)),
    "metadata of numbers": header_bytes({"__metadata__": {"a": 1}}),
}


@pytest.mark.parametrize("content", REFUSED_BY_BOTH.values(), ids=REFUSED_BY_BOTH)
def test_wrong_safetensors(tmp_path, content):
    (tmp_path / "in.safetensors").write_bytes(content)
    with pytest.raises(safetensors.SafetensorError):
        safetensors.deserialize(content)
    result = convert(tmp_path / "in.safetensors", tmp_path / "out.npy")
    assert result.returncode == 2
    assert result.stderr.startswith(f"{tmp_path}/in.safetensors: ")
    assert result.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.safetensors"]


ACCEPTED_BY_BOTH = {
    "nothing": header_bytes({}),
    "blanks": header_bytes(b' \n{"array":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}  ', b"x"),
    "off the grid": header_bytes(b'{"array":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}}   ', bytes(range(8))),
    "zero size": header_bytes({"array": tensor(shape=(0, 3), offsets=(0, 0))}),
    "rank 0": header_bytes({"array": tensor(shape=(), offsets=(0, 4))}, b"abcd"),
}


@pytest.mark.parametrize("content", ACCEPTED_BY_BOTH.values(), ids=ACCEPTED_BY_BOTH)
def test_unusual_safetensors(tmp_path, content):
    (tmp_path / "in.safetensors").write_bytes(content)
    out = converted(tmp_path / "in.safetensors", tmp_path / "out.safetensors")
    assert safetensors.deserialize(out.read_bytes()) == safetensors.deserialize(content)


def test_a_missing_file_is_the_machines_refusal(tmp_path):
    result = convert(tmp_path / "none.npy", tmp_path / "out.npy")
    assert result.returncode == 1
    assert result.stderr == f"{tmp_path}/none.npy: cannot be opened: No such file or directory\n"
