# SPDX-License-Identifier: Apache-2.0
"""Second derivatives of qkv.torch.attention in f64: reverse over reverse, forward over reverse, reverse over forward."""

import math

import pytest

torch = pytest.importorskip("torch")

import qkv.torch  # noqa: E402
from torch.autograd import gradcheck, gradgradcheck  # noqa: E402

F64 = torch.float64


def tensors(*shapes, dtype=F64, seed=0, grad=True):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, dtype=dtype, generator=generator, requires_grad=grad) for shape in shapes]


def qkv_tensors(B=2, H=2, Hkv=1, Tq=2, Tk=4, D=2, Dv=3, **options):
    return tensors((B, H, Tq, D), (B, Hkv, Tk, D), (B, Hkv, Tk, Dv), **options)


MASK = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0]], dtype=torch.bool)[None, None]
SEGMENTS = {"query_segment": torch.tensor([[0, 1], [0, 2]]), "key_segment": torch.tensor([[0, 0, 1, 1], [0, 0, 0, 2]])}
# An option, and the shape of its parameter where it has a derivative of its own.
OPTIONS = {
    "plain": {}, "scale": {"scale": 0.7}, "softcap": {"softcap": 1.5}, "causal": {"causal": "bottom_right"},
    "top_left": {"causal": "top_left"}, "offsets": {"causal": "offsets", "offsets": [1, -1]},
    "window": {"window": (1, 0), "offset": 1}, "key_lengths": {"key_lengths": [4, 2]},
    "query_lengths": {"query_lengths": [1, 2]}, "mask": {"mask": MASK}, "segments": SEGMENTS,
    "block_mask": {"block_mask": torch.tensor([[1, 0], [1, 1]], dtype=torch.bool)[None, None], "block": (1, 2)},
    "dropout": {"dropout": 0.3, "seed": 4}, "given_slopes": {"slopes": [0.5, 0.1]}, "given_sinks": {"sinks": [0.5, -1.0]},
}
PARAMETERS = {"bias": (2, 2, 2, 4), "slopes": (2,), "sinks": (2,), "table": (2, 4), "scale": ()}
BIASES = {"per_key": (1, 2, 1, 4), "shared": (1, 1, 2, 4), "per_query": (2, 1, 2, 1)}
TABLE = {"buckets": "bidirectional", "max_distance": 3}


def check(function, inputs, **further):
    assert gradcheck(function, inputs, check_forward_ad=True, check_undefined_grad=True, **further)
    assert gradgradcheck(function, inputs, check_fwd_over_rev=True, check_rev_over_rev=True, **further)


@pytest.mark.parametrize("name", OPTIONS)
def test_of_q_k_v_with_every_option(name):
    check(lambda q, k, v: qkv.torch.attention(q, k, v, **OPTIONS[name]), qkv_tensors())


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("softcap", [0.0, 1.5])
def test_of_every_parameter_of_the_scores(name, softcap):
    options = {"softcap": softcap, "causal": 1, **(TABLE if name == "table" else {})}

    def function(q, k, v, parameter):
        return qkv.torch.attention(q, k, v, **{name: parameter.abs() if name == "scale" else parameter}, **options)

    check(function, [*qkv_tensors(), *tensors(PARAMETERS[name], seed=1)])


@pytest.mark.parametrize("name", BIASES)
def test_of_a_bias_that_broadcasts(name):
    check(lambda q, k, v, bias: qkv.torch.attention(q, k, v, bias=bias), [*qkv_tensors(), *tensors(BIASES[name], seed=1)])


def test_of_everything_at_once_and_of_lse():
    parameters = tensors(*PARAMETERS.values(), seed=1)

    def function(q, k, v, *parameters):
        options = {**dict(zip(PARAMETERS, parameters)), **TABLE, "softcap": 2.0, "window": (2, None), "offset": 1,
                   "dropout": 0.2, "seed": 3, "key_lengths": [4, 3]}
        return qkv.torch.attention(q, k, v, return_lse=True, **options)

    check(function, [*qkv_tensors(), *parameters], atol=1e-4)


def test_of_packed_sequences():
    q, k, v = tensors((4, 2, 2), (5, 1, 2), (5, 1, 3))
    starts = {"query_starts": [0, 1, 4], "key_starts": [0, 2, 5]}
    check(lambda q, k, v: qkv.torch.attention(q, k, v, causal="bottom_right", **starts), (q, k, v))


def test_of_rank_3_and_2():
    check(lambda q, k, v: qkv.torch.attention(q, k, v), tensors((2, 2, 2), (1, 3, 2), (1, 3, 3)))
    check(lambda q, k, v: qkv.torch.attention(q, k, v), tensors((2, 2), (3, 2), (3, 3)))


def plain(q, k, v, bias):
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias, -1) @ v


def loss(attend):
    return lambda *inputs: attend(*inputs).square().sum()


POINT = [*qkv_tensors(grad=False), *tensors((1, 2, 2, 4), seed=1, grad=False)]
COMPOSITIONS = {
    "jacfwd_of_jacrev": (torch.func.jacfwd, torch.func.jacrev), "jacrev_of_jacrev": (torch.func.jacrev, torch.func.jacrev),
    "jacrev_of_jacfwd": (torch.func.jacrev, torch.func.jacfwd),
}


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_hessians_by_torch_func(name):
    outer, inner = COMPOSITIONS[name]

    def hessian(attend):
        return outer(inner(loss(attend), (0, 1, 2, 3)), (0, 1, 2, 3))(*POINT)

    ours = hessian(lambda q, k, v, bias: qkv.torch.attention(q, k, v, bias=bias))
    for row_a, row_b in zip(ours, hessian(plain)):
        for a, b in zip(row_a, row_b):
            torch.testing.assert_close(a, b)
    if name == "jacfwd_of_jacrev":
        hessian = torch.func.hessian(loss(lambda q: qkv.torch.attention(q, *POINT[1:3], bias=POINT[3])))(POINT[0])
        assert torch.equal(hessian, ours[0][0])


def test_hessian_vector_products_every_way():
    attend = lambda q, k, v, bias: qkv.torch.attention(q, k, v, bias=bias, causal=2)  # noqa: E731
    function, point = loss(attend), tuple(POINT)
    vector = tuple(tensors(*[x.shape for x in point], seed=7, grad=False))
    gradient = torch.func.grad(function, (0, 1, 2, 3))
    forward_over_reverse = torch.func.jvp(gradient, point, vector)[1]
    reverse_over_reverse = torch.func.vjp(gradient, *point)[1](vector)
    reverse_over_forward = torch.func.grad(lambda *x: torch.func.jvp(function, x, vector)[1], (0, 1, 2, 3))(*point)
    leaves = [x.clone().requires_grad_() for x in point]
    first = torch.autograd.grad(function(*leaves), leaves, create_graph=True)
    by_autograd = torch.autograd.grad(sum((g * t).sum() for g, t in zip(first, vector)), leaves)
    for other in (reverse_over_reverse, reverse_over_forward, by_autograd):
        for a, b in zip(forward_over_reverse, other):
            torch.testing.assert_close(a, b)


def test_vmap_of_a_hessian_vector_product():
    q, k, v = tensors((3, 2, 4, 2), (3, 1, 5, 2), (3, 1, 5, 3), grad=False)
    vector = tensors((3, 2, 4, 2), seed=2, grad=False)[0]

    def product(q, k, v, vector):
        gradient = torch.func.grad(loss(lambda q: qkv.torch.attention(q, k, v)))
        return torch.func.jvp(gradient, (q,), (vector,))[1]

    together = torch.func.vmap(product)(q, k, v, vector)
    for n in range(3):
        torch.testing.assert_close(together[n], product(q[n], k[n], v[n], vector[n]))


def test_narrow_types_are_the_wide_ones_rounded():
    point = [x.float() for x in qkv_tensors(Tq=17, Tk=23, D=16, Dv=16, grad=False)]
    vector = [x.float() for x in tensors(*[x.shape for x in point], seed=5, grad=False)]

    def product(dtype):
        inputs = tuple(x.to(dtype) for x in point)
        gradient = torch.func.grad(loss(lambda q, k, v: qkv.torch.attention(q, k, v).float()), (0, 1, 2))
        return torch.func.jvp(gradient, inputs, tuple(x.to(dtype) for x in vector))[1]

    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for a, b in zip(product(dtype), product(F64)):
            assert a.dtype == dtype
            assert (a.double() - b).norm() <= 40 * torch.finfo(dtype).eps * b.norm()


def test_same_bits_for_any_number_of_threads():
    q, k, v = qkv_tensors(H=2, Tq=300, Tk=400, D=32, Dv=32, dtype=torch.float32)

    def product(threads):
        first = torch.autograd.grad(qkv.torch.attention(q, k, v, threads=threads).square().sum(), (q, k, v),
                                    create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in first), (q, k, v))

    for a, b in zip(product(1), product(5)):
        assert torch.equal(a, b)


def test_what_is_refused():
    q, k, v = qkv_tensors()
    first = torch.autograd.grad(qkv.torch.attention(q, k, v).sum(), q, create_graph=True)[0]
    second = torch.autograd.grad(first.square().sum(), q, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="expected a first or second derivative, got a third"):
        second.sum().backward()
    moved = lambda x: torch.func.jvp(lambda y: qkv.torch.attention(y, k, v), (x,), (q,))[1]  # noqa: E731
    with pytest.raises(RuntimeError, match="got forward over forward"):
        torch.func.jvp(moved, (q,), (q,))
    scale = torch.zeros((), dtype=F64, requires_grad=True)
    first = torch.autograd.grad(qkv.torch.attention(q, k, v, scale=scale).sum(), scale, create_graph=True)[0]
    with pytest.raises(ValueError, match="needs a scale other than 0"):
        first.backward()
