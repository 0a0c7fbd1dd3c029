# SPDX-License-Identifier: Apache-2.0
"""Help, version, info and shell completion."""

import json
import shutil
import subprocess

import pytest
from cli_files import problem, write, write_arrays

COMMON = ["--scale", "--softcap", "--dropout", "--seed", "--causal", "--window", "--offset", "--dtype", "--threads",
          "--target", "--check", "--json", "--block", "--buckets", "--max-distance", "--output", "-o", "--q", "--k",
          "--v", "--bias", "--mask", "--slopes", "--sinks", "--table", "--key_lengths", "--query_lengths", "--offsets",
          "--query_segment", "--key_segment", "--block_mask", "--query_starts", "--key_starts"]
OPTIONS = {"attend": [*COMMON, "--weights"], "grad": [*COMMON, "--d_out", "--d_lse"],
           "probe": [*COMMON, "--tile", "--edges"], "info": ["--threads", "--target", "--json"]}


def words(text):
    return set(text.replace(",", " ").split())


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_names_every_verb(qkv, flag):
    text = qkv(flag).stdout
    assert {*OPTIONS, "completion"} <= words(text) and "Example" in text


@pytest.mark.parametrize("verb", OPTIONS)
def test_help_names_every_option(qkv, verb):
    text = qkv(verb, "--help").stdout
    assert set(OPTIONS[verb]) <= words(text)
    assert f"qkv {verb} [OPTIONS]" in text
    assert all(choice in text for choice in ("top_left", "bottom_right", "bf16") if verb != "info")


@pytest.mark.parametrize("verb", OPTIONS)
def test_examples_of_the_help_run(qkv, tmp_path, verb):
    tensors = problem(Tq=64, Tk=64)
    write(tmp_path / "problem.safetensors", tensors)
    write_arrays(tmp_path, tensors)
    examples = [line.split()[1:] for line in qkv(verb, "--help").stdout.splitlines() if line.startswith("  qkv ")]
    assert examples
    for example in examples:
        qkv(*example)


def test_help_fits_a_wide_terminal(qkv):
    for arguments in ([], ["attend"], ["grad"], ["probe"], ["info"]):
        assert max(map(len, qkv(*arguments, "--help").stdout.splitlines())) <= 120


def test_version(qkv):
    assert qkv("--version").stdout == "qkv 0.1.0\n"


def test_info(qkv):
    said = json.loads(qkv("info", "--json").stdout)
    assert set(said) == {"version", "targets", "target", "threads", "dependencies"}
    assert said["version"] == "0.1.0" and said["target"] in said["targets"] and said["threads"] >= 1
    assert all(version[0].isdigit() for version in said["dependencies"].values()) and said["dependencies"]
    text = qkv("info").stdout
    assert all(part in text for part in [*said["targets"], *said["dependencies"], f"threads: {said['threads']}"])


def test_info_of_a_chosen_target_and_threads(qkv):
    last = json.loads(qkv("info", "--json").stdout)["targets"][-1]
    said = json.loads(qkv("info", "--json", "--target", last, "--threads", "7").stdout)
    assert said["target"] == last and said["threads"] == 7


def complete(qkv, *line):
    """What bash would offer for the last word."""
    script = qkv("completion", "bash").stdout
    quoted = " ".join(f"'{word}'" for word in ("qkv", *line))
    script += f"\nCOMP_WORDS=({quoted}); COMP_CWORD={len(line)}; _qkv; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completion(qkv):
    assert complete(qkv, "at") == ["attend"]
    assert set(complete(qkv, "")) >= {"attend", "grad", "probe", "info", "completion", "--help", "--version"}
    assert complete(qkv, "attend", "--query_l") == ["--query_lengths"]
    assert set(complete(qkv, "grad", "--d_")) == {"--d_out", "--d_lse"}
    assert complete(qkv, "probe", "--causal", "b") == ["bottom_right"]
    assert set(complete(qkv, "attend", "--dtype", "")) == {"f64", "f32", "bf16", "f16"}
    for verb in "logits", "cost", "tokenize", "tokenizer":
        assert set(complete(qkv, verb, "--dtype", "")) == {"f32", "bf16"}
    assert complete(qkv, "attend", "--buckets", "c") == ["causal"]
    assert complete(qkv, "completion", "z") == ["zsh"]
    for verb, options in OPTIONS.items():
        assert set(complete(qkv, verb, "--")) >= {option for option in options if option.startswith("--")}


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_completion_is_valid(qkv):
    script = qkv("completion", "zsh").stdout
    subprocess.run(["zsh", "-n"], input=script, text=True, check=True)


def test_zsh_completion_names_every_option(qkv):
    script = qkv("completion", "zsh").stdout
    assert script.startswith("#compdef qkv\n")
    for options in OPTIONS.values():
        assert all(f"'{option}[" in script for option in options)


def test_bench_is_the_benchmark_with_all_that_follows(qkv):
    assert "bench" in words(qkv("--help").stdout)
    assert qkv("bench", "--help").stdout.startswith("Times exact attention")
    assert "f64 " in qkv("bench", "smoke", "--filter", "f64", "--list").stdout
    assert "qkv_bench: error: " in qkv("bench", "no-such-cases", "--list", check=False).stderr


def test_bench_says_what_is_missing(program, tmp_path):
    alone = shutil.copy(program, tmp_path / "qkv")
    said = subprocess.run([alone, "bench"], env={"PATH": ""}, capture_output=True, text=True, check=False)
    assert said.returncode == 1 and said.stderr.startswith("qkv: error: bench: expected the program qkv_bench")
