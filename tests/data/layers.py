#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Values and gradients of PyTorch's layers in f64, and positions as transformers computes them, for tests/nn and
tests/positions. Needs torch, transformers, numpy and safetensors.

    python tests/data/layers.py      writes layers.safetensors and positions.safetensors beside this file

Names: CASE/x, CASE/memory, CASE/d_y are inputs, CASE/y and CASE/d_x, CASE/d_memory results; CASE/p.NAME is the parameter
that visit() of qkv/nn/visit.h calls NAME, CASE/g.NAME its gradient. Rows of all sequences follow one another.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

FOLDER = Path(__file__).resolve().parent
WIDTH, HEADS, HIDDEN = 9, 3, 10
TARGET, SOURCE = (3, 5), (4, 2)  # lengths of the sequences of a batch


def linear(name, module):
    pairs = {f"{name}.weight": module.weight}
    if module.bias is not None:
        pairs[f"{name}.bias"] = module.bias
    return pairs


def attention(name, module):
    """A MultiheadAttention's parameters; those of its joint projection as views whose gradients are sliced alike."""
    names = {}
    width = module.embed_dim
    for i, part in enumerate("qkv"):
        separate = getattr(module, f"{part}_proj_weight")
        rows = slice(i * width, (i + 1) * width)
        names[f"{name}.{part}.weight"] = separate if separate is not None else (module.in_proj_weight, rows)
        names[f"{name}.{part}.bias"] = (module.in_proj_bias, rows)
    return names | linear(f"{name}.out", module.out_proj)


def block(name, layer):
    names = attention(f"{name}.attention", layer.self_attn) | linear(f"{name}.attention_norm", layer.norm1)
    last = layer.norm2
    if hasattr(layer, "multihead_attn"):
        names |= attention(f"{name}.cross", layer.multihead_attn) | linear(f"{name}.cross_norm", layer.norm2)
        last = layer.norm3
    names |= linear(f"{name}.feed_forward_norm", last)
    return names | linear(f"{name}.feed_forward.up", layer.linear1) | linear(f"{name}.feed_forward.down", layer.linear2)


def stack(name, module):
    names = linear(f"{name}.final_norm", module.norm)
    for i, layer in enumerate(module.layers):
        names |= block(f"{name}.{i}", layer)
    return names


def shaken(module):
    """The module in f64 with parameters, norms and biases included, that are all random."""
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(1 if parameter.dim() == 1 and parameter.mean() > 0.5 else 0, 0.3)
    return module


def record(case, inputs, names, run):
    """Runs on inputs that require gradients; y's upstream gradient is random."""
    for tensor in inputs.values():
        tensor.requires_grad_()
    y = run(*inputs.values())
    d_y = torch.randn_like(y)
    (y * d_y).sum().backward()
    found = {"y": y, "d_y": d_y}
    for name, tensor in inputs.items():
        found |= {name: tensor, f"d_{name}": tensor.grad}
    for name, parameter in names.items():
        parameter, rows = parameter if isinstance(parameter, tuple) else (parameter, slice(None))
        found |= {f"p.{name}": parameter[rows], f"g.{name}": parameter.grad[rows]}
    return {f"{case}/{name}": tensor.detach().clone().contiguous() for name, tensor in found.items()}


def padded(rows, lengths):
    return nn.utils.rnn.pad_sequence(rows.split(lengths), batch_first=True)


def unpadded(batch, lengths):
    return torch.cat([batch[i, :n] for i, n in enumerate(lengths)])


def padding(lengths):
    return torch.arange(max(lengths))[None] >= torch.tensor(lengths)[:, None]


def causal(length):
    return torch.ones(length, length, dtype=torch.bool).triu(1)


def rows(lengths, width=WIDTH):
    return torch.randn(sum(lengths), width, dtype=torch.float64)


def layer_cases():
    cases = {}
    norm = shaken(nn.LayerNorm(WIDTH, eps=1e-5))
    cases |= record("layer_norm", {"x": rows((7,))}, linear("norm", norm), norm)
    rms = shaken(nn.RMSNorm(WIDTH, eps=1e-6))
    cases |= record("rms_norm", {"x": rows((7,))}, {"norm.weight": rms.weight}, rms)
    module = shaken(nn.Linear(WIDTH, 5))
    cases |= record("linear", {"x": rows((7,))}, linear("linear", module), module)
    for name, run in {"relu": F.relu, "gelu": F.gelu, "silu": F.silu,
                      "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}.items():
        cases |= record(f"activation.{name}", {"x": 3 * rows((7,))}, {}, run)

    module = shaken(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))

    def self_attention(x):
        batch = padded(x, TARGET)
        out, _ = module(batch, batch, batch, key_padding_mask=padding(TARGET), attn_mask=causal(max(TARGET)))
        return unpadded(out, TARGET)
    cases |= record("self_attention", {"x": rows(TARGET)}, attention("attention", module), self_attention)

    other = shaken(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, kdim=7, vdim=7))

    def cross_attention(x, memory):
        keys = padded(memory, SOURCE)
        return unpadded(other(padded(x, TARGET), keys, keys, key_padding_mask=padding(SOURCE))[0], TARGET)
    cases |= record("cross_attention", {"x": rows(TARGET), "memory": rows(SOURCE, 7)},
                    attention("attention", other), cross_attention)

    for form, first in (("post_norm", False), ("pre_norm", True)):
        options = {"dropout": 0.0, "batch_first": True, "norm_first": first, "activation": F.gelu}
        encoder = shaken(nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, **options))
        cases |= record(f"encoder_layer.{form}", {"x": rows(TARGET)}, block("block", encoder), lambda x: unpadded(
            encoder(padded(x, TARGET), src_key_padding_mask=padding(TARGET)), TARGET))
        decoder = shaken(nn.TransformerDecoderLayer(WIDTH, HEADS, HIDDEN, **options))
        cases |= record(f"decoder_layer.{form}", {"x": rows(TARGET), "memory": rows(SOURCE)},
                        block("block", decoder), lambda x, memory: unpadded(decoder(
                            padded(x, TARGET), padded(memory, SOURCE), tgt_mask=causal(max(TARGET)),
                            memory_key_padding_mask=padding(SOURCE)), TARGET))

    whole = shaken(nn.Transformer(WIDTH, HEADS, 2, 2, HIDDEN, dropout=0.0, batch_first=True, norm_first=True))
    cases |= record("transformer", {"x": rows(TARGET), "memory": rows(SOURCE)},
                    stack("encoder", whole.encoder) | stack("decoder", whole.decoder),
                    lambda x, memory: unpadded(whole(
                        padded(memory, SOURCE), padded(x, TARGET), tgt_mask=causal(max(TARGET)),
                        src_key_padding_mask=padding(SOURCE), memory_key_padding_mask=padding(SOURCE)), TARGET))
    return cases | modern_cases()


def rotated(x, positions, width):
    """Half-split rotation of the first `width` of [T, heads, D]."""
    phases = positions[:, None].double() * 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    cos, sin = phases.cos()[:, None], phases.sin()[:, None]
    a, b, rest = x[..., :width // 2], x[..., width // 2:width], x[..., width:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos, rest], -1)


def parameters(shapes):
    return {name: (torch.randn(shape, dtype=torch.float64) * 0.4 + (1 if name.endswith("norm.weight") else 0))
            .requires_grad_() for name, shape in shapes.items()}


def modern_block(x, p, *, kv_heads, norm, softcap, form, gate):
    """A block of current decoders on one sequence: grouped heads, half of each rotated, causal, soft-cap, gate."""
    T, D = x.shape[0], 8
    positions = torch.arange(T)

    def attend(x):
        q, k, v = (F.linear(x, p[f"block.attention.{n}.weight"]).view(T, -1, D) for n in "qkv")
        if "block.attention.q_norm.weight" in p:
            q = F.rms_norm(q, (D,), p["block.attention.q_norm.weight"], 1e-5)
            k = F.rms_norm(k, (D,), p["block.attention.k_norm.weight"], 1e-5)
        q, k = rotated(q, positions, 4), rotated(k, positions, 4)
        group = q.shape[1] // kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("ihd,jhd->hij", q, k) / D ** 0.5
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        weights = scores.masked_fill(causal(T), -torch.inf).softmax(-1)
        out = torch.einsum("hij,jhd->ihd", weights, v).reshape(T, -1)
        return F.linear(out, p["block.attention.out.weight"])

    def feed(x):
        inner = gate(F.linear(x, p["block.feed_forward.gate.weight"])) * F.linear(x, p["block.feed_forward.up.weight"])
        return F.linear(inner, p["block.feed_forward.down.weight"])

    def normed(name, x):
        return norm(x, p[f"block.{name}.weight"])

    if form == "parallel":
        return x + attend(normed("attention_norm", x)) + feed(normed("feed_forward_norm", x))
    for sublayer, name in ((attend, "attention"), (feed, "feed_forward")):
        branch = sublayer(normed(f"{name}_norm", x))
        x = x + (normed(f"{name}_after_norm", branch) if form == "sandwich" else branch)
    return x


def modern_cases():
    cases = {}
    heads, kv_heads, D = 4, 2, 8
    shapes = {"block.attention_norm.weight": (WIDTH,), "block.feed_forward_norm.weight": (WIDTH,),
              "block.attention.q.weight": (heads * D, WIDTH), "block.attention.k.weight": (kv_heads * D, WIDTH),
              "block.attention.v.weight": (kv_heads * D, WIDTH), "block.attention.out.weight": (WIDTH, heads * D),
              "block.feed_forward.up.weight": (HIDDEN, WIDTH), "block.feed_forward.gate.weight": (HIDDEN, WIDTH),
              "block.feed_forward.down.weight": (WIDTH, HIDDEN)}
    head_norms = {"block.attention.q_norm.weight": (D,), "block.attention.k_norm.weight": (D,)}
    after = {"block.attention_after_norm.weight": (WIDTH,), "block.feed_forward_after_norm.weight": (WIDTH,)}

    def rms(x, weight):
        return F.rms_norm(x, (WIDTH,), weight, 1e-5)

    def offset_rms(x, weight):
        return F.rms_norm(x, (WIDTH,), 1 + weight, 1e-5)

    def add(case, shapes, **options):
        p = parameters(shapes)
        cases.update(record(case, {"x": rows((6,))}, p, lambda x: modern_block(x, p, kv_heads=kv_heads, **options)))
    add("block.swiglu", shapes | head_norms, norm=rms, softcap=0, form="pre_norm", gate=F.silu)
    add("block.sandwich", shapes | after, norm=offset_rms, softcap=2.0, form="sandwich",
        gate=lambda x: F.gelu(x, approximate="tanh"))
    add("block.parallel", shapes, norm=lambda x, weight: F.layer_norm(x, (WIDTH,), weight), softcap=0, form="parallel",
        gate=F.gelu)
    return cases


def position_cases():
    """Frequencies as transformers' rope functions give them (f32), slopes as its BLOOM, tables of two families."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

    found = {}
    scalings = {
        "linear": {"rope_type": "linear", "factor": 4.0},
        "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 8192},
        "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096},
        "yarn_mscale": {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 0.7,
                        "mscale_all_dim": 1.0, "beta_fast": 16, "beta_slow": 2, "truncate": False},
        "longrope": {"rope_type": "longrope", "factor": 8.0, "original_max_position_embeddings": 4096,
                     "long_factor": [1.0 + i / 7 for i in range(32)], "short_factor": [1.0 + i / 7 for i in range(32)]},
    }
    for name, scaling in scalings.items():
        config = LlamaConfig(hidden_size=256, num_attention_heads=4, max_position_embeddings=32768,
                             rope_parameters={"rope_theta": 500000.0, **scaling})
        frequencies, amplitude = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, "cpu")
        found |= {f"rotary.{name}/frequencies": frequencies, f"rotary.{name}/amplitude": torch.tensor([amplitude])}
    for heads in (1, 2, 3, 6, 8, 12, 20, 32):
        biases = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)
        found[f"alibi.{heads}"] = biases[:, 0, 1]
    marian = MarianSinusoidalPositionalEmbedding(10, 7)
    found["sinusoidal.halves"] = torch.as_tensor(marian.create_weight(), dtype=torch.float64)
    i = torch.arange(7)
    phases = torch.arange(10)[:, None] / 10000.0 ** ((i - i % 2).double() / 7)
    found["sinusoidal.interleaved"] = torch.where(i % 2 == 0, phases.sin(), phases.cos())
    return {name: tensor.detach().clone().contiguous() for name, tensor in found.items()}


def files():
    """The tensors of each file."""
    torch.manual_seed(7)
    return {"layers.safetensors": layer_cases(), "positions.safetensors": position_cases()}


def main():
    for name, tensors in files().items():
        save_file(tensors, FOLDER / name)


if __name__ == "__main__":
    main()
