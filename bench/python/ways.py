# SPDX-License-Identifier: Apache-2.0
"""The cases of the table, and the ways to compute each: qkv.torch, PyTorch's own, the formula in PyTorch's operations."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

import qkv.torch


@dataclass(frozen=True)
class Case:
    name: str
    H: int = 8
    Hkv: int = 8
    T: int = 2048
    D: int = 64
    Dv: int = 64
    dtype: torch.dtype = torch.float32
    causal: bool = False
    window: int = 0  # keys to the left that a query sees besides its own; with causal
    bias: bool = False  # trainable
    dropout: float = 0.0

    def inputs(self):
        """q, k, v, then the bias: leaves."""
        torch.manual_seed(0)
        shapes = [(1, self.H, self.T, self.D), (1, self.Hkv, self.T, self.D), (1, self.Hkv, self.T, self.Dv)]
        if self.bias:
            shapes.append((1, self.H, self.T, self.T))
        return [torch.randn(shape).to(self.dtype).requires_grad_() for shape in shapes]

    def upstream(self):
        return torch.randn((1, self.H, self.T, self.Dv), generator=torch.Generator().manual_seed(1)).to(self.dtype)

    def visible(self):
        """[T, T] bool, or None where all is visible."""
        if not self.causal:
            return None
        distance = torch.arange(self.T)[:, None] - torch.arange(self.T)
        return (distance >= 0) & (distance <= self.window) if self.window else distance >= 0


CASES = [
    Case("causal", causal=True),
    Case("full"),
    Case("32 heads on 8, causal, T = 1024, D = 128", H=32, T=1024, D=128, Dv=128, causal=True),
    Case("trainable bias, T = 1024", T=1024, bias=True),
    Case("trainable bias, T = 4096", T=4096, bias=True),
    Case("dropout 0.1, causal", causal=True, dropout=0.1),
    Case("window 256, T = 8192", T=8192, causal=True, window=255),
    Case("Dv = 128, T = 1024", T=1024, Dv=128),
    Case("bf16", dtype=torch.bfloat16),
    Case("bf16, causal", dtype=torch.bfloat16, causal=True),
]


def ours(case):
    options = {"causal": "top_left"} if case.causal else {}
    if case.window:
        options["window"] = (case.window, None)
    if case.dropout:
        options.update(dropout=case.dropout, seed=1)
    return lambda q, k, v, *bias: qkv.torch.attention(q, k, v, **options, **({"bias": bias[0]} if bias else {}))


def sdpa(case):
    options = {"dropout_p": case.dropout, "enable_gqa": case.H != case.Hkv}
    if case.window:
        options["attn_mask"] = case.visible()
    elif case.causal:
        options["is_causal"] = True
    return lambda q, k, v, *bias: F.scaled_dot_product_attention(q, k, v, **options,
                                                                 **({"attn_mask": bias[0]} if bias else {}))


def flex(case):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if case.dropout:
        raise NotImplementedError("flex_attention has no dropout")
    compiled = torch.compile(flex_attention, dynamic=False)
    options = {"enable_gqa": case.H != case.Hkv}
    if case.causal:
        inside = lambda b, h, i, j: (j <= i) & (i - j <= (case.window or case.T))  # noqa: E731
        options["block_mask"] = create_block_mask(inside, None, None, case.T, case.T, device="cpu")

    def attend(q, k, v, *bias):
        if not bias:
            return compiled(q, k, v, **options)
        return compiled(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[0][b, h, i, j], **options)

    return attend


def eager(case):
    gigabytes = case.H * case.T**2 * case.dtype.itemsize / 2**30
    if gigabytes > 1:
        raise NotImplementedError(f"takes {gigabytes:.0f} GiB for each copy of the weights")
    visible = case.visible()
    hidden = None if visible is None else ~visible

    def attend(q, k, v, *bias):
        if case.H != case.Hkv:
            k, v = (x.repeat_interleave(case.H // case.Hkv, 1) for x in (k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(case.D)
        if bias:
            scores = scores + bias[0]
        if hidden is not None:
            scores = scores.masked_fill(hidden, float("-inf"))
        return F.dropout(torch.softmax(scores, -1), case.dropout) @ v

    return attend


WAYS = {"qkv": ours, "SDPA": sdpa, "flex": flex, "eager": eager}


def step(case, way):
    """A call that computes the output and every gradient, and returns them."""
    attend, inputs, upstream = WAYS[way](case), case.inputs(), case.upstream()

    def call():
        out = attend(*inputs)
        return [out.detach(), *torch.autograd.grad(out, inputs, upstream)]

    return call
