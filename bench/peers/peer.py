# SPDX-License-Identifier: Apache-2.0
"""One library in a process of its own, driven by qkv_bench: bench/peer.h describes the requests and answers.

    python peer.py torch|onnxruntime|openvino
"""

import ctypes
import importlib
import json
import os
import sys
import time

from problem import Product, Refused, problem_of

CHOOSING_SECONDS = 0.1  # how long each way to call a library is tried before the fastest is taken


def status_bytes(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field + ":"))


def peak_growth(call):
    """Calls and returns how far the largest resident size lay above the size before, in bytes; None if unknown."""
    try:
        ctypes.CDLL(None).malloc_trim(0)  # freed memory that stays resident would hide the growth
    except AttributeError:
        pass
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        before = status_bytes("VmRSS")
    except OSError:
        before = None
    call()
    return None if before is None else max(0, status_bytes("VmHWM") - before)


def seconds_of(call):
    """The best of some calls: enough to choose between ways, not a measurement."""
    best, start = float("inf"), time.perf_counter()
    while best == float("inf") or time.perf_counter() - start < CHOOSING_SECONDS:
        begin = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begin)
    return best


class Peer:
    """`engine.ways` (of attention) and `engine.products` yield pairs of a name and a function that makes a call without
    arguments, and a function that compares the call's last results with qkv's. The fastest is timed."""

    def __init__(self, engine):
        self.engine, self.calls = engine, []

    def prepare(self, request):
        problem = problem_of(request)
        self.engine.use_threads(problem.threads)
        ways = self.engine.products if isinstance(problem, Product) else self.engine.ways
        best, wrong, reasons = None, [], []
        for how, make in ways(problem):
            try:
                call, error = make()
                growth = peak_growth(call)
            except Exception as refusal:  # whatever a library throws at a case that it does not take
                reasons.append(f"{how}: {' '.join(str(refusal).split())[:160]}")
                continue
            entry = (seconds_of(call), how, call, growth, error())
            (wrong if entry[4] > 0.05 else []).append(entry)
            if entry[4] <= 0.05 and (best is None or entry[0] < best[0]):
                best = entry
        if best is None and wrong:
            best = min(wrong, key=lambda entry: entry[4])
        if best is None:
            raise Refused("; ".join(reasons) or "it has no such operation")
        _, how, call, growth, error = best
        self.calls.append((call, problem.threads))
        return {"id": len(self.calls) - 1, "how": how, "error": error,
                **({} if growth is None else {"memory_growth": growth})}

    def time(self, request):
        call, threads = self.calls[request["id"]]
        calls = request["calls"]
        self.engine.use_threads(threads)
        if calls > 1:
            call()  # what ran before has taken the caches
        start, cpu_start = time.perf_counter(), time.process_time()
        for _ in range(calls):
            call()
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
        return {"seconds": seconds / calls, "cpu_seconds": cpu_seconds / calls}


def answers_of(module):
    """Answers one request after the other; a library that cannot be imported refuses them all."""
    try:
        engine = importlib.import_module(f"{module}_engine").Engine()
    except ImportError as missing:
        while True:
            yield {"engine": module, "refused": f"not installed ({missing})"}
    hello = {"engine": engine.name, "version": engine.version}
    peer = Peer(engine)
    answer = None
    while True:
        request = yield answer
        try:
            answer = {"hello": lambda _: hello, "prepare": peer.prepare, "time": peer.time}[request["do"]](request)
        except Refused as why:
            answer = {"refused": str(why)}


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes elsewhere
    peer = answers_of(sys.argv[1])
    next(peer)
    for line in sys.stdin:
        answers.write(json.dumps(peer.send(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
