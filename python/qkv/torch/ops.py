# SPDX-License-Identifier: Apache-2.0
"""The modes of attention as operators of PyTorch: qkv::forward, backward and jvp.

They are opaque to torch.compile, with fake kernels for shapes; forward carries its reverse-mode derivative. `options` is a dict, as text, of everything that is no tensor; it names the tensors in `extra` too.
Inputs with derivatives come in the order of INPUTS, absent ones as None.
"""

import ast
from typing import List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from qkv import _core

INPUTS = ("q", "k", "v", "bias", "slopes", "table", "sinks", "scale")

_core.learn_torch(torch)


def keywords(inputs, extra, options):
    """The keyword arguments of the core from an operator's arguments."""
    arguments = ast.literal_eval(options)
    names = arguments.pop("extra", ())
    arguments.setdefault("threads", torch.get_num_threads())
    arguments.update(zip(names, extra))
    if "seed" in names:
        arguments["seed"] = int(arguments["seed"])
    arguments.update((name, tensor) for name, tensor in zip(INPUTS[3:7], inputs[3:7]) if tensor is not None)
    if inputs[7] is not None:
        arguments["scale"] = float(inputs[7])
    return arguments


def number_dtype(q):
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def has_wide_out(q):
    """True where the state needs its own unrounded output."""
    return q.dtype not in (torch.float32, torch.float64)


def new_out(q, v):
    """With the strides of q where shapes agree, so that what was token-major stays it."""
    return torch.empty_like(q) if q.shape[-1] == v.shape[-1] else q.new_empty((*q.shape[:-1], v.shape[-1]))


def new_results(q, v, options):
    """out, lse, row_max, row_sum and wide_out (empty where `out` serves); the state has all axes whatever the rank."""
    lead = () if "'query_starts'" in options else (1,) * (4 - q.dim())
    lse = q.new_empty(q.shape[:-1], dtype=number_dtype(q))
    rows = [q.new_empty((*lead, *q.shape[:-1]), dtype=number_dtype(q)) for _ in range(2)]
    wide_out = q.new_empty((*lead, *q.shape[:-1], v.shape[-1]) if has_wide_out(q) else (0,), dtype=number_dtype(q))
    return (new_out(q, v), lse, *rows, wide_out)


def new_like(tensor):
    """A contiguous tensor of the same shape: an expanded one must not be written through."""
    return torch.empty(tensor.shape, dtype=tensor.dtype)


@torch.library.custom_op("qkv::forward", mutates_args=())
def forward(q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], slopes: Optional[Tensor], table: Optional[Tensor],
            sinks: Optional[Tensor], scale: Optional[Tensor], extra: Sequence[Tensor],
            options: str) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    results = new_results(q, v, options)
    names = ("out", "lse", "row_max", "row_sum", "wide_out")[:5 if has_wide_out(q) else 4]
    _core.forward_with_state(q, k, v, dict(zip(names, results)),
                             **keywords((q, k, v, bias, slopes, table, sinks, scale), extra, options))
    return results


@forward.register_fake
def _(q, k, v, bias, slopes, table, sinks, scale, extra, options):
    return new_results(q, v, options)


@torch.library.custom_op("qkv::backward", mutates_args=())
def backward(q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], slopes: Optional[Tensor], table: Optional[Tensor],
             sinks: Optional[Tensor], scale: Optional[Tensor], extra: Sequence[Tensor], options: str, out: Tensor,
             row_max: Tensor, row_sum: Tensor, d_out: Tensor, d_lse: Optional[Tensor],
             wanted: Sequence[int]) -> List[Tensor]:
    """Gradients of the inputs whose places in INPUTS are `wanted`."""
    inputs = (q, k, v, bias, slopes, table, sinks, scale)
    gradients = [new_like(inputs[place]) for place in wanted]
    results = {INPUTS[place]: gradient for place, gradient in zip(wanted, gradients)}
    converted = None
    if 7 in wanted and scale.dtype != number_dtype(q):
        converted = results["scale"] = torch.empty(scale.shape, dtype=number_dtype(q))
    _core.backward(q, k, v, (row_max, row_sum, out), d_out, d_lse, results, **keywords(inputs, extra, options))
    if converted is not None:
        gradients[list(wanted).index(7)].copy_(converted)
    return gradients


@backward.register_fake
def _(q, k, v, bias, slopes, table, sinks, scale, extra, options, out, row_max, row_sum, d_out, d_lse, wanted):
    inputs = (q, k, v, bias, slopes, table, sinks, scale)
    return [inputs[place].new_empty(inputs[place].shape) for place in wanted]


@torch.library.custom_op("qkv::jvp", mutates_args=())
def jvp(q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], slopes: Optional[Tensor], table: Optional[Tensor],
        sinks: Optional[Tensor], scale: Optional[Tensor], extra: Sequence[Tensor], options: str, out: Tensor,
        row_max: Tensor, row_sum: Tensor, tangents: Sequence[Tensor], places: Sequence[int]) -> Tuple[Tensor, Tensor]:
    """Tangents of out and lse; `tangents` are those of the inputs whose places in INPUTS are `places`."""
    inputs = (q, k, v, bias, slopes, table, sinks, scale)
    t_out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    t_lse = q.new_empty(q.shape[:-1], dtype=number_dtype(q))
    given = {INPUTS[place]: tangent for place, tangent in zip(places, tangents)}
    if "scale" in given:
        given["scale"] = given["scale"].to(number_dtype(q))
    _core.jvp(q, k, v, (row_max, row_sum, out), given, t_out, t_lse, **keywords(inputs, extra, options))
    return t_out, t_lse


@jvp.register_fake
def _(q, k, v, bias, slopes, table, sinks, scale, extra, options, out, row_max, row_sum, tangents, places):
    return q.new_empty((*q.shape[:-1], v.shape[-1])), q.new_empty(q.shape[:-1], dtype=number_dtype(q))


# ---- Reverse-mode derivative, for compiled graphs; derivatives.py has those of eager mode, in both modes.

def _save_forward(ctx, inputs, output):
    out, lse, row_max, row_sum, wide_out = output
    *tensors, extra, options = inputs
    ctx.save_for_backward(*tensors, *extra, wide_out if has_wide_out(out) else out, row_max, row_sum)
    ctx.options, ctx.extra = options, len(extra)
    ctx.mark_non_differentiable(row_max, row_sum, wide_out)
    ctx.set_materialize_grads(False)


def _backward_of_forward(ctx, d_out, d_lse, *_):
    inputs, extra = ctx.saved_tensors[:8], list(ctx.saved_tensors[8:8 + ctx.extra])
    out, row_max, row_sum = ctx.saved_tensors[8 + ctx.extra:]
    wanted = [place for place in range(8) if ctx.needs_input_grad[place]]
    gradients = [None] * 8
    if d_out is None and d_lse is not None:
        d_out = torch.zeros_like(out, dtype=inputs[0].dtype)
    if d_out is not None:
        found = torch.ops.qkv.backward(*inputs, extra, ctx.options, out.detach(), row_max, row_sum, d_out, d_lse, wanted)
        for place, gradient in zip(wanted, found):
            gradients[place] = gradient
    return (*gradients, [None] * ctx.extra, None)


torch.library.register_autograd("qkv::forward", _backward_of_forward, setup_context=_save_forward)
