# SPDX-License-Identifier: Apache-2.0
"""qkv in the place of PyTorch's attention: an unchanged model with a trainable bias, and what both take of memory.

    python examples/python/drop_in.py [T]
"""

import sys

import torch
from torch.nn import functional

import qkv.torch

THEIRS = functional.scaled_dot_product_attention


class Layer(torch.nn.Module):
    """Knows PyTorch alone. The bias has a number for each head and key, and a gradient."""

    def __init__(self, T, width=256, heads=8):
        super().__init__()
        self.heads = heads
        self.into = torch.nn.Linear(width, 3 * width)
        self.bias = torch.nn.Parameter(torch.zeros(heads, 1, T))  # [H, 1, T]

    def forward(self, x):
        q, k, v = self.into(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=self.bias[None])
        return out.transpose(1, 2).flatten(2)


def resident(field):
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def step(layer, x):
    """One output, its gradients, and the MiB that both took at their highest."""
    with open("/proc/self/clear_refs", "w", encoding="ascii") as reset:
        reset.write("5")
    before = resident("VmRSS")
    out = layer(x)
    gradients = torch.autograd.grad(out.square().mean(), list(layer.parameters()))
    return out, gradients, resident("VmHWM") - before


def main(T=4096):
    torch.manual_seed(0)
    layer, x = Layer(T), torch.randn(1, T, 256)
    results = {}
    for name, attend in (("qkv", qkv.torch.scaled_dot_product_attention), ("PyTorch", THEIRS)):
        functional.scaled_dot_product_attention = attend  # the one line
        results[name] = step(layer, x)
    functional.scaled_dot_product_attention = THEIRS
    (a, d_a, ours), (b, d_b, theirs) = results.values()
    difference = max(float((x - y).detach().abs().max()) for x, y in zip([a, *d_a], [b, *d_b]))
    print(f"T = {T}: {ours:.0f} MiB with qkv, {theirs:.0f} MiB with PyTorch; largest difference {difference:.1e}")
    return ours, theirs, difference


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
