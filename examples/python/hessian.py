# SPDX-License-Identifier: Apache-2.0
"""Hessian-vector products of a small transformer's loss, forward over reverse: its sharpest direction by power iteration.

    python examples/python/hessian.py [T] [ITERATIONS]
"""

import sys

import torch
from torch.func import functional_call, grad, jvp

import qkv.torch


class Transformer(torch.nn.Module):
    def __init__(self, vocabulary=50, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.embedding = torch.nn.Embedding(vocabulary, width)
        self.norm = torch.nn.LayerNorm(width)
        self.into = torch.nn.Linear(width, 3 * width)
        self.feed_forward = torch.nn.Sequential(torch.nn.Linear(width, 64), torch.nn.GELU(), torch.nn.Linear(64, vocabulary))

    def forward(self, tokens):
        x = self.embedding(tokens)
        q, k, v = self.into(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + qkv.torch.attention(q, k, v, causal="top_left").transpose(1, 2).flatten(2)
        return self.feed_forward(x)


def norm(vector):
    return sum(float(x.square().sum()) for x in vector.values())**0.5


def main(T=64, iterations=20):
    torch.manual_seed(0)
    model = Transformer().double()
    tokens = torch.randint(50, (4, T + 1))
    point = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(parameters):
        logits = functional_call(model, parameters, tokens[:, :-1])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    vector = {name: torch.randn_like(parameter) for name, parameter in point.items()}
    estimates = []
    for _ in range(iterations):
        length = norm(vector)
        vector = {name: x / length for name, x in vector.items()}
        product = jvp(grad(loss), (point,), (vector,))[1]
        estimates.append(sum(float((vector[name] * product[name]).sum()) for name in vector))
        vector = product
    print(f"largest curvature {estimates[-1]:.6f}, {abs(estimates[-1] - estimates[-2]):.1e} from the estimate before")
    return estimates


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
