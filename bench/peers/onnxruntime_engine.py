# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime: models of one node, called through an I/O binding."""

import numpy
import onnx
import onnxruntime
from onnx import TensorProto, helper

from problem import Refused, largest_difference

TYPES = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "float16": TensorProto.FLOAT16,
         "int32": TensorProto.INT32, "bool": TensorProto.BOOL}


def token_major(array):
    """[B, H, T, D] as [B, T, H * D]."""
    B, H, T, D = array.shape
    return numpy.ascontiguousarray(array.transpose(0, 2, 1, 3)).reshape(B, T, H * D)


def head_major(array, heads):
    B, T, width = array.shape
    return array.reshape(B, T, heads, width // heads).transpose(0, 2, 1, 3)


class Node:
    """A model of one node: named inputs (an absent one is None) and outputs, bound to memory once. Constants are inputs
    that the model holds; outputs that are `shared` lie in the memory of an input."""

    def __init__(self, operator, domain, inputs, outputs, attributes, threads, shared=(), constants=()):
        given = {name: array for name, array in inputs.items() if array is not None}
        node = helper.make_node(operator, [name if name in given else "" for name in inputs], list(outputs),
                                domain=domain, **attributes)
        graph = helper.make_graph(
            [node], operator,
            [helper.make_tensor_value_info(name, TYPES[array.dtype.name], array.shape)
             for name, array in given.items() if name not in constants],
            [helper.make_tensor_value_info(name, TYPES[array.dtype.name], array.shape)
             for name, array in outputs.items()],
            [onnx.numpy_helper.from_array(numpy.array(given[name]), name) for name in constants])
        opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4
        options.add_session_config_entry("session.force_spinning_stop", "1")  # nobody shall spin beside the next
        self.session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        self.binding = self.session.io_binding()
        values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(numpy.ascontiguousarray(array))
                  for name, array in given.items() if name not in constants}
        for name, value in values.items():
            self.binding.bind_ortvalue_input(name, value)
        self.outputs = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in outputs.items()}
        self.outputs.update({output: values[source] for output, source in shared})
        for name, value in self.outputs.items():
            self.binding.bind_ortvalue_output(name, value)

    def __call__(self):
        self.session.run_with_iobinding(self.binding)

    def result(self):
        return self.outputs["out"].numpy()


class Engine:
    name, version = "ONNX Runtime", onnxruntime.__version__

    def use_threads(self, threads):
        pass  # a session has its own

    def ways(self, problem):
        if problem.mode != "forward":
            raise Refused("inference only")
        if problem.dtype == "bfloat16":
            raise Refused("no attention in bf16 on CPUs")
        yield "Attention of opset 23", lambda: self.attention(problem)
        if problem.group == 1:
            yield "MultiHeadAttention", lambda: self.multi_head(problem)
        causal = problem.plain_causal or problem.lengths[0] == 1 and problem.visible() is None
        windowed = "window" in problem.keys and problem.keys["window"].endswith(",0") and problem.causal_offset == 0
        if problem.bias is None and (causal or windowed) and problem.q.shape[3] == problem.v.shape[3]:
            yield "GroupQueryAttention", lambda: self.grouped(problem)

    def products(self, problem):
        if problem.mode != "forward":
            raise Refused("inference only")
        if problem.dtype == "bfloat16":
            raise Refused("no products in bf16 on CPUs")
        yield "MatMul", lambda: self.product(problem)

    def product(self, problem):
        node = Node("MatMul", "", {"a": problem.a, "b": problem.b}, {"out": numpy.zeros_like(problem.c)}, {},
                    problem.threads, constants=("b",) if problem.prepared else ())
        return node, lambda: largest_difference(node.result(), problem.c)

    def attention(self, problem):
        mask = None if problem.plain_causal and problem.bias is None else problem.additive()
        if mask is not None:  # it broadcasts batch and heads, but not queries or keys
            mask = numpy.broadcast_to(mask, (*mask.shape[:2], *problem.lengths))
        node = Node("Attention", "", {"q": problem.q, "k": problem.k, "v": problem.v, "mask": mask},
                    {"out": numpy.zeros_like(problem.out)},
                    {"scale": problem.scale, "is_causal": int(mask is None and problem.plain_causal)}, problem.threads)
        return node, lambda: largest_difference(node.result(), problem.out)

    def multi_head(self, problem):
        causal = problem.plain_causal
        bias = problem.bias if causal else problem.additive()
        if bias is not None:
            bias = numpy.broadcast_to(bias, (*bias.shape[:2], *problem.lengths))
        inputs = {"q": token_major(problem.q), "k": token_major(problem.k), "v": token_major(problem.v),
                  "bias": None, "key_padding_mask": None, "attention_bias": bias}
        heads = problem.q.shape[1]
        node = Node("MultiHeadAttention", "com.microsoft", inputs, {"out": numpy.zeros_like(token_major(problem.out))},
                    {"num_heads": heads, "scale": problem.scale, "unidirectional": int(causal)}, problem.threads)
        return node, lambda: largest_difference(head_major(node.result(), heads), problem.out)

    def grouped(self, problem):
        B, heads, Tq, D = problem.q.shape
        kv_heads, Tk = problem.k.shape[1:3]
        attributes = {"num_heads": heads, "kv_num_heads": kv_heads, "scale": problem.scale}
        if "window" in problem.keys:
            attributes["local_window_size"] = int(problem.keys["window"].split(",")[0]) + 1
        prompt = Tq == Tk
        # Decoding appends the last key to a cache that already has room for it, in place.
        cache = (B, kv_heads, Tk, D)
        past_k, past_v = numpy.array(problem.k), numpy.array(problem.v)
        inputs = {"q": token_major(problem.q), "k": token_major(problem.k if prompt else problem.k[:, :, -1:]),
                  "v": token_major(problem.v if prompt else problem.v[:, :, -1:]),
                  "past_k": None if prompt else past_k, "past_v": None if prompt else past_v,
                  "last": numpy.full((B,), Tk - 1, numpy.int32), "length": numpy.array(Tk, numpy.int32)}
        outputs = {"out": numpy.zeros_like(token_major(problem.out)), "present_k": numpy.zeros(cache, problem.q.dtype),
                   "present_v": numpy.zeros(cache, problem.q.dtype)}
        shared = () if prompt else (("present_k", "past_k"), ("present_v", "past_v"))
        node = Node("GroupQueryAttention", "com.microsoft", inputs, outputs, attributes, problem.threads, shared)
        return node, lambda: largest_difference(head_major(node.result(), heads), problem.out)
