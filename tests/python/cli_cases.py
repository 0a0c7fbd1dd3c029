# SPDX-License-Identifier: Apache-2.0
"""Right calls: one case per option and some together, for attend, grad and probe alike."""

from dataclasses import dataclass, field

import numpy as np
from cli_files import TYPES, problem

EPSILON = {"f64": 2.0**-52, "f32": 2.0**-23, "bf16": 2.0**-7, "f16": 2.0**-10}


@dataclass
class Case:
    arguments: list = field(default_factory=list)  # of the command line
    options: dict = field(default_factory=dict)    # of the formula
    tensors: object = lambda rng, real: {}         # further tensors; `real` is the compute type
    sizes: dict = field(default_factory=dict)
    rank: int = 4

    def build(self, dtype="f32"):
        rng = np.random.default_rng(7)
        real = np.float64 if dtype == "f64" else np.float32
        tensors = {**problem(dtype=dtype, **self.sizes), **self.tensors(rng, real)}
        if self.rank < 4:
            tensors = {name: array[(0,) * (4 - self.rank)] if array.ndim == 4 else array
                       for name, array in tensors.items()}
        return tensors


def bias(*shape):
    return lambda rng, real: {"bias": rng.standard_normal(shape).astype(np.float32)}


def mask(dtype, *shape):
    return lambda rng, real: {"mask": (rng.random(shape) < 0.7).astype(dtype)}


def lengths(rng, real):
    return {"key_lengths": np.array([3, 7], np.int64), "query_lengths": np.array([5, 2], np.int32)}


def segments(rng, real):
    return {"query_segment": np.array([[0, 0, 1, 1, 2], [0, 1, 1, 1, 3]], np.int64),
            "key_segment": np.array([[0, 0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 1, 2, 2]], np.int64)}


def table(buckets):
    return lambda rng, real: {"table": rng.standard_normal((4, buckets)).astype(real)}


def slopes(rng, real):
    return {"slopes": np.array([0.5, 0.25, 0.125, 0.0625], real)}


def sinks(rng, real):
    return {"sinks": np.array([-1, 0, 1, 4], real)}


def offsets(rng, real):
    return {"offsets": np.array([2, -1], np.int64)}


def d_lse(rng, real):
    return {"d_lse": rng.standard_normal((2, 4, 5)).astype(real)}


def packed(rng, real):
    dtype = np.float32
    return {"q": rng.standard_normal((8, 4, 8)).astype(dtype), "k": rng.standard_normal((9, 2, 8)).astype(dtype),
            "v": rng.standard_normal((9, 2, 6)).astype(dtype), "d_out": rng.standard_normal((8, 4, 6)).astype(dtype),
            "query_starts": np.array([0, 3, 3, 8], np.int64), "key_starts": np.array([0, 4, 6, 9], np.int32)}


def together(rng, real):
    return {**bias(1, 4, 5, 7)(rng, real), **mask(np.uint8, 2, 1, 5, 7)(rng, real), **slopes(rng, real),
            **sinks(rng, real), **offsets(rng, real), **lengths(rng, real), **d_lse(rng, real), **table(8)(rng, real)}


def blocks(rng, real):
    return {"block_mask": np.array([[[[1, 0, 1], [0, 1, 1], [1, 1, 0]]]], np.bool_)}


WIDE = {"buckets": "bidirectional", "max_distance": 4}
CASES = {
    "plain": Case(),
    "scale": Case(["--scale", "-0.75"], {"scale": -0.75}),
    "scale_0": Case(["--scale", "0"], {"scale": 0.0}),
    "softcap": Case(["--softcap", "1.5"], {"softcap": 1.5}),
    "dropout": Case(["--dropout", "0.4", "--seed", "18446744073709551615"], {"dropout": 0.4, "seed": 2**64 - 1}),
    "causal_top_left": Case(["--causal", "top_left"], {"causal": "top_left"}),
    "causal_bottom_right": Case(["--causal=bottom_right"], {"causal": "bottom_right"}),
    "causal_3": Case(["--causal", "3"], {"causal": 3}),
    "causal_minus_2": Case(["--causal", "-2"], {"causal": -2}),
    "causal_offsets": Case(["--causal", "offsets"], {"causal": 0}, offsets),
    "window": Case(["--window", "2,1"], {"window": (2, 1)}),
    "window_left": Case(["--window", "1,-"], {"window": (1, None)}),
    "window_right": Case(["--window", "-,0"], {"window": (None, 0)}),
    "window_open": Case(["--window", "-,-"]),
    "window_offset": Case(["--window", "2,0", "--offset", "2"], {"window": (2, 0), "offset": 2}),
    "window_minus_offset": Case(["--window", "2,0", "--offset", "-3"], {"window": (2, 0), "offset": -3}),
    "window_offsets": Case(["--window", "1,1"], {"window": (1, 1)}, offsets),
    "bias_full": Case(tensors=bias(2, 4, 5, 7)),
    "bias_row": Case(tensors=bias(1, 4, 1, 7)),
    "bias_one": Case(tensors=bias(1, 1, 1, 1)),
    "mask_bool": Case(tensors=mask(np.bool_, 2, 4, 5, 7)),
    "mask_u8": Case(tensors=mask(np.uint8, 1, 1, 5, 7)),
    "slopes": Case(tensors=slopes),
    "slopes_offset": Case(["--offset", "3"], {"offset": 3}, slopes),
    "sinks": Case(tensors=sinks),
    "table": Case(["--buckets", "bidirectional", "--max-distance", "4"], WIDE, table(8)),
    "table_causal": Case(["--buckets", "causal"], {"buckets": "causal"}, table(5)),
    "lengths": Case(tensors=lengths),
    "segments": Case(tensors=segments),
    "block_mask": Case(["--block", "2,3"], {"block": (2, 3)}, blocks),
    "packed": Case(tensors=packed),
    "packed_causal": Case(["--causal", "bottom_right", "--dropout", "0.3", "--seed", "5"],
                          {"causal": "bottom_right", "dropout": 0.3, "seed": 5}, packed),
    "d_lse": Case(tensors=d_lse),
    "rank_3": Case(["--causal", "top_left"], {"causal": "top_left"}, rank=3),
    "rank_2": Case(["--softcap", "2"], {"softcap": 2.0}, rank=2),
    "rank_2_bias": Case(tensors=lambda rng, real: {"bias": rng.standard_normal((5, 7)).astype(np.float32)}, rank=2),
    "multi_query": Case(sizes={"Hkv": 1}),
    "one_key": Case(sizes={"Tk": 1}),
    "no_batch": Case(sizes={"B": 0}),
    "no_queries": Case(sizes={"Tq": 0}),
    "no_keys": Case(sizes={"Tk": 0}),
    "no_width": Case(sizes={"D": 0}),
    "no_value_width": Case(sizes={"Dv": 0}),
    "together": Case(["--causal", "offsets", "--window", "3,-", "--softcap", "2", "--buckets", "bidirectional",
                      "--max-distance", "4", "--dropout", "0.2", "--seed", "1", "--scale", "0.5"],
                     {"causal": 0, "window": (3, None), "softcap": 2.0, "dropout": 0.2, "seed": 1, "scale": 0.5, **WIDE},
                     together),
}


def dtype_name(array):
    return next(name for name, dtype in TYPES.items() if array.dtype == dtype)


def assert_close(name, got, want, sizes):
    """Within rounding: four units of the stored type and one of the compute type per term, of the largest magnitude."""
    assert got.shape == want.shape, f"{name}: {got.shape} is not {want.shape}"
    if name in ("row_top", "edge_keys"):
        assert got.dtype == np.int64 and np.array_equal(got, want), name
        return
    stored = dtype_name(got)
    compute = "f64" if stored == "f64" else "f32"
    actual = got.astype(np.float64)
    assert np.array_equal(np.isfinite(actual), np.isfinite(want)), name
    finite = np.isfinite(want)
    assert np.array_equal(actual[~finite], want[~finite], equal_nan=True), name
    largest = max(1.0, np.abs(want[finite]).max(initial=0))
    bound = (4 * EPSILON[stored] + sizes * EPSILON[compute]) * largest
    worst = np.abs(actual[finite] - want[finite]).max(initial=0)
    assert worst <= bound, f"{name}: {worst} > {bound}"


def terms(tensors):
    """An upper bound of the terms in any sum: q's and k's elements of one head, over the batch."""
    return 4 * (sum(tensors["q"].shape) + sum(tensors["k"].shape))
