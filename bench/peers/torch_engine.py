# SPDX-License-Identifier: Apache-2.0
"""PyTorch's scaled_dot_product_attention, forward and backward, and its products: MKL's in f32, and oneDNN's."""

import ml_dtypes
import numpy
import torch
import torch.nn.functional as F

from problem import largest_difference


def tensor_of(array):
    array = numpy.array(array)  # a copy of its own, writable
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(numpy.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def array_of(tensor):
    tensor = tensor.detach()
    return (tensor if tensor.dtype == torch.float64 else tensor.float()).numpy()


class Engine:
    name, version = "PyTorch", torch.__version__

    def use_threads(self, threads):
        torch.set_num_threads(threads)

    def ways(self, problem):
        mask = "" if problem.additive() is None else ", a mask"
        if problem.plain_causal and problem.bias is None:
            mask = ", is_causal"
        if problem.group == 1:
            yield f"scaled_dot_product_attention{mask}", lambda: self.bind(problem, {})
            return
        yield f"scaled_dot_product_attention{mask}, enable_gqa", lambda: self.bind(problem, {"enable_gqa": True})
        yield f"scaled_dot_product_attention{mask}, heads repeated in the call", lambda: self.bind(problem, {}, repeated)
        if not mask:
            yield "scaled_dot_product_attention, queries of a group as rows of one head", lambda: self.bind(
                problem, {}, regrouped)

    def bind(self, problem, more, around=None):
        q, k, v = (tensor_of(array) for array in (problem.q, problem.k, problem.v))
        options = {"scale": problem.scale, **more}
        inputs = [q, k, v]
        if problem.plain_causal and problem.bias is None:
            options["is_causal"] = True
        elif problem.bias is None and problem.visible() is not None:
            options["attn_mask"] = tensor_of(problem.visible())  # booleans: true is visible
        elif problem.bias is not None:
            options["attn_mask"] = tensor_of(problem.additive())
            if problem.trains_bias:
                inputs.append(options["attn_mask"])
        attend = lambda: (around or plain)(q, k, v, options)
        if problem.mode == "forward":
            return self.bind_forward(problem, attend)
        return self.bind_gradients(problem, attend, inputs)

    def bind_forward(self, problem, attend):
        result = []

        @torch.inference_mode()
        def call():
            result[:] = [attend()]

        return call, lambda: largest_difference(array_of(result[0]), problem.out)

    def bind_gradients(self, problem, attend, inputs):
        for tensor in inputs:
            tensor.requires_grad_(True)
        d_out = tensor_of(problem.d_out)
        kept = attend() if problem.mode == "backward" else None
        result = []

        def call():
            out = attend() if kept is None else kept
            result[:] = torch.autograd.grad(out, inputs, d_out, retain_graph=kept is not None)

        return call, lambda: largest_difference(array_of(result[0]), problem.d_q)

    def products(self, problem):
        if problem.mode != "forward":
            yield "mm", lambda: self.bind_product_gradients(problem)
            return
        a, b = tensor_of(problem.a), tensor_of(problem.b)
        out = torch.empty(problem.c.shape, dtype=a.dtype)
        yield "mm", lambda: self.bind_product(problem, lambda: torch.mm(a, b, out=out))
        if problem.dtype in ("float32", "bfloat16"):  # the operator behind torch.compile's linear layers
            linear = torch.ops.mkldnn._linear_pointwise
            make = torch.ops.mkldnn._reorder_linear_weight if problem.prepared else lambda weights, _: weights
            weights = make(b.t().contiguous() if problem.prepared else b.t(), a.shape[0])
            yield "oneDNN linear", lambda: self.bind_product(problem, lambda: linear(a, weights, None, "none", [], ""))

    def bind_product(self, problem, multiply):
        result = []

        @torch.inference_mode()
        def call():
            result[:] = [multiply()]

        return call, lambda: largest_difference(array_of(result[0]), problem.c)

    def bind_product_gradients(self, problem):
        a, b, d_c = (tensor_of(array) for array in (problem.a, problem.b, problem.d_c))
        c, d_a, d_b = torch.empty_like(d_c), torch.empty_like(a), torch.empty_like(b)

        @torch.inference_mode()
        def call():
            if problem.mode == "both":
                torch.mm(a, b, out=c)
            torch.mm(d_c, b.t(), out=d_a)
            torch.mm(a.t(), d_c, out=d_b)

        return call, lambda: largest_difference(array_of(d_a), problem.d_a)


def plain(q, k, v, options):
    return F.scaled_dot_product_attention(q, k, v, **options)


def repeated(q, k, v, options):
    group = q.shape[1] // k.shape[1]
    return plain(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), options)


def regrouped(q, k, v, options):
    """Without a mask, the rows of a group of heads are rows of one head."""
    B, H, Tq, D = q.shape
    out = plain(q.reshape(B, k.shape[1], -1, D), k, v, options)
    return out.reshape(B, H, Tq, -1)
