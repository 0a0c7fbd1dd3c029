# SPDX-License-Identifier: Apache-2.0
"""What a peer is given: the tensors of a case, its options, and qkv's results to compare with."""

import json
import math

import ml_dtypes
import numpy

DTYPES = {"F64": numpy.float64, "F32": numpy.float32, "F16": numpy.float16, "BF16": ml_dtypes.bfloat16,
          "BOOL": numpy.bool_, "U8": numpy.uint8, "I64": numpy.int64, "I32": numpy.int32}

SIZES = {"op", "b", "h", "hkv", "t", "tq", "tk", "d", "dv", "dtype", "mode", "threads", "against", "m", "n", "k"}
OPTIONS = {"causal", "window", "offset", "bias", "trainable", "scale", "prepared"}  # all that some peer is given


class Refused(Exception):
    """The library cannot do the case; the text says why."""


def read_safetensors(path):
    """The tensors of a .safetensors file by name, over a read-only mapping."""
    raw = numpy.memmap(path, numpy.uint8, "r")
    start = 8 + int(raw[:8].view("<u8")[0])
    header = json.loads(bytes(raw[8:start]))
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (start + offset for offset in entry["data_offsets"])
        tensors[name] = raw[begin:end].view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def problem_of(request):
    return Product(request) if request["keys"].get("op") == "matmul" else Attention(request)


class Problem:
    """One case: its options and its tensors."""

    def __init__(self, request):
        self.keys, self.mode, self.threads = request["keys"], request["mode"], request["threads"]
        unknown = [key for key in self.keys if key not in SIZES | OPTIONS]
        if unknown:
            raise Refused(f"{' and '.join(unknown)}: not given to other libraries")
        self.tensors = read_safetensors(request["file"])


class Product(Problem):
    """c = a b, a [M, K], b [K, N]; or d_a and d_b from d_c. With `prepared`, b may be packed before the call."""

    def __init__(self, request):
        super().__init__(request)
        self.a, self.b, self.c = (self.tensors[name] for name in "abc")
        self.d_c, self.d_a = self.tensors.get("d_c"), self.tensors.get("d_a")
        self.dtype = self.a.dtype.name
        self.prepared = self.keys.get("prepared") == "1"


class Attention(Problem):
    """Shapes: q [B, H, Tq, D], k [B, Hkv, Tk, D], v [B, Hkv, Tk, Dv], as in docs/semantics.md."""

    def __init__(self, request):
        super().__init__(request)
        tensors = self.tensors
        self.q, self.k, self.v, self.out = (tensors[name] for name in ("q", "k", "v", "out"))
        self.bias, self.d_out, self.d_q = (tensors.get(name) for name in ("bias", "d_out", "d_q"))
        self.dtype = self.q.dtype.name  # "float32", "bfloat16", ...
        self.group = self.q.shape[1] // self.k.shape[1]
        self.scale = float(self.keys.get("scale", 1 / math.sqrt(self.q.shape[3])))
        self.trains_bias = self.keys.get("trainable") == "bias"
        if "trainable" in self.keys and not self.trains_bias:
            raise Refused(f"no gradient of {self.keys['trainable']}")

    @property
    def lengths(self):
        return self.q.shape[2], self.k.shape[2]

    @property
    def causal_offset(self):
        """Query i sees keys up to i + this; None without a causal mask."""
        kind = self.keys.get("causal")
        if kind is None:
            return None
        Tq, Tk = self.lengths
        return {"top_left": 0, "bottom_right": Tk - Tq}.get(kind) if kind.isalpha() or "_" in kind else int(kind)

    @property
    def plain_causal(self):
        """Causal in the one way that every library means alike, and no other mask."""
        return self.causal_offset == 0 and self.lengths[0] == self.lengths[1] and "window" not in self.keys

    def visible(self):
        """[Tq, Tk] booleans of the causal mask and the window together; None when every key is visible."""
        offset = self.causal_offset
        if offset is None and "window" not in self.keys:
            return None
        Tq, Tk = self.lengths
        i, j = numpy.arange(Tq)[:, None], numpy.arange(Tk)[None, :]
        mask = numpy.ones((Tq, Tk), bool)
        if offset is not None:
            mask &= j <= i + offset
        else:
            offset = int(self.keys.get("offset", 0))
        left, right = self.keys.get("window", "-,-").split(",")
        if left != "-":
            mask &= j >= i + offset - int(left)
        if right != "-":
            mask &= j <= i + offset + int(right)
        return mask

    def additive(self):
        """Bias and masks as one array to add to the scores, axes that broadcast of size 1; None without either."""
        mask = self.visible()
        if mask is None:
            return self.bias
        hidden = numpy.where(mask, 0, -numpy.inf).astype(self.q.dtype)[None, None]
        return hidden if self.bias is None else self.bias + hidden


def largest_difference(result, expected):
    """The largest difference over the largest element of what was expected."""
    wide, exact = numpy.asarray(result, numpy.float32), numpy.asarray(expected, numpy.float32)
    if numpy.asarray(expected).dtype == numpy.float64:
        wide, exact = numpy.asarray(result, numpy.float64), numpy.asarray(expected, numpy.float64)
    if wide.shape != exact.shape:
        raise ValueError(f"a result of shape {wide.shape}, expected {exact.shape}")
    difference = float(numpy.max(numpy.abs(wide - exact), initial=0.0))
    return difference / max(float(numpy.max(numpy.abs(exact), initial=0.0)), 1e-30)
