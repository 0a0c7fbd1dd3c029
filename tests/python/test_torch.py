# SPDX-License-Identifier: Apache-2.0
"""qkv.torch against PyTorch itself: first derivatives in both modes, transforms, compilation, and the drop-ins."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import qkv.torch  # noqa: E402
from torch.autograd import forward_ad, gradcheck  # noqa: E402

F64 = torch.float64


def tensors(*shapes, dtype=F64, seed=0, grad=True):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, dtype=dtype, generator=generator, requires_grad=grad) for shape in shapes]


def qkv_tensors(B=2, H=4, Hkv=2, Tq=3, Tk=5, D=3, Dv=2, **options):
    return tensors((B, H, Tq, D), (B, Hkv, Tk, D), (B, Hkv, Tk, Dv), **options)


def plain(q, k, v, bias=None, mask=None, softcap=0.0, scale=None):
    """Attention in PyTorch's own operations."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = q @ k.transpose(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    if bias is not None:
        s = s + bias
    if mask is not None:
        s = s.masked_fill(~mask, float("-inf"))
    return torch.softmax(s, -1).nan_to_num(0.0) @ v


MASK = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 0, 1, 1]], dtype=torch.bool)[None, None]
BLOCKS = torch.tensor([[1, 0, 1], [1, 1, 0]], dtype=torch.bool)[None, None]
SEGMENTS = {"query_segment": torch.tensor([[0, 1, 1], [0, 0, 2]]),
            "key_segment": torch.tensor([[0, 0, 1, 1, 1], [0, 0, 0, 2, 2]])}
OPTIONS = {
    "plain": {}, "scale": {"scale": 0.7}, "softcap": {"softcap": 1.5}, "top_left": {"causal": "top_left"},
    "bottom_right": {"causal": "bottom_right"}, "offset": {"causal": 1}, "first_key_alone": {"causal": 0},
    "offsets": {"causal": "offsets", "offsets": [1, -1]}, "window": {"window": (1, 1), "offset": 1},
    "window_left": {"window": (2, None), "causal": "bottom_right"}, "key_lengths": {"key_lengths": [5, 2]},
    "query_lengths": {"query_lengths": [1, 3]}, "mask": {"mask": MASK}, "segments": SEGMENTS,
    "block_mask": {"block_mask": BLOCKS, "block": (2, 2)}, "dropout": {"dropout": 0.3, "seed": 4},
    "together": {"causal": "bottom_right", "window": (3, None), "softcap": 2.0, "key_lengths": [5, 4], "scale": 0.9,
                 "dropout": 0.2, "seed": 1},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_derivative_of_q_k_v(name):
    def function(q, k, v):
        return qkv.torch.attention(q, k, v, **OPTIONS[name])

    inputs = qkv_tensors()
    assert gradcheck(function, inputs, check_forward_ad=True, check_undefined_grad=True)


@pytest.mark.parametrize("shape", [(1, 1, 3, 5), (2, 4, 3, 5), (1, 4, 1, 5), (2, 1, 3, 1)])
def test_every_derivative_of_a_bias(shape):
    def function(q, k, v, bias):
        return qkv.torch.attention(q, k, v, bias=bias, causal="bottom_right", softcap=2.0)

    inputs = [*qkv_tensors(), *tensors(shape, seed=1)]
    assert gradcheck(function, inputs, check_forward_ad=True)


@pytest.mark.parametrize("name", ["slopes", "sinks", "table", "scale"])
def test_first_derivatives_of_the_scores_parameters(name):
    shape = {"slopes": (4,), "sinks": (4,), "table": (4, 6), "scale": ()}[name]
    further = {"buckets": "bidirectional", "max_distance": 4} if name == "table" else {}

    def function(q, k, v, parameter):
        return qkv.torch.attention(q, k, v, return_lse=True, **{name: parameter}, **further)

    assert gradcheck(function, [*qkv_tensors(), *tensors(shape, seed=1)], check_forward_ad=True)


def test_lse_has_first_derivatives():
    def function(q, k):
        return qkv.torch.attention(q, k, k, return_lse=True)[1]

    assert gradcheck(function, qkv_tensors()[:2], check_forward_ad=True)


def test_packed_sequences():
    q, k, v = tensors((6, 4, 3), (8, 2, 3), (8, 2, 2))

    def function(q, k, v):
        return qkv.torch.attention(q, k, v, query_starts=[0, 2, 6], key_starts=[0, 5, 8], causal="bottom_right")

    assert gradcheck(function, (q, k, v), check_forward_ad=True)


def test_torch_func():
    q, k, v = qkv_tensors(grad=False)
    bias = tensors((1, 4, 3, 5), seed=1, grad=False)[0]
    ours = lambda q, k, v, b: qkv.torch.attention(q, k, v, bias=b)  # noqa: E731
    theirs = lambda q, k, v, b: plain(q, k, v, b)  # noqa: E731
    arguments = (q, k, v, bias)
    tangents = tensors(*[x.shape for x in arguments], seed=2, grad=False)
    for a, b in zip(torch.func.jvp(ours, arguments, tuple(tangents)), torch.func.jvp(theirs, arguments, tuple(tangents))):
        torch.testing.assert_close(a, b)
    d_out = tensors((2, 4, 3, 2), seed=3, grad=False)[0]
    for a, b in zip(torch.func.vjp(ours, *arguments)[1](d_out), torch.func.vjp(theirs, *arguments)[1](d_out)):
        torch.testing.assert_close(a, b)
    for which in range(4):
        torch.testing.assert_close(torch.func.jacrev(ours, which)(*arguments), torch.func.jacrev(theirs, which)(*arguments))
        torch.testing.assert_close(torch.func.jacfwd(ours, which)(*arguments), torch.func.jacfwd(theirs, which)(*arguments))


def test_vmap():
    q, k, v = tensors((6, 2, 4, 3, 3), (2, 2, 5, 3), (2, 6, 2, 5, 2), grad=False)
    ours = torch.func.vmap(lambda q, k, v: qkv.torch.attention(q, k, v, causal="bottom_right"), (0, None, 1))(q, k, v)
    for n in range(6):
        torch.testing.assert_close(ours[n], qkv.torch.attention(q[n], k, v[:, n], causal="bottom_right"))
    per_sample = torch.func.vmap(torch.func.grad(lambda q, k, v: qkv.torch.attention(q, k, v).sum()), (0, None, 1))(q, k, v)
    assert per_sample.shape == q.shape


def test_dual_tensors():
    q, k, v = qkv_tensors(grad=False)
    t_q, t_v = tensors((2, 4, 3, 3), (2, 2, 5, 2), seed=5, grad=False)

    def tangents(attend):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(attend(forward_ad.make_dual(q, t_q), k, forward_ad.make_dual(v, t_v)))

    for a, b in zip(tangents(qkv.torch.attention), tangents(plain)):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dynamic", [False, None, True])
def test_compile_without_graph_breaks(dynamic):
    def function(q, k, v, bias, window, scale):
        options = {"window": (window, None), "scale": scale, "causal": k.shape[2] - q.shape[2], "softcap": 2.0 * scale}
        return (qkv.torch.attention(q * 2, k, v, bias=bias, **options) + 1).tanh()

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for Tq, Tk, window in ((7, 9, 4), (5, 12, 6), (6, 6, 3)):
        q, k, v = qkv_tensors(Tq=Tq, Tk=Tk, D=16, Dv=8, dtype=torch.float32)
        bias = tensors((1, 4, Tq, Tk), dtype=torch.float32)[0]
        inputs, options = (q, k, v, bias), (window, 0.1 * window)
        for a, b in zip(torch.autograd.grad(compiled(*inputs, *options).sum(), inputs),
                        torch.autograd.grad(function(*inputs, *options).sum(), inputs)):
            torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_operators_are_sound():
    q, k, v = qkv_tensors()
    torch.library.opcheck(torch.ops.qkv.forward, (q, k, v, None, None, None, None, None, [MASK],
                                                        "{'extra': ('mask',), 'integers': (), 'floats': ('scale',)}", (), (0.7,)))


def test_autocast_and_narrow_types():
    q, k, v = qkv_tensors(dtype=torch.float32, D=16, Dv=16)
    with torch.autocast("cpu", torch.bfloat16):
        out = qkv.torch.attention(q, k, v)
        assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert q.grad.dtype == torch.float32
    for dtype in (torch.bfloat16, torch.float16):
        narrow = [x.detach().to(dtype).requires_grad_() for x in (q, k, v)]
        qkv.torch.attention(*narrow).float().square().sum().backward()
        wide = [x.detach().double().requires_grad_() for x in narrow]
        plain(*wide).square().sum().backward()
        for a, b in zip(narrow, wide):
            assert a.grad.dtype == dtype
            torch.testing.assert_close(a.grad.double(), b.grad, rtol=0.05, atol=0.05)


def test_strides_and_expansion_without_copies():
    q, k, v = qkv_tensors(Tq=6, Tk=8, D=4, Dv=4, dtype=torch.float32, grad=False)
    want = qkv.torch.attention(q, k, v)
    token_major = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    assert torch.equal(qkv.torch.attention(*token_major), want)
    one = k[:1].expand_as(k).requires_grad_()
    assert torch.equal(qkv.torch.attention(q, one, v), qkv.torch.attention(q, one.contiguous(), v))
    qkv.torch.attention(q, one, v).sum().backward()
    assert one.grad.shape == k.shape
    huge = torch.ones(1).expand(1, 1, 2**40, 4)
    assert qkv.torch.attention(q[:1, :1, :1], huge, huge, key_lengths=[3])[0, 0, 0, 0] == 1


def test_same_bits_for_any_number_of_threads():
    q, k, v = qkv_tensors(H=2, Hkv=1, Tq=300, Tk=400, D=32, Dv=32, dtype=torch.float32)

    def gradients(threads):
        return torch.autograd.grad(qkv.torch.attention(q, k, v, threads=threads).square().sum(), (q, k, v))

    for a, b in zip(gradients(1), gradients(5)):
        assert torch.equal(a, b)


def test_dropout_draws_its_seed_from_the_generator():
    q, k, v = qkv_tensors(Tq=30, Tk=40, dtype=torch.float32)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(qkv.torch.attention(q, k, v, dropout=0.5))
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])


def test_wrong_calls():
    q, k, v = qkv_tensors()
    with pytest.raises(ValueError, match="v has 5 keys, k has 4"):
        qkv.torch.attention(q, k[:, :, 1:], v)
    with pytest.raises(ValueError, match="'top_left'"):
        qkv.torch.attention(q, k, v, causal=True)
    with pytest.raises(ValueError, match="window: expected"):
        qkv.torch.attention(q, k, v, window=3)
    with pytest.raises(TypeError, match="window: expected an integer"):
        qkv.torch.attention(q, k, v, window=("a", 1))
    with pytest.raises(TypeError, match="seed: expected"):
        qkv.torch.attention(q, k, v, dropout=0.5, seed=2**64)
    with pytest.raises(ValueError, match="scale"):
        qkv.torch.attention(q, k, v, scale=float("inf"))
    with pytest.raises(TypeError, match="complex"):
        qkv.torch.attention(q.detach().to(torch.complex64), k, v)
    with pytest.raises(ValueError, match="number of axes"):
        qkv.torch.scaled_dot_product_attention(q, k[0], v)


def sdpa_cases():
    shapes = {"rank_2": ((5, 4), (7, 4), (7, 3)), "rank_3": ((2, 5, 4), (2, 7, 4), (2, 7, 3)),
              "rank_4": ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 3)), "rank_5": ((2, 2, 3, 5, 4), (2, 2, 3, 7, 4), (2, 2, 3, 7, 3)),
              "broadcast": ((2, 3, 5, 4), (1, 3, 7, 4), (2, 1, 7, 3)), "cross_batch": ((1, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 3))}
    masks = {"no_mask": None, "bool": torch.rand((5, 7), generator=torch.Generator().manual_seed(3)) < 0.8,
             "float": torch.randn((5, 7), generator=torch.Generator().manual_seed(3), dtype=F64)}
    for shape, sizes in shapes.items():
        for mask, values in masks.items():
            for causal in (False, True):
                if not (causal and values is not None):  # PyTorch refuses them together
                    yield pytest.param(sizes, values, causal, id=f"{shape}_{mask}_{causal}")


@pytest.mark.parametrize("sizes, mask, causal", list(sdpa_cases()))
def test_scaled_dot_product_attention_is_pytorchs(sizes, mask, causal):
    inputs = tensors(*sizes)
    theirs = torch.nn.functional.scaled_dot_product_attention(*inputs, attn_mask=mask, is_causal=causal, scale=0.6)
    ours = qkv.torch.scaled_dot_product_attention(*inputs, attn_mask=mask, is_causal=causal, scale=0.6)
    torch.testing.assert_close(ours, theirs)
    d_out = torch.randn_like(theirs)
    for a, b in zip(torch.autograd.grad(ours, inputs, d_out), torch.autograd.grad(theirs, inputs, d_out)):
        torch.testing.assert_close(a, b)


def test_scaled_dot_product_attention_of_grouped_heads_and_of_a_causal_mask_with_another():
    q, k, v = qkv_tensors()
    torch.testing.assert_close(
        qkv.torch.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True))
    both = qkv.torch.scaled_dot_product_attention(q, k, v, attn_mask=MASK, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(both, plain(q, k, v, mask=MASK & torch.ones(3, 5).tril().bool()))


def test_takes_the_place_of_pytorchs_own(monkeypatch):
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True).double()
    x = tensors((2, 6, 16), seed=8)[0]
    want = layer(x)
    calls = []
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention",
                        lambda *a, **o: calls.append(1) or qkv.torch.scaled_dot_product_attention(*a, **o))
    torch.testing.assert_close(layer(x), want)
    assert calls


MODULES = {"plain": {}, "batch_first": {"batch_first": True}, "no_bias": {"bias": False}, "bias_kv": {"add_bias_kv": True},
           "zero_attn": {"add_zero_attn": True}, "widths": {"kdim": 6, "vdim": 10}}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("masked", ["", "attn_bool", "attn_float", "attn_heads", "padding", "both"])
def test_multihead_attention_is_pytorchs(name, masked):
    options = {"dtype": F64, **MODULES[name]}
    theirs = torch.nn.MultiheadAttention(8, 2, **options)
    ours = qkv.torch.MultiheadAttention(8, 2, **options)
    ours.load_state_dict(theirs.state_dict())
    first = options.get("batch_first", False)
    shape = lambda t, width: (3, t, width) if first else (t, 3, width)  # noqa: E731
    q, k, v = tensors(shape(4, 8), shape(5, options.get("kdim", 8)), shape(5, options.get("vdim", 8)))
    hidden = torch.zeros(4, 5, dtype=torch.bool)
    hidden[1, 2:] = hidden[3, 0] = True
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 4:] = True
    masks = {"": {}, "attn_bool": {"attn_mask": hidden}, "attn_float": {"attn_mask": hidden * -0.7},
             "attn_heads": {"attn_mask": hidden.expand(6, 4, 5)}, "padding": {"key_padding_mask": padding},
             "both": {"attn_mask": hidden, "key_padding_mask": padding}}[masked]
    if masked == "attn_float":
        masks = {"attn_mask": masks["attn_mask"].double()}
    for weights in (True, False):
        for average in (True, False):
            call = {"need_weights": weights, "average_attn_weights": average, **masks}
            for a, b in zip(ours(q, k, v, **call), theirs(q, k, v, **call)):
                assert (a is None) == (b is None)
                if a is not None:
                    torch.testing.assert_close(a, b)


def test_multihead_attention_without_a_batch():
    theirs = torch.nn.MultiheadAttention(8, 2, dtype=F64)
    ours = qkv.torch.MultiheadAttention(8, 2, dtype=F64)
    ours.load_state_dict(theirs.state_dict())
    x = tensors((5, 8))[0]
    for a, b in zip(ours(x, x, x), theirs(x, x, x)):
        torch.testing.assert_close(a, b)


FIRST_CALLS = """
import sys, threading, torch, qkv
assert "ml_dtypes" not in sys.modules
x = torch.ones(1, 1, 4, 4, dtype=torch.bfloat16)
workers = [threading.Thread(target=lambda: qkv.attention(x, x, x)) for _ in range(4)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
print("done")
"""


def test_first_calls_of_several_threads():
    """Each of them may import ml_dtypes; those that waited for the first one's import held the lock that it needed."""
    done = subprocess.run([sys.executable, "-c", FIRST_CALLS], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": str(Path(qkv.__file__).parents[1])})
    assert done.stdout == "done\n", done.stderr


NUMBERS = {
    "scale": {"scale": np.float32(0.125)}, "softcap": {"softcap": np.array(1.5, np.float32)},
    "softcap_tensor": {"softcap": torch.tensor(1.5)}, "causal": {"causal": np.int64(1)},
    "window": {"window": (np.int64(1), None), "offset": np.int32(1)}, "window_array": {"window": np.array([1, 0])},
    "dropout": {"dropout": np.float32(0.25), "seed": np.int64(3)},
    "block": {"block_mask": BLOCKS, "block": (np.int64(2), np.int64(2))},
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_other_libraries_with_a_gradient(name):
    inputs = qkv_tensors(grad=False)
    want = qkv.torch.attention(*inputs, **NUMBERS[name])
    got = qkv.torch.attention(inputs[0].requires_grad_(), *inputs[1:], **NUMBERS[name])
    assert torch.equal(got, want)
    got.sum().backward()


def test_multihead_attention_of_an_empty_batch():
    x = torch.ones(3, 0, 8)
    out, weights = qkv.torch.MultiheadAttention(8, 2)(x, x, x)
    assert out.shape == x.shape and weights.shape == (0, 3, 3)
