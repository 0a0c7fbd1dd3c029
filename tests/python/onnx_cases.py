# SPDX-License-Identifier: Apache-2.0
"""ONNX's conformance cases of the operator Attention, and each as a problem of qkv; docs/onnx.md has the mapping."""

import warnings
from dataclasses import dataclass

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # overflow and the like while the package computes what it expects
    import onnx
    # Importing the module of one operator makes the cases of that operator: the package has no quicker way.
    from onnx.backend.test.case.node import _NodeTestCases, attention  # noqa: F401

WEIGHTS = 3  # the qk_matmul_output_mode that asks for the weights; 0 to 2 ask for scores at three stages


@dataclass(frozen=True)
class Case:
    name: str
    opset: int
    attributes: dict
    inputs: dict   # by the names of the schema, the absent ones left out
    outputs: dict  # what ONNX expects, likewise
    rtol: float
    atol: float

    @property
    def dtype(self):
        return self.inputs["Q"].dtype

    @property
    def score_mode(self):
        """0, 1 or 2 where the matrix of scores is an output, else None."""
        mode = self.attributes.get("qk_matmul_output_mode", 0)
        return mode if "qk_matmul_output" in self.outputs and mode != WEIGHTS else None


def _named(formal, given, values):
    """Values by formal names; a node lists an absent optional argument as an empty name."""
    present = [argument.name for argument, name in zip(formal, given) if name]
    assert len(present) == len(values)
    return dict(zip(present, map(np.asarray, values)))


def _case(test):
    (node,), (opset,) = test.model.graph.node, test.model.opset_import
    schema = onnx.defs.get_schema("Attention", opset.version, "")
    (inputs, outputs), = test.data_sets
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    unknown = set(attributes) - set(ATTRIBUTES)
    assert not unknown, f"{test.name}: nothing here maps {sorted(unknown)}"
    return Case(test.name, opset.version, attributes, _named(schema.inputs, node.input, inputs),
                _named(schema.outputs, node.output, outputs), test.rtol, test.atol)


# softmax_precision maps to nothing: scores and weights are f32, or f64 for f64, whatever it says.
ATTRIBUTES = ("scale", "softcap", "is_causal", "left_window_size", "right_window_size", "q_num_heads", "kv_num_heads",
              "qk_matmul_output_mode", "softmax_precision")


def is_one_node(test):
    return [node.op_type for node in test.model.graph.node] == ["Attention"]


def all_tests():
    """What the package holds: each case as one Attention node, and again spelt out in simpler operators."""
    return list(_NodeTestCases)


def all_cases():
    return [_case(test) for test in all_tests() if is_one_node(test)]


def heads_first(tokens, heads):
    """[B, T, heads * width] as [B, heads, T, width], other strides over the same memory; rank 4 as it is."""
    if tokens.ndim == 4:
        return tokens
    return tokens.reshape(*tokens.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def tokens_first(heads, like):
    """The reverse, where `like` has rank 3."""
    if like.ndim == 4:
        return heads
    return heads.transpose(0, 2, 1, 3).reshape(*like.shape[:2], -1)


def present(case, which):
    """Past and new keys (or values) in one: a concatenation, which the operation leaves to its caller."""
    new = heads_first(case.inputs["K" if which == "key" else "V"], case.attributes.get("kv_num_heads"))
    past = case.inputs.get(f"past_{which}")
    return new if past is None else np.concatenate((past, new), axis=2)


def _mask(mask, keys):
    """attn_mask as the tensor `mask` or `bias`: rank 4, and the keys it does not reach hidden."""
    hidden = False if mask.dtype == bool else -np.inf
    missing = keys - mask.shape[-1]
    mask = np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, missing)], constant_values=hidden)
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    return {"mask": mask} if mask.dtype == bool else {"bias": mask}


def problem(case):
    """The tensors and options with which `qkv attend` computes the case."""
    given, attributes = case.inputs, case.attributes
    tensors = {"q": heads_first(given["Q"], attributes.get("q_num_heads")),
               "k": present(case, "key"), "v": present(case, "value")}
    if "attn_mask" in given:
        tensors |= _mask(given["attn_mask"], tensors["k"].shape[2])
    if "nonpad_kv_seqlen" in given:
        tensors["key_lengths"] = given["nonpad_kv_seqlen"]
    options = {"scale": repr(attributes["scale"])} if "scale" in attributes else {}
    if attributes.get("softcap", 0) > 0:
        options["softcap"] = repr(attributes["softcap"])
    sides = [attributes.get(f"{side}_window_size", -1) for side in ("left", "right")]
    if max(sides) >= 0:
        options["window"] = ",".join("-" if side < 0 else str(side) for side in sides)
    if attributes.get("is_causal") or "window" in options:
        _place_queries(case, tensors, options)
    return tensors, options


def _place_queries(case, tensors, options):
    """Query 0 stands behind the past; or such that the last query meets the last key in use; or at key 0."""
    causal = bool(case.attributes.get("is_causal"))
    if "nonpad_kv_seqlen" in case.inputs:
        tensors["offsets"] = case.inputs["nonpad_kv_seqlen"] - tensors["q"].shape[2]
        if causal:
            options["causal"] = "offsets"
    elif "past_key" in case.inputs:
        options["causal" if causal else "offset"] = str(case.inputs["past_key"].shape[2])
    elif causal:
        options["causal"] = "top_left"


def score_problem(case):
    """A problem whose `lse` holds the scores that qk_matmul_output_mode asks for.

    The log-sum-exp over one key is that key's final score. So every (batch entry, key) becomes a batch entry with one
    key, and the steps that come after the one asked for are left out.
    """
    tensors, options = problem(case)
    q, k, mode = tensors["q"], tensors["k"], case.score_mode
    keys = k.shape[2]
    single = {"q": np.repeat(q, keys, axis=0), "k": _one_key_each(k)}
    single["v"] = np.zeros((*single["k"].shape[:3], 1), q.dtype)
    kept = {name: value for name, value in options.items() if name == "scale" or (name == "softcap" and mode > 0)}
    if mode < 2:
        return single, kept
    for name in {"mask", "bias"} & set(tensors):
        every = np.broadcast_to(tensors[name], (len(q), *tensors[name].shape[1:3], keys))
        single[name] = _one_key_each(every.swapaxes(2, 3)).swapaxes(2, 3)
    if case.attributes.get("is_causal"):  # key j of the case is key 0 here, so queries move back by j
        past = case.inputs["past_key"].shape[2] if "past_key" in case.inputs else 0
        single["offsets"] = np.tile(past - np.arange(keys), len(q))
        kept["causal"] = "offsets"
    assert "key_lengths" not in tensors and "window" not in options, f"{case.name}: not thought of with scores"
    return single, kept


def _one_key_each(array):
    """[B, heads, Tk, width] as [B * Tk, heads, 1, width]."""
    batch, heads, keys, width = array.shape
    return array.transpose(0, 2, 1, 3).reshape(batch * keys, heads, 1, width)


def scores(lse, case):
    """[B, H, Tq, Tk] out of the [B * Tk, H, Tq] of score_problem."""
    batch = case.inputs["Q"].shape[0]
    return lse.reshape(batch, -1, *lse.shape[1:]).transpose(0, 2, 3, 1)
