# SPDX-License-Identifier: Apache-2.0
"""The modes of attention as operators of PyTorch: qkv::forward, backward, jvp and second_order.

They are opaque to torch.compile, with fake kernels for shapes; forward carries its reverse-mode derivative. What is no
tensor comes as the parts of Options. Inputs with derivatives come in the order of INPUTS, absent ones as None; `out`,
`row_max` and `row_sum` are the state that forward leaves.
"""

from typing import List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from qkv import _core
from qkv.torch.options import Options, decode, is_packed

INPUTS = ("q", "k", "v", "bias", "slopes", "table", "sinks", "scale")
SCALE = INPUTS.index("scale")
UPSTREAM = ("d_out", "d_lse")  # what the backward depends on beside INPUTS

_core.learn_torch(torch)


def keywords(inputs, extra, options):
    """The keyword arguments of the core from an operator's arguments."""
    arguments = decode(options, extra)
    arguments.setdefault("threads", torch.get_num_threads())
    arguments.update((name, tensor) for name, tensor in zip(INPUTS[3:SCALE], inputs[3:SCALE]) if tensor is not None)
    if inputs[SCALE] is not None:
        arguments["scale"] = float(inputs[SCALE])
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
    lead = () if is_packed(options) else (1,) * (4 - q.dim())
    lse = q.new_empty(q.shape[:-1], dtype=number_dtype(q))
    rows = [q.new_empty((*lead, *q.shape[:-1]), dtype=number_dtype(q)) for _ in range(2)]
    wide_out = q.new_empty((*lead, *q.shape[:-1], v.shape[-1]) if has_wide_out(q) else (0,), dtype=number_dtype(q))
    return (new_out(q, v), lse, *rows, wide_out)


def new_like(tensor, dtype=None):
    """A contiguous tensor of the same shape: an expanded one must not be written through."""
    return tensor.new_empty(tensor.shape, dtype=dtype)


def scale_number(tensor, q):
    """A derivative of `scale` in the dtype that the core has it in."""
    return tensor.to(number_dtype(q))


def run_forward(q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], slopes: Optional[Tensor],
                table: Optional[Tensor], sinks: Optional[Tensor], scale: Optional[Tensor], extra: Sequence[Tensor],
                words: str, integers: Sequence[int],
                floats: Sequence[float]) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    options = Options(words, integers, floats)
    results = new_results(q, v, options)
    names = ("out", "lse", "row_max", "row_sum", "wide_out")[:5 if has_wide_out(q) else 4]
    _core.forward_with_state(q, k, v, dict(zip(names, results)),
                             **keywords((q, k, v, bias, slopes, table, sinks, scale), extra, options))
    return results


forward = torch.library.custom_op("qkv::forward", run_forward, mutates_args=())


@forward.register_fake
def _(q, k, v, bias, slopes, table, sinks, scale, extra, words, integers, floats):
    return new_results(q, v, Options(words, integers, floats))


def run_backward(q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], slopes: Optional[Tensor],
                 table: Optional[Tensor], sinks: Optional[Tensor], scale: Optional[Tensor], extra: Sequence[Tensor],
                 words: str, integers: Sequence[int], floats: Sequence[float], out: Tensor, row_max: Tensor,
                 row_sum: Tensor, d_out: Tensor, d_lse: Optional[Tensor], wanted: Sequence[int]) -> List[Tensor]:
    """Gradients of the inputs whose places in INPUTS are `wanted`."""
    inputs = (q, k, v, bias, slopes, table, sinks, scale)
    results = {INPUTS[place]: new_like(inputs[place], number_dtype(q) if place == SCALE else None) for place in wanted}
    _core.backward(q, k, v, (row_max, row_sum, out), d_out, d_lse, results,
                   **keywords(inputs, extra, Options(words, integers, floats)))
    return [result.to(inputs[place].dtype) for place, result in zip(wanted, results.values())]


backward = torch.library.custom_op("qkv::backward", run_backward, mutates_args=())


@backward.register_fake
def _(q, k, v, bias, slopes, table, sinks, scale, extra, words, integers, floats, out, row_max, row_sum, d_out, d_lse,
      wanted):
    inputs = (q, k, v, bias, slopes, table, sinks, scale)
    return [new_like(inputs[place]) for place in wanted]


def run_jvp(q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], slopes: Optional[Tensor], table: Optional[Tensor],
            sinks: Optional[Tensor], scale: Optional[Tensor], extra: Sequence[Tensor], words: str,
            integers: Sequence[int], floats: Sequence[float], out: Tensor, row_max: Tensor, row_sum: Tensor,
            tangents: Sequence[Tensor], places: Sequence[int]) -> Tuple[Tensor, Tensor]:
    """Tangents of out and lse; `tangents` are those of the inputs whose places in INPUTS are `places`."""
    inputs = (q, k, v, bias, slopes, table, sinks, scale)
    t_out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    t_lse = q.new_empty(q.shape[:-1], dtype=number_dtype(q))
    given = {INPUTS[place]: scale_number(tangent, q) if place == SCALE else tangent
             for place, tangent in zip(places, tangents)}
    _core.jvp(q, k, v, (row_max, row_sum, out), given, t_out, t_lse,
              **keywords(inputs, extra, Options(words, integers, floats)))
    return t_out, t_lse


jvp = torch.library.custom_op("qkv::jvp", run_jvp, mutates_args=())


@jvp.register_fake
def _(q, k, v, bias, slopes, table, sinks, scale, extra, words, integers, floats, out, row_max, row_sum, tangents,
      places):
    return q.new_empty((*q.shape[:-1], v.shape[-1])), q.new_empty(q.shape[:-1], dtype=number_dtype(q))


def run_second_order(q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], slopes: Optional[Tensor],
                     table: Optional[Tensor], sinks: Optional[Tensor], scale: Optional[Tensor], extra: Sequence[Tensor],
                     words: str, integers: Sequence[int], floats: Sequence[float], out: Tensor, row_max: Tensor,
                     row_sum: Tensor, d_out: Tensor, d_lse: Optional[Tensor], cotangents: Sequence[Tensor],
                     places: Sequence[int], wanted: Sequence[int]) -> List[Tensor]:
    """Gradients of the sum over `places` of <cotangent, gradient of that input>, where the latter are those that
    backward gives: with respect to the inputs `wanted`, in places of INPUTS + UPSTREAM."""
    from qkv.torch.second_order import SecondOrder

    call = SecondOrder((q, k, v, bias, slopes, table, sinks, scale), (out, row_max, row_sum), d_out, d_lse,
                       keywords((q, k, v, bias, slopes, table, sinks, scale), extra, Options(words, integers, floats)))
    return call.gradients(dict(zip(places, cotangents)), wanted)


second_order = torch.library.custom_op("qkv::second_order", run_second_order, mutates_args=())


@second_order.register_fake
def _(q, k, v, bias, slopes, table, sinks, scale, extra, words, integers, floats, out, row_max, row_sum, d_out, d_lse,
      cotangents, places, wanted):
    inputs = (q, k, v, bias, slopes, table, sinks, scale, d_out, d_lse)
    return [new_like(inputs[place]) for place in wanted]


PLAIN = (Tensor, torch.nn.Parameter)
WAYS = {name: (run, getattr(torch.ops.qkv, name)) for name, run in
        (("forward", run_forward), ("backward", run_backward), ("jvp", run_jvp), ("second_order", run_second_order))}


def is_unwatched(tensors):
    """True where no transform, mode or subclass is to see what happens."""
    return (all(type(tensor) in PLAIN for tensor in tensors)
            and torch._C._len_torch_dispatch_stack() == 0
            and torch._C._functorch.peek_interpreter_stack() is None)


def call(name, inputs, *further):
    """An operator, or where nobody watches what it does: PyTorch's way to it costs more than a small attention."""
    run, operator = WAYS[name]
    way = run if is_unwatched(x for x in inputs if x is not None) else operator
    return way(*inputs, *further)


# ---- Reverse-mode derivative, for compiled graphs; derivatives.py has those of eager mode, in every mode.

def _save_forward(ctx, inputs, output):
    out, lse, row_max, row_sum, wide_out = output
    *tensors, extra, words, integers, floats = inputs
    ctx.save_for_backward(*tensors, *extra, wide_out if has_wide_out(out) else out, row_max, row_sum)
    ctx.options, ctx.extra = (words, integers, floats), len(extra)
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
        found = torch.ops.qkv.backward(*inputs, extra, *ctx.options, out.detach(), row_max, row_sum, d_out, d_lse,
                                       wanted)
        for place, gradient in zip(wanted, found):
            gradients[place] = gradient
    no_gradients = [[] if len(numbers) == 0 else None for numbers in ctx.options[1:]]  # in PyTorch's structure
    return (*gradients, [None] * ctx.extra, None, *no_gradients)


torch.library.register_autograd("qkv::forward", _backward_of_forward, setup_context=_save_forward)
