# SPDX-License-Identifier: Apache-2.0
"""OpenVINO: models of one operation, called through an inference request with tensors of its own."""

import ml_dtypes
import numpy
import openvino
from openvino import opset13 as ops

from problem import Refused, largest_difference

TYPES = {"float32": openvino.Type.f32, "bfloat16": openvino.Type.bf16, "float16": openvino.Type.f16}


class Engine:
    name, version = "OpenVINO", openvino.__version__.split("-")[0]

    def __init__(self):
        self.core = openvino.Core()

    def use_threads(self, threads):
        pass  # a compiled model has its own

    def ways(self, problem):
        if problem.mode != "forward":
            raise Refused("inference only")
        if problem.dtype not in TYPES:
            raise Refused(f"no attention in {problem.dtype} on CPUs")
        what = "ScaledDotProductAttention"
        if problem.plain_causal and problem.bias is None:
            what += ", causal"
        elif problem.additive() is not None:
            what += ", a mask"
        if problem.group == 1:
            yield what, lambda: self.bind(problem, problem.q)
            return
        yield f"{what}, heads repeated by Broadcast", lambda: self.bind(problem, problem.q, problem.group)
        if problem.additive() is None:
            B, _, _, D = problem.q.shape
            rows = problem.q.reshape(B, problem.k.shape[1], -1, D)
            yield f"{what}, queries of a group as rows of one head", lambda: self.bind(problem, rows)

    def bind(self, problem, q, repeat=1):
        mask = None if problem.plain_causal and problem.bias is None else problem.additive()
        arrays = [q, problem.k, problem.v] + ([] if mask is None else [mask])
        inputs = [ops.parameter(array.shape, TYPES[problem.dtype]) for array in arrays]
        k, v = (repeated(node, repeat) for node in inputs[1:3])
        scale = ops.constant(problem.scale, TYPES[problem.dtype])
        result = ops.scaled_dot_product_attention(
            inputs[0], k, v, *inputs[3:] or [None], scale=scale, causal=mask is None and problem.plain_causal)
        request = self.request(result, inputs, arrays, problem)
        out = lambda: array_of(request.get_output_tensor(0)).reshape(problem.out.shape)
        return request.infer, lambda: largest_difference(out(), problem.out)

    def products(self, problem):
        if problem.mode != "forward":
            raise Refused("inference only")
        if problem.dtype not in TYPES:
            raise Refused(f"no products in {problem.dtype} on CPUs")
        yield "MatMul", lambda: self.bind_product(problem)

    def bind_product(self, problem):
        arrays = [problem.a] if problem.prepared else [problem.a, problem.b]
        inputs = [ops.parameter(array.shape, TYPES[problem.dtype]) for array in arrays]
        weights = openvino.op.Constant(tensor_of(problem.b)) if problem.prepared else inputs[1]
        request = self.request(ops.matmul(inputs[0], weights, False, False), inputs, arrays, problem)
        return request.infer, lambda: largest_difference(array_of(request.get_output_tensor(0)), problem.c)

    def request(self, result, inputs, arrays, problem):
        compiled = self.core.compile_model(openvino.Model([result], inputs), "CPU", {
            "INFERENCE_NUM_THREADS": problem.threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "bf16" if problem.dtype == "bfloat16" else "f32"})
        request = compiled.create_infer_request()
        for n, array in enumerate(arrays):
            request.set_input_tensor(n, tensor_of(array))
        return request


def repeated(node, times):
    """[B, Hkv, T, D] as [B, Hkv * times, T, D]."""
    if times == 1:
        return node
    B, heads, T, D = (int(size.get_length()) for size in node.get_output_partial_shape(0))
    one = ops.unsqueeze(node, ops.constant(numpy.array([2], numpy.int64)))
    wide = ops.broadcast(one, ops.constant(numpy.array([B, heads, times, T, D], numpy.int64)))
    return ops.reshape(wide, ops.constant(numpy.array([B, heads * times, T, D], numpy.int64)), False)


def tensor_of(array):
    array = numpy.ascontiguousarray(array)
    if array.dtype != ml_dtypes.bfloat16:
        return openvino.Tensor(array)
    tensor = openvino.Tensor(openvino.Type.bf16, array.shape)  # NumPy sees its elements as some 16-bit type
    tensor.data.view(numpy.uint16)[...] = array.view(numpy.uint16)
    return tensor


def array_of(tensor):
    if tensor.element_type != openvino.Type.bf16:
        return tensor.data
    return tensor.data.view(ml_dtypes.bfloat16)
