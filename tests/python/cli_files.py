# SPDX-License-Identifier: Apache-2.0
"""Problem files for the tests: NumPy arrays in, .safetensors and .npy files out, and back."""

import json
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

TYPES = {"f64": np.float64, "f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}
NAMES = {"F64": np.float64, "F32": np.float32, "BF16": ml_dtypes.bfloat16, "F16": np.float16, "I64": np.int64,
         "I32": np.int32, "U8": np.uint8, "BOOL": np.bool_}


def write(path, tensors):
    """A .safetensors file, by the safetensors package."""
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, str(path))
    return path


def read(path):
    """A .safetensors file as arrays. By hand, because the package's NumPy side cannot read bf16."""
    data = Path(path).read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8:8 + length]), data[8 + length:]
    header.pop("__metadata__", None)
    arrays = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        arrays[name] = np.frombuffer(body[begin:end], NAMES[entry["dtype"]]).reshape(entry["shape"])
    return arrays


def raw(path, header, body=b""):
    """A .safetensors file with any header at all: the text itself, or an object, padded so that data lies aligned."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8) if text is not header else b""
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


def shape_entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def write_arrays(folder, tensors):
    """One .npy file per tensor; returns the options that name them."""
    options = []
    for name, array in tensors.items():
        np.save(folder / f"{name}.npy", array)
        options += [f"--{name}", f"{name}.npy"]
    return options


def read_folder(folder):
    return {path.stem: np.load(path) for path in Path(folder).glob("*.npy")}


def listing(folder):
    """Every entry below a folder with its content, to see that nothing changed."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
            for path in sorted(Path(folder).rglob("*"))}


def problem(B=2, H=4, Hkv=2, Tq=5, Tk=7, D=8, Dv=6, dtype="f32", seed=0, **more):
    """q, k, v and d_out of standard normal numbers, and whatever else is given."""
    rng = np.random.default_rng(seed)
    shapes = {"q": (B, H, Tq, D), "k": (B, Hkv, Tk, D), "v": (B, Hkv, Tk, Dv), "d_out": (B, H, Tq, Dv)}
    tensors = {name: rng.standard_normal(shape).astype(TYPES[dtype]) for name, shape in shapes.items()}
    return {**tensors, **more}
