# SPDX-License-Identifier: Apache-2.0
"""The modes of attention as primitives of JAX, and what is whose derivative, transpose and batched form.

With F the operation, J t its tangent along t, B(x, d) = J^T d its backward, L(x, d, t) = <d, J t>, and S(x, d, t) the
gradient of L in x:

    primitive       of                     derivative in x along s         transpose
    forward         F(x)                   J s
    jvp             J t                    second_tangent(t, s)            of t: B
    backward        B(x, d)                S(x, d, s)                      of d: J
    second_order    S(x, d, t)             refused (a third)               of t: S again, the Hessian is symmetric
    second_tangent  D^2 F [t, s]                                           of s: S(x, d, t); of t: S(x, d, s)

The last one is never computed: reverse mode transposes it, forward over forward is refused. Every primitive takes its
own arrays first, then the state (out, row_max, row_sum), then the named tensors of the call, those of INPUTS that are
there before the rest; the state counts as a constant, since J, B and S are the whole derivatives.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from qkv import _core

INPUTS = ("q", "k", "v", "bias", "slopes", "table", "sinks")  # those with derivatives
STATE = ("out", "row_max", "row_sum")

if not hasattr(_core, "xla_handler"):
    raise ImportError("qkv.jax: this build of qkv knows no XLA; build it where jaxlib is installed: "
                      "QKV_JAX=1 pip install . fetches jaxlib for that")
jax.ffi.register_ffi_target("qkv_attention", _core.xla_handler(), platform="cpu")


def number_dtype(q):
    return jnp.float64 if q.dtype == jnp.float64 else jnp.float32


def has_wide_out(q):
    """True where the state needs its own unrounded output."""
    return q.dtype not in (jnp.float32, jnp.float64)


class Mode:
    """A primitive `qkv_<name>`: `arguments` and `results` name its arrays for the handler, given its parameters."""

    def __init__(self, name, arguments, results, shapes):
        self.name, self.arguments, self.results, self.shapes = name, arguments, results, shapes
        self.primitive = Primitive(f"qkv_{name}")
        self.primitive.multiple_results = True
        self.primitive.def_impl(lambda *arrays, **parameters: self.compiled(tuple(parameters.items()))(*arrays))
        self.primitive.def_abstract_eval(lambda *avals, **parameters: shapes(avals, **parameters))
        batching.primitive_batchers[self.primitive] = self.batch
        mlir.register_lowering(self.primitive, self.lower, platform="cpu")

    @functools.lru_cache(maxsize=1024)
    def compiled(self, parameters):
        return jax.jit(functools.partial(self.primitive.bind, **dict(parameters)))

    def bind(self, *arrays, **parameters):
        return self.primitive.bind(*arrays, **parameters)

    def lower(self, context, *operands, names, options, **parameters):
        arguments = " ".join((*self.arguments(names=names, **parameters), *names))
        results = " ".join(self.results(names=names, **parameters)[:len(context.avals_out)])
        rule = jax.ffi.ffi_lowering("qkv_attention")
        return rule(context, *operands, mode=self.name, arguments=arguments, results=results, **dict(options))

    def batch(self, arrays, axes, **parameters):
        """One call per entry: the operation has no axis of its own for it."""
        moved = [jnp.moveaxis(x, axis, 0) for x, axis in zip(arrays, axes) if axis is not None]

        def one(entries):
            entries = iter(entries)
            return self.bind(*(x if axis is None else next(entries) for x, axis in zip(arrays, axes)),
                             **parameters)

        results = jax.lax.map(one, moved)
        return results, [0] * len(results)


def shaped(shape, dtype):
    return jax.core.ShapedArray(tuple(shape), jnp.dtype(dtype))


def out_shape(q, v):
    return (*q.shape[:-1], v.shape[-1])


def forward_shapes(avals, *, names, options):
    q, _, v = avals[:3]
    lead = () if "query_starts" in names else (1,) * (4 - q.ndim)
    wide = number_dtype(q)
    rows = [shaped((*lead, *q.shape[:-1]), wide)] * 2
    results = [shaped(out_shape(q, v), q.dtype), shaped(q.shape[:-1], wide), *rows]
    return results + [shaped((*lead, *out_shape(q, v)), wide)] * has_wide_out(q)


def tangent_shapes(avals, *, places, names, options, **_):
    q, _, v = avals[len(avals) - len(names):][:3]
    return [shaped(out_shape(q, v), q.dtype), shaped(q.shape[:-1], number_dtype(q))]


def gradient_shapes(avals, *, wanted, names, options, **_):
    tensors = dict(zip(names, avals[len(avals) - len(names):]))
    return [shaped(tensors[name].shape, tensors[name].dtype) for name in wanted]


def upstream(has_lse):
    return ("d_out", "d_lse") if has_lse else ("d_out",)


forward = Mode("forward", lambda names: (), lambda names: ("out", "lse", "row_max", "row_sum", "wide_out"),
               forward_shapes)
jvp = Mode("jvp", lambda places, names: (*("t_" + name for name in places), *STATE),
           lambda places, names: ("t_out", "t_lse"), tangent_shapes)
backward = Mode("backward", lambda has_lse, wanted, names: (*upstream(has_lse), *STATE),
                lambda has_lse, wanted, names: wanted, gradient_shapes)
second_order = Mode("second_order",
                    lambda has_lse, places, wanted, names: (*upstream(has_lse), *("t_" + x for x in places), *STATE),
                    lambda has_lse, places, wanted, names: wanted, gradient_shapes)
second_tangent = Mode("second_tangent", None, None, tangent_shapes)


def refuse(*_, **__):
    raise NotImplementedError("attention: expected forward mode over reverse, or reverse over forward, for a second "
                              "derivative; got forward over forward")


second_tangent.primitive.def_impl(refuse)
mlir.register_lowering(second_tangent.primitive, refuse, platform="cpu")


# ---- Helpers of the rules. `rest` is the state and the named tensors.

def is_zero(x):
    return type(x) is ad.Zero


def moving(names, tangents):
    """(names, tangents) of the inputs that move."""
    found = [(name, t) for name, t in zip(names, tangents) if name in INPUTS and not is_zero(t)]
    return tuple(name for name, _ in found), [t for _, t in found]


def dense(tangent):
    return ad.instantiate_zeros(tangent)


def both(results, further):
    return further if results is None else [a + b for a, b in zip(results, further)]


def zeros_of(results):
    return [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in results]


def call_backward(d_out, d_lse, rest, wanted, static):
    """B(x, d), where d_out and d_lse may be Zero, not both."""
    given = [dense(d_out)] + ([] if is_zero(d_lse) else [d_lse])
    return backward.bind(*given, *rest, has_lse=len(given) == 2, wanted=tuple(wanted), **static)


def call_second(d_out, d_lse, places, tangents, rest, wanted, static):
    given = [dense(d_out)] + ([] if d_lse is None or is_zero(d_lse) else [d_lse])
    return second_order.bind(*given, *tangents, *rest, has_lse=len(given) == 2, places=tuple(places),
                             wanted=tuple(wanted), **static)


# ---- Derivatives.

def forward_jvp(tensors, tangents, *, names, options):
    static = {"names": names, "options": options}
    results = forward.bind(*tensors, **static)
    places, moves = moving(names, tangents)
    zeros = zeros_of(results)
    if not places:
        return results, zeros
    state = (results[-1] if has_wide_out(tensors[0]) else results[0], results[2], results[3])
    return results, [*jvp.bind(*moves, *state, *tensors, places=places, **static), *zeros[2:]]


def jvp_jvp(arrays, tangents, *, places, names, options):
    static = {"names": names, "options": options}
    results = jvp.bind(*arrays, places=places, **static)
    count = len(places)
    rest = arrays[count:]
    moved = None
    again = [n for n in range(count) if not is_zero(tangents[n])]
    if again:
        moved = jvp.bind(*(tangents[n] for n in again), *rest, places=tuple(places[n] for n in again), **static)
    further, moves = moving(names, tangents[count + 3:])
    if further:
        moved = both(moved, second_tangent.bind(*arrays[:count], *moves, *rest, places=places, further=further, **static))
    return results, zeros_of(results) if moved is None else moved


def backward_jvp(arrays, tangents, *, has_lse, wanted, names, options):
    static = {"names": names, "options": options}
    results = backward.bind(*arrays, has_lse=has_lse, wanted=wanted, **static)
    count = 1 + has_lse
    d, rest = arrays[:count], arrays[count:]
    d_out, d_lse = (*tangents[:count], *([ad.Zero(jax.typeof(d[0]))] if not has_lse else []))
    moved = None
    if not (is_zero(d_out) and is_zero(d_lse)):
        moved = call_backward(d_out, d_lse, rest, wanted, static)
    places, moves = moving(names, tangents[count + 3:])
    if places:
        moved = both(moved, call_second(d[0], d[1] if has_lse else None, places, moves, rest, wanted, static))
    return results, zeros_of(results) if moved is None else moved


def third(*_, **__):
    raise NotImplementedError("attention: expected a first or second derivative, got a third")


for mode, rule in ((forward, forward_jvp), (jvp, jvp_jvp), (backward, backward_jvp), (second_order, third),
                   (second_tangent, third)):
    ad.primitive_jvps[mode.primitive] = rule


# ---- Transposes.

def linear(arrays):
    """The places among the arrays that are to be transposed."""
    return [n for n, x in enumerate(arrays) if ad.is_undefined_primal(x)]


def placed(count, found):
    results = [None] * count
    for n, value in found:
        results[n] = value
    return results


def jvp_transpose(cotangents, *arrays, places, names, options):
    if all(map(is_zero, cotangents)):
        return [None] * len(arrays)
    wanted = linear(arrays)
    found = call_backward(*cotangents, arrays[len(places):], [places[n] for n in wanted],
                          {"names": names, "options": options})
    return placed(len(arrays), zip(wanted, found))


def backward_transpose(cotangents, *arrays, has_lse, wanted, names, options):
    places, moves = moving(wanted, cotangents)
    if not places:
        return [None] * len(arrays)
    found = jvp.bind(*moves, *arrays[1 + has_lse:], places=places, names=names, options=options)
    return placed(len(arrays), [(n, found[n]) for n in linear(arrays)])


def second_order_transpose(cotangents, *arrays, has_lse, places, wanted, names, options):
    further, moves = moving(wanted, cotangents)
    first = 1 + has_lse
    undefined = linear(arrays)
    if undefined and undefined[0] < first:
        third()
    if not further:
        return [None] * len(arrays)
    found = call_second(arrays[0], arrays[1] if has_lse else None, further, moves, arrays[first + len(places):],
                        [places[n - first] for n in undefined], {"names": names, "options": options})
    return placed(len(arrays), zip(undefined, found))


def second_tangent_transpose(cotangents, *arrays, places, further, names, options):
    if all(map(is_zero, cotangents)):
        return [None] * len(arrays)
    undefined, count = linear(arrays), len(places)
    rest, static = arrays[count + len(further):], {"names": names, "options": options}
    all_places = (*places, *further)
    known = slice(0, count) if undefined[0] >= count else slice(count, count + len(further))
    found = call_second(*cotangents, all_places[known], arrays[known], rest, [all_places[n] for n in undefined], static)
    return placed(len(arrays), zip(undefined, found))


for mode, rule in ((jvp, jvp_transpose), (backward, backward_transpose), (second_order, second_order_transpose),
                   (second_tangent, second_tangent_transpose)):
    ad.primitive_transposes[mode.primitive] = rule


def attribute(value):
    """A static option in the type in which it travels."""
    if isinstance(value, str):
        return value
    return np.float64(value) if isinstance(value, float) else np.int64(value)
