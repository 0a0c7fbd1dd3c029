# SPDX-License-Identifier: Apache-2.0
"""First derivatives in eager mode and under torch.func: reverse, forward, and vmap of either.

The operators compute; the classes here say to PyTorch what is whose derivative. The derivative of a derivative is
refused.
"""

from typing import NamedTuple

import torch

from qkv.torch import ops

N = len(ops.INPUTS)


class Call(NamedTuple):
    """What is no tensor: `options` as the operators take them."""

    options: str


def loop(function, info, in_dims, arguments):
    """vmap by calling once per entry: the operation has no axis of its own for it."""

    def entry(argument, dim, n):
        return argument.select(dim, n) if isinstance(argument, torch.Tensor) and dim is not None else argument

    results = [function.apply(*(entry(a, d, n) for a, d in zip(arguments, in_dims))) for n in range(info.batch_size)]
    return tuple(torch.stack(parts) for parts in zip(*results)), (0,) * len(results[0])


class Attention(torch.autograd.Function):
    """(call, inputs of INPUTS..., extra...) to (out, lse, row_max, row_sum, wide_out)."""

    @staticmethod
    def forward(call, *tensors):
        return tuple(torch.ops.qkv.forward(*tensors[:N], list(tensors[N:]), call.options))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.call, *tensors = inputs
        out, lse, row_max, row_sum, wide_out = output
        ctx.mark_non_differentiable(row_max, row_sum, wide_out)
        ctx.set_materialize_grads(False)
        state = (wide_out if ops.has_wide_out(out) else out, row_max, row_sum)
        ctx.save_for_backward(*tensors, *state)
        ctx.save_for_forward(*tensors, *state)

    @staticmethod
    def backward(ctx, d_out, d_lse, *_):
        *tensors, out, row_max, row_sum = ctx.saved_tensors
        gradients = [None] * (1 + len(tensors))
        wanted = tuple(place for place in range(N) if ctx.needs_input_grad[1 + place])
        if wanted and (d_out is not None or d_lse is not None):
            if d_out is None:
                d_out = torch.zeros(out.shape, dtype=tensors[0].dtype)
            found = Backward.apply(ctx.call, wanted, d_out, d_lse, out.detach(), row_max, row_sum, *tensors)
            for place, gradient in zip(wanted, found):
                gradients[1 + place] = gradient
        return tuple(gradients)

    @staticmethod
    def jvp(ctx, _, *tangents):
        *tensors, out, row_max, row_sum = ctx.saved_tensors
        places = tuple(place for place in range(N) if tangents[place] is not None)
        if not places:
            return (None,) * 5
        t_out, t_lse = Jvp.apply(ctx.call, places, out.detach(), row_max, row_sum, *(tangents[p] for p in places),
                                 *tensors)
        return t_out, t_lse, None, None, None

    @staticmethod
    def vmap(info, in_dims, *arguments):
        return loop(Attention, info, in_dims, arguments)


class LastDerivative(torch.autograd.Function):
    """What has no derivative of its own."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError("attention: expected a first derivative, got the derivative of one")


class Backward(LastDerivative):
    """(call, wanted, d_out, d_lse, out, row_max, row_sum, inputs..., extra...) to the wanted gradients."""

    @staticmethod
    def forward(call, wanted, d_out, d_lse, out, row_max, row_sum, *tensors):
        return tuple(torch.ops.qkv.backward(*tensors[:N], list(tensors[N:]), call.options, out, row_max, row_sum, d_out,
                                            d_lse, list(wanted)))

    @staticmethod
    def vmap(info, in_dims, *arguments):
        return loop(Backward, info, in_dims, arguments)


class Jvp(LastDerivative):
    """(call, places, out, row_max, row_sum, tangents..., inputs..., extra...) to (t_out, t_lse)."""

    @staticmethod
    def forward(call, places, out, row_max, row_sum, *tensors):
        tangents, tensors = tensors[:len(places)], tensors[len(places):]
        return tuple(torch.ops.qkv.jvp(*tensors[:N], list(tensors[N:]), call.options, out, row_max, row_sum,
                                       [tangent.contiguous() for tangent in tangents], list(places)))

    @staticmethod
    def vmap(info, in_dims, *arguments):
        return loop(Jvp, info, in_dims, arguments)
