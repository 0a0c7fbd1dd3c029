# SPDX-License-Identifier: Apache-2.0
"""attention() for arrays of JAX."""

import operator

import jax.numpy as jnp
import numpy as np

from qkv.jax import primitives

ARRAYS = ("mask", "offsets", "key_lengths", "query_lengths", "query_segment", "key_segment", "block_mask",
          "query_starts", "key_starts")


def number(value, name):
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: expected a number that does not depend on traced arrays, got {value!r}") from None


def integer(value, name):
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected an integer that does not depend on traced arrays, got {value!r}") from None


def pair(value, name, what):
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ValueError(f"{name}: expected {what}, got {value!r}")
    return value


def seed_array(seed):
    """An array and no static option, so that another seed is not another compilation: one integer, or two halves."""
    if hasattr(seed, "dtype"):
        return jnp.asarray(seed).reshape(())
    seed = integer(seed, "seed")
    if not 0 <= seed < 2**64:
        raise TypeError(f"seed: expected an integer of 0 to 2^64 - 1, got {seed}")
    return np.array([seed % 2**32, seed >> 32], np.uint32)  # JAX may know no integers of 64 bits


def static_options(softcap, causal, window, offset, buckets, max_distance, block, dropout, threads):
    """What is no array, as attributes."""
    options = {"softcap": number(softcap, "softcap"), "offset": integer(offset, "offset"),
               "max_distance": integer(max_distance, "max_distance"), "dropout": number(dropout, "dropout"),
               "threads": integer(threads, "threads")}
    if isinstance(causal, bool) and causal:
        raise ValueError("causal: expected 'top_left' (key j <= query i), 'bottom_right' (j <= i + Tk - Tq), an offset "
                         "or 'offsets', got True")
    if isinstance(causal, str):
        options["causal"] = causal
    elif causal is not None and causal is not False:
        options["causal_offset"] = integer(causal, "causal")
    if (causal is not None and causal is not False) and options["offset"]:
        raise ValueError("offset and causal exclude each other: a causal mask says itself where queries stand")
    if window is not None:
        sides = pair(window, "window", "(left, right), either of them None for unbounded")
        for name, side in zip(("window_left", "window_right"), sides):
            if side is not None:
                options[name] = integer(side, name)
    if block is not None:
        sides = pair(block, "block", "(queries, keys), the sides of a block")
        options.update(block_queries=integer(sides[0], "block"), block_keys=integer(sides[1], "block"))
    if buckets is not None:
        options["buckets"] = str(buckets)
    return options


def attention(q, k, v, *, return_lse=False, scale=None, softcap=0.0, causal=None, window=None, offset=0, offsets=None,
              bias=None, mask=None, slopes=None, sinks=None, table=None, buckets=None, max_distance=128,
              key_lengths=None, query_lengths=None, query_segment=None, key_segment=None, block_mask=None, block=None,
              query_starts=None, key_starts=None, dropout=0.0, seed=None, threads=0):
    """out = softmax(scale q k^T + ...) v, exactly, in O(n) memory, differentiable twice; on the CPU.

    q [B, H, Tq, D], k [B, Hkv, Tk, D], v [B, Hkv, Tk, Dv] of one dtype: float64 (with jax_enable_x64), float32,
    bfloat16 or float16; ranks 3 and 2 too. Returns out [B, H, Tq, Dv], with return_lse also lse [B, H, Tq].
    Options are those of qkv.attention; those that are no arrays must not be traced, but for scale, which then multiplies
    q, and seed. Works under jit, grad, jvp, vmap (one call per entry) and compositions of them up to second derivatives,
    but for jvp of jvp. Raises as qkv.attention does, from inside XLA as a runtime error with the same sentence.
    """
    q, k, v = (jnp.asarray(x) for x in (q, k, v))
    options = static_options(softcap, causal, window, offset, buckets, max_distance, block, dropout, threads)
    if scale is not None and hasattr(scale, "dtype"):
        q, scale = q * jnp.asarray(scale, q.dtype).reshape(()), 1.0
    if scale is not None:
        options["scale"] = number(scale, "scale")
    wide = primitives.number_dtype(q)
    tensors = {"q": q, "k": k, "v": v, "bias": bias, "slopes": slopes, "table": table, "sinks": sinks}
    for name in ("slopes", "sinks"):
        if isinstance(tensors[name], (list, tuple)):
            tensors[name] = jnp.asarray(tensors[name], wide)
    tensors.update(zip(ARRAYS, (mask, offsets, key_lengths, query_lengths, query_segment, key_segment, block_mask,
                                query_starts, key_starts)))
    if seed is not None:
        tensors["seed"] = seed_array(seed)
    tensors = {name: jnp.asarray(array) for name, array in tensors.items() if array is not None}
    options = tuple((name, primitives.attribute(value)) for name, value in options.items())
    out, lse, *_ = primitives.forward.bind(*tensors.values(), names=tuple(tensors), options=options)
    return (out, lse) if return_lse else out
