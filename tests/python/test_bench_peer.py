# SPDX-License-Identifier: Apache-2.0
"""The benchmark's side that is written in Python, without the libraries it is for: bench/peers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, program_path

PEERS = ROOT / "bench" / "peers"

# The definition in NumPy, as a way to be called; one way is slow, one wrong, one cannot be made.
ENGINE = """
import time
import numpy
from problem import Refused, largest_difference

class Engine:
    name, version = "NumPy", "1"

    def use_threads(self, threads):
        pass

    def ways(self, problem):
        if problem.mode != "forward":
            raise Refused("inference only")
        yield "slow", lambda: self.bind(problem, 0.02)
        yield "wrong", lambda: self.bind(problem, 0, 1.1)
        yield "broken", lambda: 1 / 0
        yield "right", lambda: self.bind(problem, 0.001)

    def bind(self, problem, seconds, factor=1.0):
        results = []

        def call():
            time.sleep(seconds)
            results[:] = [factor * attend(problem)]

        return call, lambda: largest_difference(results[0], problem.out)

    def products(self, problem):
        a, b = (numpy.asarray(array, numpy.float64) for array in (problem.a, problem.b))
        c = numpy.empty(problem.c.shape)
        yield "right", lambda: (lambda: numpy.matmul(a, b, out=c), lambda: largest_difference(c, problem.c))

def attend(problem):
    q, k, v = (numpy.asarray(array, numpy.float64) for array in (problem.q, problem.k, problem.v))
    k, v = (numpy.repeat(array, problem.group, 1) for array in (k, v))
    scores = problem.scale * q @ k.swapaxes(2, 3)
    if problem.additive() is not None:
        scores = scores + numpy.asarray(problem.additive(), numpy.float64)
    weights = numpy.exp(scores - scores.max(3, keepdims=True))
    return weights @ v / weights.sum(3, keepdims=True)
"""

CASES = """
plain     b=2 h=3 tq=5 tk=9 d=16 dv=24
causal    h=2 t=12 d=16 causal=top_left
shifted   h=2 tq=5 tk=9 d=16 causal=bottom_right
explicit  h=2 tq=5 tk=9 d=16 causal=3
window    h=2 t=12 d=16 causal=top_left window=3,0
offset    h=2 tq=5 tk=12 d=16 window=3,2 offset=4
bias      b=2 h=2 t=12 d=16 bias=1hqk scale=0.3
both_terms h=2 t=12 d=16 bias=b11k causal=top_left
grouped   h=6 hkv=2 t=12 d=16 causal=top_left
decode    h=6 hkv=2 tq=1 tk=12 d=16
f64       h=2 t=12 d=16 dtype=f64
f16       h=2 t=12 d=16 dtype=f16
bf16      h=2 t=12 d=16 dtype=bf16
training  h=2 t=12 d=16 mode=both
softcap   h=2 t=12 d=16 softcap=5
product   op=matmul m=3 n=5 k=7
prepared  op=matmul m=3 n=5 k=7 prepared=1 dtype=bf16
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "numpy_engine.py").write_text(ENGINE)
    return tmp_path


def environment(folder):
    return {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}


def talk(folder, engine, *requests):
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run([sys.executable, str(PEERS / "peer.py"), engine], input=lines, capture_output=True, text=True,
                          check=True, env=environment(folder))
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_kind_of_case_means_the_same_to_a_peer(folder):
    (folder / "cases.txt").write_text(CASES)
    subprocess.run([Path(program_path()).with_name("qkv_bench"), "--cases", folder / "cases.txt", "--threads", "1",
                    "--repetitions", "1", "--no-check", "--json", folder / "result.json",
                    "--peer", f"{sys.executable} {PEERS / 'peer.py'} numpy"],
                   check=True, capture_output=True, env=environment(folder))
    result = json.loads((folder / "result.json").read_text())
    assert result["peers"] == [{"engine": "NumPy", "version": "1", "absent": ""}]
    theirs = {run["name"]: run for run in result["runs"] if run["engine"] == "NumPy"}
    assert list(theirs) == [line.split()[0] for line in CASES.split("\n") if line]
    assert theirs.pop("training")["refused"] == "inference only"
    assert theirs.pop("softcap")["refused"] == "softcap: not given to other libraries"
    for name, run in theirs.items():
        assert run.get("how") == "right", (name, run.get("refused"))
        assert run["seconds"]["median"] > 0
        assert run["time_over_qkv"] > 0


def test_a_library_that_is_not_installed_is_absent(folder):
    answers = talk(folder, "nowhere", {"do": "hello"}, {"do": "prepare"})
    assert [answer["engine"] for answer in answers] == ["nowhere", "nowhere"]
    assert all("not installed" in answer["refused"] for answer in answers)


def test_what_a_library_prints_is_no_answer(folder):
    (folder / "loud_engine.py").write_text('class Engine:\n    name, version = "loud", "1"\n'
                                           '    print("welcome", flush=True)\n')
    assert talk(folder, "loud", {"do": "hello"}) == [{"engine": "loud", "version": "1"}]
