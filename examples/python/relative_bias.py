# SPDX-License-Identifier: Apache-2.0
"""Training a relative position bias over a long sequence: as an n x n array it would take 2 GiB a copy at T = 8192.

    python examples/python/relative_bias.py [T] [STEPS]

A teacher attends with a bias of its own for each bucket of distances; from what comes out a student learns those biases.
"""

import sys
import time

import torch

import qkv.torch

HEADS, BUCKETS = 8, 32
RELATIVE = {"buckets": "causal", "max_distance": 512, "causal": "top_left"}


def main(T=8192, steps=8):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, T, 32) for _ in range(3))
    teacher = 2 * torch.randn(HEADS, BUCKETS)
    target = qkv.torch.attention(q, k, v, table=teacher, **RELATIVE)
    table = torch.zeros(HEADS, BUCKETS, requires_grad=True)
    optimiser = torch.optim.Adam([table], lr=0.3)
    losses = []
    for number in range(steps):
        start = time.perf_counter()
        loss = (qkv.torch.attention(q, k, v, table=table, **RELATIVE) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
        print(f"step {number}: loss {losses[-1]:.5f}, {time.perf_counter() - start:.1f} s")
    return losses


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
