# SPDX-License-Identifier: Apache-2.0
"""Derivatives in eager mode and under torch.func: reverse, forward, second order, and vmap of each.

The operators compute; the classes here say to PyTorch what is whose derivative. With F the operation, J t its tangent
along t, B(x, d) = J^T d its backward and L(x, d, t) = <d, J t>,

    of the backward:       reverse     gradients of L(x, d, c) in x, and J c in d       (c: cotangents of B)
                           forward     B(x, t_d) + gradient of L(x, d, t_x) in x
    of the tangent J t:    reverse     gradient of L(x, u, t) in x, and B(x, u) in t    (u: cotangents of J t)

The gradient of L is the operator second_order. Nothing here has third derivatives, or a tangent of a tangent with
respect to the point x; both are refused.
"""

import inspect
from typing import NamedTuple

import torch

from qkv.torch import ops
from qkv.torch.options import Options

N = len(ops.INPUTS)


class Call(NamedTuple):
    """What is no tensor, as the operators take it."""

    options: Options


def loop(function, info, in_dims, arguments):
    """vmap by calling once per entry: the operation has no axis of its own for it."""

    def entry(argument, dim, n):
        return argument.select(dim, n) if isinstance(argument, torch.Tensor) and dim is not None else argument

    results = [function.apply(*(entry(a, d, n) for a, d in zip(arguments, in_dims))) for n in range(info.batch_size)]
    return tuple(torch.stack(parts) for parts in zip(*results)), (0,) * len(results[0])


def zeros_of_out(state, tensors):
    return torch.zeros(state[0].shape[-tensors[0].dim():], dtype=tensors[0].dtype)


def is_last(tensors):
    """True where no further derivative will be asked for, as in an ordinary call of backward()."""
    return (not torch.is_grad_enabled() and torch.autograd.forward_ad._current_level < 0
            and ops.is_unwatched(tensor for tensor in tensors if tensor is not None))


def backward(call, wanted, upstream, state, tensors):
    """The gradients of the inputs at the places `wanted`, for upstream (d_out, d_lse), either of them None."""
    d_out, d_lse = upstream
    if d_out is None:
        d_out = zeros_of_out(state, tensors)
    arguments = (call, wanted, d_out, d_lse, *state, *tensors)
    if is_last((d_out, d_lse, *tensors)):
        return Backward.forward(*arguments)
    return Backward.apply(*arguments)


def second_order(call, wanted, upstream, cotangents, state, tensors):
    """Gradients of L at the places `wanted` of INPUTS + UPSTREAM; `cotangents`: a dict by place."""
    d_out, d_lse = upstream
    if d_out is None:
        d_out = zeros_of_out(state, tensors)
    return SecondOrder.apply(call, wanted, tuple(cotangents), d_out, d_lse, *cotangents.values(), *state, *tensors)


def given(values):
    """Those that are there, by place."""
    return {place: value for place, value in enumerate(values) if value is not None}


def prepared(function):
    """PyTorch asks for the signature of `forward` in every call; finding it costs more than a small attention."""
    function.forward.__signature__ = inspect.signature(function.forward)
    return function


@prepared
class Attention(torch.autograd.Function):
    """(call, inputs of INPUTS..., extra...) to (out, lse, row_max, row_sum, wide_out)."""

    @staticmethod
    def forward(call, *tensors):
        return tuple(ops.call("forward", tensors[:N], list(tensors[N:]), *call.options))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.call, *tensors = inputs
        out, lse, row_max, row_sum, wide_out = output
        ctx.mark_non_differentiable(row_max, row_sum, wide_out)
        ctx.set_materialize_grads(False)
        state = (wide_out if ops.has_wide_out(out) else out, row_max, row_sum)
        ctx.save_for_backward(*state, *tensors)
        ctx.save_for_forward(*state, *tensors)

    @staticmethod
    def backward(ctx, d_out, d_lse, *_):
        (out, *rows), tensors = ctx.saved_tensors[:3], ctx.saved_tensors[3:]
        gradients = [None] * (1 + len(tensors))
        wanted = tuple(place for place in range(N) if ctx.needs_input_grad[1 + place])
        if wanted and (d_out is not None or d_lse is not None):
            found = backward(ctx.call, wanted, (d_out, d_lse), (out.detach(), *rows), tensors)
            for place, gradient in zip(wanted, found):
                gradients[1 + place] = gradient
        return tuple(gradients)

    @staticmethod
    def jvp(ctx, _, *tangents):
        (out, *rows), tensors = ctx.saved_tensors[:3], ctx.saved_tensors[3:]
        moving = given(tangents[:N])
        if not moving:
            return (None,) * 5
        t_out, t_lse = Jvp.apply(ctx.call, tuple(moving), *moving.values(), out.detach(), *rows, *tensors)
        return t_out, t_lse, None, None, None

    @staticmethod
    def vmap(info, in_dims, *arguments):
        return loop(Attention, info, in_dims, arguments)


@prepared
class Backward(torch.autograd.Function):
    """(call, wanted, d_out, d_lse, state..., inputs..., extra...) to the wanted gradients."""

    @staticmethod
    def forward(call, wanted, d_out, d_lse, out, row_max, row_sum, *tensors):
        return tuple(ops.call("backward", tensors[:N], list(tensors[N:]), *call.options, out, row_max, row_sum, d_out,
                              d_lse, list(wanted)))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.call, ctx.wanted, *tensors = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx, *cotangents):
        upstream, state, tensors = ctx.saved_tensors[:2], ctx.saved_tensors[2:5], ctx.saved_tensors[5:]
        gradients = [None] * (7 + len(tensors))
        moving = {ctx.wanted[n]: cotangent for n, cotangent in given(cotangents).items()}
        if not moving:
            return tuple(gradients)
        # Where the inputs are in the arguments, then d_out and d_lse.
        arguments = (*range(7, 7 + N), 2, 3)
        wanted = tuple(place for place, n in enumerate(arguments) if ctx.needs_input_grad[n])
        if wanted and wanted[0] < N:
            found = second_order(ctx.call, wanted, upstream, moving, state, tensors)
        elif wanted:  # the backward is linear in them
            both = Jvp.apply(ctx.call, tuple(moving), *moving.values(), *state, *tensors)
            found = [both[place - N] for place in wanted]
        for place, gradient in zip(wanted, found if wanted else ()):
            gradients[arguments[place]] = gradient
        return tuple(gradients)

    @staticmethod
    def jvp(ctx, _call, _wanted, t_d_out, t_d_lse, *tangents):
        upstream, state, tensors = ctx.saved_tensors[:2], ctx.saved_tensors[2:5], ctx.saved_tensors[5:]
        results = (None,) * len(ctx.wanted)
        if t_d_out is not None or t_d_lse is not None:
            results = backward(ctx.call, ctx.wanted, (t_d_out, t_d_lse), state, tensors)
        moving = given(tangents[3:3 + N])
        if moving:
            further = second_order(ctx.call, ctx.wanted, upstream, moving, state, tensors)
            results = tuple(b if a is None else a + b for a, b in zip(results, further))
        return tuple(results)

    @staticmethod
    def vmap(info, in_dims, *arguments):
        return loop(Backward, info, in_dims, arguments)


@prepared
class Jvp(torch.autograd.Function):
    """(call, places, tangents..., state..., inputs..., extra...) to (t_out, t_lse)."""

    @staticmethod
    def forward(call, places, *tensors):
        tangents, (out, row_max, row_sum), tensors = Jvp.parts(places, tensors)
        return tuple(ops.call("jvp", tensors[:N], list(tensors[N:]), *call.options, out, row_max, row_sum,
                              [tangent.contiguous() for tangent in tangents], list(places)))

    @staticmethod
    def parts(places, tensors):
        n = len(places)
        return tensors[:n], tensors[n:n + 3], tensors[n + 3:]

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.call, ctx.places, *tensors = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx, d_out, d_lse):
        tangents, state, tensors = Jvp.parts(ctx.places, ctx.saved_tensors)
        gradients = [None] * (2 + len(ctx.saved_tensors))
        if d_out is None and d_lse is None:
            return tuple(gradients)
        first = 2 + len(tangents) + 3  # of the inputs among the arguments
        of_tangents = tuple(n for n in range(len(tangents)) if ctx.needs_input_grad[2 + n])
        if of_tangents:
            wanted = tuple(ctx.places[n] for n in of_tangents)
            for n, gradient in zip(of_tangents, backward(ctx.call, wanted, (d_out, d_lse), state, tensors)):
                gradients[2 + n] = gradient
        wanted = tuple(place for place in range(N) if ctx.needs_input_grad[first + place])
        if wanted:
            moving = dict(zip(ctx.places, tangents))
            found = second_order(ctx.call, wanted, (d_out, d_lse), moving, state, tensors)
            for place, gradient in zip(wanted, found):
                gradients[first + place] = gradient
        return tuple(gradients)

    @staticmethod
    def jvp(ctx, _call, _places, *tangents):
        of_tangents, _, of_inputs = Jvp.parts(ctx.places, tangents)
        if given(of_inputs[:N]):
            raise RuntimeError("attention: expected forward mode over reverse, or reverse over forward, for a second "
                               "derivative; got forward over forward")
        _, state, tensors = Jvp.parts(ctx.places, ctx.saved_tensors)
        moving = {ctx.places[n]: tangent for n, tangent in given(of_tangents).items()}
        if not moving:
            return None, None
        return Jvp.apply(ctx.call, tuple(moving), *moving.values(), *state, *tensors)

    @staticmethod
    def vmap(info, in_dims, *arguments):
        return loop(Jvp, info, in_dims, arguments)


@prepared
class SecondOrder(torch.autograd.Function):
    """(call, wanted, places, d_out, d_lse, cotangents..., state..., inputs..., extra...) to the wanted gradients."""

    @staticmethod
    def forward(call, wanted, places, d_out, d_lse, *tensors):
        cotangents, (out, row_max, row_sum), tensors = Jvp.parts(places, tensors)
        return tuple(ops.call("second_order", tensors[:N], list(tensors[N:]), *call.options, out, row_max, row_sum,
                              d_out, d_lse, [c.contiguous() for c in cotangents], list(places), list(wanted)))

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError("attention: expected a first or second derivative, got a third")

    @staticmethod
    def jvp(ctx, *_):
        raise RuntimeError("attention: expected a first or second derivative, got a third")

    @staticmethod
    def vmap(info, in_dims, *arguments):
        return loop(SecondOrder, info, in_dims, arguments)
