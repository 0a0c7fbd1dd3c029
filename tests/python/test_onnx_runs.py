# SPDX-License-Identifier: Apache-2.0
"""ONNX's conformance cases of Attention, each model run by ONNX's own reference evaluator with qkv.onnx.Attention."""

import ml_dtypes
import numpy as np
import onnx_cases
import pytest
from onnx.reference import ReferenceEvaluator
from test_onnx_attention import COARSE, LISTED

import qkv.onnx

TESTS = {test.name: test for test in onnx_cases.all_tests() if onnx_cases.is_one_node(test)}


def run(test):
    inputs, _ = test.data_sets[0]
    session = ReferenceEvaluator(test.model, new_ops=[qkv.onnx.Attention])
    names = [value.name for value in test.model.graph.input]
    return session.run(None, dict(zip(names, map(np.asarray, inputs), strict=True)))


@pytest.mark.parametrize("name", TESTS)
def test_case(name):
    test = TESTS[name]
    want = test.data_sets[0][1]
    got = run(test)
    assert len(got) == len(want)
    # Steps of bf16 are coarser than the tolerance: two of them, as ONNX's own runner compares.
    coarse = LISTED.get(name) == COARSE
    rtol = 2 * float(ml_dtypes.finfo(got[0].dtype).eps) if coarse else test.rtol
    for a, b in zip(got, map(np.asarray, want), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=rtol, atol=test.atol)


def test_every_case_of_the_package_is_run():
    assert len(TESTS) == len(onnx_cases.all_cases()) == 93


def test_it_is_qkv_that_computes(monkeypatch):
    calls = []
    real = qkv.onnx._core.attention
    monkeypatch.setattr(qkv.onnx, "_core", type("Core", (), {"attention": lambda *a, **o: calls.append(1) or real(*a, **o)}))
    run(TESTS["test_attention_4d"])
    assert calls == [1]


def session_of(**attributes):
    import onnx

    node = onnx.helper.make_node("Attention", ["Q", "K", "V"], ["Y"], **attributes)
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in "QKVY"]
    graph = onnx.helper.make_graph([node], "g", values[:3], values[3:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)])
    return ReferenceEvaluator(model, new_ops=[qkv.onnx.Attention])


def test_wrong_models_get_the_sentence_of_qkv():
    x = np.ones((1, 2, 3, 4), np.float32)
    with pytest.raises(ValueError, match="v has 2 keys, k has 3"):
        session_of().run(None, {"Q": x, "K": x, "V": x[:, :, :2]})


def test_no_tokens_of_rank_3():
    x = np.ones((2, 0, 8), np.float32)
    assert session_of(q_num_heads=2, kv_num_heads=2).run(None, {"Q": x, "K": x, "V": x})[0].shape == x.shape
