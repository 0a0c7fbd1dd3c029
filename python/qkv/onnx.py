# SPDX-License-Identifier: Apache-2.0
"""The operator Attention of ONNX (opset 23 and later) for the package's reference evaluator.

    session = onnx.reference.ReferenceEvaluator(model, new_ops=[qkv.onnx.Attention])

docs/onnx.md has the mapping. Memory is linear, unless a model asks for the matrix of scores or weights as an output.
"""

import numpy as np
from onnx.reference.op_run import OpRun

from qkv import _core

WEIGHTS = 3  # the qk_matmul_output_mode that asks for the weights; 0 to 2 ask for scores at three stages


def heads_first(tokens, heads):
    """[B, T, heads * width] as [B, heads, T, width], other strides over the same memory; rank 4 as it is."""
    if tokens.ndim == 4:
        return tokens
    return tokens.reshape(*tokens.shape[:2], heads, tokens.shape[2] // heads).transpose(0, 2, 1, 3)


def tokens_first(heads, like):
    """The reverse, where `like` has rank 3."""
    if like.ndim == 4:
        return heads
    return heads.transpose(0, 2, 1, 3).reshape(*like.shape[:2], heads.shape[1] * heads.shape[3])


def mask_option(mask, keys):
    """attn_mask as the option mask or bias: rank 4, and the keys it does not reach hidden."""
    is_mask = mask.dtype == bool
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    missing = keys - mask.shape[-1]
    if missing:
        mask = np.pad(mask, [(0, 0)] * 3 + [(0, missing)], constant_values=False if is_mask else -np.inf)
    return {"mask": mask} if is_mask else {"bias": mask}


def place_of_queries(queries, past, nonpad):
    """Where query 0 stands: behind the past, or such that the last query meets the last key in use, or at key 0."""
    return past if nonpad is None else np.asarray(nonpad, np.int64) - queries


def scores(q, k, options, place, mode):
    """The matrix that qk_matmul_output_mode 0 (scaled products), 1 (and soft-cap) or 2 (and terms and masks) asks for."""
    wide = np.float64 if q.dtype == np.float64 else np.float32
    k = np.repeat(k, q.shape[1] // max(k.shape[1], 1), axis=1)
    scale = options.get("scale", 1 / np.sqrt(max(q.shape[-1], 1)))
    s = q.astype(wide) @ k.astype(wide).swapaxes(2, 3) * wide(scale)
    if mode > 0 and "softcap" in options:
        s = options["softcap"] * np.tanh(s / options["softcap"])
    if mode < 2:
        return s.astype(q.dtype)
    if "bias" in options:
        s = s + options["bias"].astype(wide)
    i, j = np.arange(s.shape[2])[:, None] + np.reshape(place, (-1, 1, 1, 1)), np.arange(s.shape[3])
    left, right = options.get("window", (None, None))
    visible = np.ones((1, 1, 1, 1), bool) if "mask" not in options else options["mask"]
    if "causal" in options:
        visible = visible & (j <= i)
    if left is not None:
        visible = visible & (j >= i - left)
    if right is not None:
        visible = visible & (j <= i + right)
    if "key_lengths" in options:
        visible = visible & (j < np.reshape(options["key_lengths"], (-1, 1, 1, 1)))
    return np.where(visible, s, -np.inf).astype(q.dtype)


class Attention(OpRun):
    """Every input, output and attribute of the operator. Errors are those of qkv.attention."""

    op_domain = ""

    def _run(self, Q, K, V, attn_mask=None, past_key=None, past_value=None, nonpad_kv_seqlen=None, is_causal=0,
             kv_num_heads=None, q_num_heads=None, qk_matmul_output_mode=0, scale=None, softcap=0.0,
             softmax_precision=None, left_window_size=-1, right_window_size=-1):
        q, k, v = heads_first(Q, q_num_heads), heads_first(K, kv_num_heads), heads_first(V, kv_num_heads)
        past = 0 if past_key is None else past_key.shape[2]
        if past_key is not None:
            k, v = np.concatenate((past_key, k), axis=2), np.concatenate((past_value, v), axis=2)
        options = {} if attn_mask is None else mask_option(attn_mask, k.shape[2])
        if scale is not None:
            options["scale"] = scale
        if softcap:
            options["softcap"] = softcap
        sides = tuple(side if side is not None and side >= 0 else None for side in (left_window_size, right_window_size))
        if sides != (None, None):
            options["window"] = sides
        if nonpad_kv_seqlen is not None:
            options["key_lengths"] = nonpad_kv_seqlen
        place = place_of_queries(q.shape[2], past, nonpad_kv_seqlen)
        if nonpad_kv_seqlen is not None and (is_causal or "window" in options):
            options["offsets"] = place
        if is_causal:
            options["causal"] = "offsets" if "offsets" in options else past
        elif "window" in options and "offsets" not in options:
            options["offset"] = past
        results = [tokens_first(_core.attention(q, k, v, **options), Q), k, v]
        if len(self.onnx_node.output) > 3 and self.onnx_node.output[3]:
            results.append(self._matrix(q, k, v, options, place, qk_matmul_output_mode))
        return tuple(results[:len(self.onnx_node.output)])

    @staticmethod
    def _matrix(q, k, v, options, place, mode):
        if mode == WEIGHTS:
            tile = ((0, q.shape[2]), (0, k.shape[2]))
            return _core.probe(q, k, v, tile=tile, **options)["weights"].astype(q.dtype)
        return scores(q, k, options, place, mode)
