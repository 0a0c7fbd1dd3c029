# SPDX-License-Identifier: Apache-2.0
"""Every conformance case of the ONNX operator Attention, through `qkv attend`, at ONNX's own tolerance.

A case passes whole, or it is in LISTED with the reason why one call cannot give all that it asks for; what it asks for
besides is compared all the same. docs/onnx.md tells the same story and is held to it.
"""

from collections import Counter
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_cases
import pytest
from cli_files import read, write

CASES = {case.name: case for case in onnx_cases.all_cases()}
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "onnx.md"

SCORES = "returns the matrix of scores, which the operation never forms"
COARSE = "expects bf16 to 1e-3, finer than its steps: only ONNX's own order of roundings gives these bits"

LISTED = {
    "test_attention_3d_with_past_and_present_qk_matmul": SCORES,
    "test_attention_3d_with_past_and_present_qk_matmul_bias": SCORES,
    "test_attention_3d_with_past_and_present_qk_matmul_softcap": SCORES,
    "test_attention_4d_with_past_and_present_qk_matmul": SCORES,
    "test_attention_4d_with_past_and_present_qk_matmul_bias": SCORES,
    "test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask": SCORES,
    "test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal": SCORES,
    "test_attention_4d_with_past_and_present_qk_matmul_bias_4d_mask": SCORES,
    "test_attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal": SCORES,
    "test_attention_4d_with_qk_matmul": SCORES,
    "test_attention_4d_with_qk_matmul_bias": SCORES,
    "test_attention_4d_with_qk_matmul_softcap": SCORES,
    "test_attention_3d_causal_bf16": COARSE,
    "test_attention_4d_attn_mask_causal_bf16": COARSE,
    "test_attention_4d_causal_bf16": COARSE,
    "test_attention_4d_causal_padded_kv_bf16": COARSE,
    "test_attention_4d_padded_kv_bf16": COARSE,
}


def step(case):
    """The largest relative distance of two neighbours of the case's dtype."""
    return float(ml_dtypes.finfo(case.dtype).eps)


RULES = {
    SCORES: lambda case: case.score_mode is not None,
    COARSE: lambda case: step(case) > case.rtol,
}


def attend(qkv, folder, tensors, options, *flags):
    write(folder / "in.safetensors", tensors)
    qkv("attend", "in.safetensors", *(f"--{name}={value}" for name, value in options.items()), *flags,
        "-o", "out.safetensors")
    return read(folder / "out.safetensors")


def compare(case, name, got, rtol):
    want = case.outputs[name]
    assert got.shape == want.shape
    np.testing.assert_allclose(got.astype(want.dtype).astype(np.float64), want.astype(np.float64), rtol=rtol,
                               atol=case.atol, err_msg=name)


def test_the_package_holds_what_is_claimed():
    """Opsets 23 to 25, one tolerance, and each case once more spelt out in simpler operators, with the same data."""
    assert {case.opset for case in CASES.values()} == {23, 24, 25}
    assert {(case.rtol, case.atol) for case in CASES.values()} == {(1e-3, 1e-7)}
    tests = {test.name: test for test in onnx_cases.all_tests()}
    spelt_out = {name.split("_expanded")[0]: test for name, test in tests.items() if not onnx_cases.is_one_node(test)}
    assert set(spelt_out) == set(CASES) and len(tests) == 2 * len(CASES)
    for name, test in spelt_out.items():
        for arrays, same in zip(test.data_sets[0], tests[name].data_sets[0], strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(arrays, same, strict=True))


def test_listed_cases_are_those_that_a_rule_excludes(capsys):
    excluded = {name: reason for reason, rule in RULES.items() for name, case in CASES.items() if rule(case)}
    assert excluded == LISTED
    with capsys.disabled():
        print(f"\nONNX Attention: {len(CASES)} cases, {len(CASES) - len(LISTED)} whole, {len(LISTED)} listed")
        for reason, count in Counter(LISTED.values()).items():
            print(f"  {count} {reason}")


def test_the_document_says_the_same():
    text = DOCUMENT.read_text(encoding="utf-8")
    named = [word.strip("`") for word in text.split() if word.startswith("`test_attention_")]
    assert sorted(named) == sorted(LISTED)
    cases, listed = Counter(case.opset for case in CASES.values()), Counter(CASES[name].opset for name in LISTED)
    for opset, count in [*cases.items(), ("all", len(CASES))]:
        missing = len(LISTED) if opset == "all" else listed[opset]
        assert f"| {opset} | {count} | {count - missing} | {missing} |" in text


@pytest.mark.parametrize("name", CASES)
def test_case(qkv, tmp_path, name):
    case = CASES[name]
    tensors, options = onnx_cases.problem(case)
    weights = case.attributes.get("qk_matmul_output_mode") == onnx_cases.WEIGHTS
    got = attend(qkv, tmp_path, tensors, options, *["--weights"] * weights)
    assert got["out"].dtype == case.dtype
    # Where the steps are coarser than the tolerance: two steps, as ONNX's own runner compares.
    rtol = 2 * step(case) if LISTED.get(name) == COARSE else case.rtol
    compare(case, "Y", onnx_cases.tokens_first(got["out"], case.inputs["Q"]), rtol)
    for which in ("key", "value"):
        if f"present_{which}" in case.outputs:
            np.testing.assert_array_equal(onnx_cases.present(case, which), case.outputs[f"present_{which}"])
    if "qk_matmul_output" in case.outputs:
        if weights:
            compare(case, "qk_matmul_output", got["weights"], case.rtol)
        else:
            lse = attend(qkv, tmp_path, *onnx_cases.score_problem(case))["lse"]
            compare(case, "qk_matmul_output", onnx_cases.scores(lse, case), case.rtol)


@pytest.mark.parametrize("name", [name for name, reason in LISTED.items() if reason == COARSE])
def test_no_right_answer_meets_these_bf16_values(qkv, tmp_path, name):
    """The exact result, rounded once, misses them by more than the tolerance; they lie further from it than ours."""
    case = CASES[name]
    tensors, options = onnx_cases.problem(case)
    ours = attend(qkv, tmp_path, tensors, options)["out"].astype(np.float64)
    exact = attend(qkv, tmp_path, tensors, options, "--dtype=f64")["out"]
    want = onnx_cases.heads_first(case.outputs["Y"], case.attributes.get("q_num_heads")).astype(np.float64)
    assert exact.dtype == np.float64
    rounded = exact.astype(case.dtype).astype(np.float64)
    assert not np.allclose(rounded, want, rtol=case.rtol, atol=case.atol)
    assert np.abs(ours - exact).max() < np.abs(want - exact).max()
