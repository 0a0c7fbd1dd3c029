# SPDX-License-Identifier: Apache-2.0
"""qkv.torch beside PyTorch in training, forward and backward in one, and what a call from Python costs.

    python bench/python/table.py [--filter TEXT] [--rounds N] [--shrink N] [--threads N]

Times: all ways of a case in one process, one after the other, round by round, so that what slows the machine meets all of
them; medians. With --threads 1 they are CPU times, which stand still while other programs have the CPU. Memory: how far the resident size of a process of its own rises during a step, inputs not counted. A way
that cannot do a case, or does it to another result, leaves a dash and a reason. --shrink divides sequence lengths.
"""

import argparse
import collections
import dataclasses
import json
import statistics
import subprocess
import sys
import time

import numpy as np
import torch
from ways import CASES, WAYS, step

import qkv
import qkv.torch


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", default="")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shrink", type=int, default=1)
    parser.add_argument("--threads", type=int, default=qkv.available_threads())
    parser.add_argument("--memory-of", nargs=2, metavar=("CASE", "WAY"), help=argparse.SUPPRESS)
    return parser.parse_args()


def shrunk(case, divisor):
    return dataclasses.replace(case, T=case.T // divisor, window=case.window // divisor)


# ---- Memory.

def status(field):
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def memory_of(case, way):
    """MiB by which a step raises the resident size, at its highest."""
    call = step(shrunk(case, max(1, case.T // 64)), way)
    call()  # libraries and thread pools
    call = step(case, way)
    with open("/proc/self/clear_refs", "w", encoding="ascii") as reset:
        reset.write("5")
    before = status("VmRSS")
    call()
    return status("VmHWM") - before


def memory_in_a_process(options, case, way):
    command = [sys.executable, __file__, "--shrink", str(options.shrink), "--threads", str(options.threads),
               "--memory-of", case.name, way]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


# ---- Times.

def differs(case, results, wanted):
    """Beyond rounding. Dropout drops others, so that nothing can be compared."""
    if case.dropout:
        return False
    unit = torch.finfo(case.dtype).eps
    for got, want in zip(results, wanted, strict=True):
        if (got.double() - want.double()).norm() > 100 * unit * want.double().norm():
            return True
    return False


def calls_of(case, reasons):
    """By way; why one is left out goes to `reasons`."""
    calls, wanted = {}, None
    for way in WAYS:
        try:
            call = step(case, way)
            results = call()
        except Exception as error:  # whatever PyTorch throws at a case
            reasons[f"{way}: {str(error).strip().splitlines()[0][:120]}"].append(case.name)
            continue
        if wanted is None:
            wanted = results
        elif differs(case, results, wanted):
            reasons[f"{way}: another result"].append(case.name)
            continue
        calls[way] = call
    return calls


def time_of(call, clock):
    start = clock()
    call()
    return clock() - start


def row(options, case, reasons):
    calls = calls_of(case, reasons)
    times = {way: [] for way in calls}
    clock = time.process_time if options.threads == 1 else time.perf_counter
    for _ in range(options.rounds):
        for way, call in calls.items():
            times[way].append(time_of(call, clock))
    cells = []
    for way in WAYS:
        if way not in calls:
            cells.append("-")
            continue
        memory = memory_in_a_process(options, case, way)
        text = f"{statistics.median(times[way]) * 1e3:.1f} ms"
        if way != "qkv":
            ratio = statistics.median(a / b for a, b in zip(times[way], times["qkv"]))
            text += f" ({ratio:.2f})"
        cells.append(f"{text}, {'?' if memory is None else f'{memory:.0f}'} MiB")
    return f"| {case.name} | " + " | ".join(cells) + " |"


# ---- The cost of a call.

def microseconds(call, count):
    call()
    start = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - start) / count * 1e6


def overhead(rounds):
    """CPU times for one query and one key of width 8, which the C++ call takes about two microseconds for."""
    x = np.ones((1, 1, 1, 8), np.float32)
    t, g = torch.from_numpy(x), torch.ones(1, 1, 1, 8, requires_grad=True)
    own = torch.nn.functional.scaled_dot_product_attention
    calls = {
        "qkv.attention": lambda: qkv.attention(x, x, x),
        "qkv.torch.attention": lambda: qkv.torch.attention(t, t, t),
        "qkv.torch.scaled_dot_product_attention": lambda: qkv.torch.scaled_dot_product_attention(t, t, t),
        "PyTorch's scaled_dot_product_attention": lambda: own(t, t, t),
        "qkv.torch.attention, forward and backward": lambda: qkv.torch.attention(g, g, g).sum().backward(),
        "PyTorch's, forward and backward": lambda: own(g, g, g).sum().backward(),
    }
    times = {name: [] for name in calls}
    torch.set_num_threads(1)
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(microseconds(call, 500))
    return {name: statistics.median(values) for name, values in times.items()}


def main():
    options = arguments()
    torch.set_num_threads(options.threads)
    cases = [shrunk(case, options.shrink) for case in CASES if options.filter in case.name]
    if options.memory_of:
        name, way = options.memory_of
        print(json.dumps(memory_of(next(case for case in cases if case.name == name), way)))
        return
    print(f"PyTorch {torch.__version__}, qkv {qkv.__version__} on {qkv.target()}, {options.threads} threads; medians of "
          f"{options.rounds} rounds; in brackets: times qkv's.\n")
    print("| forward and backward | " + " | ".join(WAYS) + " |\n|---" + "|---" * len(WAYS) + "|")
    reasons = collections.defaultdict(list)
    for case in cases:
        print(row(options, case, reasons), flush=True)
    print("\n| one query, one key | microseconds |\n|---|---|")
    for name, time_taken in overhead(5 * options.rounds).items():
        print(f"| {name} | {time_taken:.1f} |")
    print()
    for reason, names in reasons.items():
        print(f"Left out: {reason} ({'; '.join(names)})")


if __name__ == "__main__":
    main()
