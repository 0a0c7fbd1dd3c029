# SPDX-License-Identifier: Apache-2.0
"""Training a one-step flow model: the loss needs the time derivative of an attention network, by forward mode.

    python examples/python/flow.py [STEPS]

Samples are sets of points on a circle of random phase; the network learns the mean velocity u(z, r, t) between two times,
whose defining identity u = v - (t - r) du/dt has the total derivative along the flow in it (MeanFlow, Geng et al. 2025).
"""

import math
import sys

import torch

import qkv.torch

POINTS, WIDTH, HEADS = 16, 64, 4


class Velocity(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.into = torch.nn.Linear(4, WIDTH)
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.SiLU(), torch.nn.Linear(WIDTH, 2))

    def forward(self, z, r, t):
        """z [B, POINTS, 2], times [B, 1, 1]."""
        x = self.into(torch.cat([z, r.expand(*z.shape[:2], 1), t.expand(*z.shape[:2], 1)], -1))
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return self.out(x + qkv.torch.attention(q, k, v).transpose(1, 2).flatten(2))


def circles(count):
    phase = 2 * math.pi * (torch.rand(count, 1) + torch.arange(POINTS) / POINTS)
    return torch.stack([phase.cos(), phase.sin()], -1)


def loss_of(model, count=64):
    data, noise = circles(count), torch.randn(count, POINTS, 2)
    r, t = torch.rand(2, count, 1, 1).sort(0).values
    z, velocity = (1 - t) * data + t * noise, noise - data
    mean, derivative = torch.func.jvp(model, (z, r, t), (velocity, torch.zeros_like(r), torch.ones_like(t)))
    target = velocity - (t - r) * derivative
    return (mean - target.detach()).square().mean()


@torch.no_grad()
def distance_from_circle(model, count=500):
    """Of points that one step makes out of noise."""
    noise = torch.randn(count, POINTS, 2)
    points = noise - model(noise, torch.zeros(count, 1, 1), torch.ones(count, 1, 1))
    return float((points.norm(dim=-1) - 1).abs().mean())


def main(steps=400):
    torch.manual_seed(0)
    model = Velocity()
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    before = distance_from_circle(model)
    for _ in range(steps):
        loss = loss_of(model)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    after = distance_from_circle(model)
    print(f"distance of one-step samples from the circle: {before:.3f} before, {after:.3f} after {steps} steps")
    return before, after


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
