# SPDX-License-Identifier: Apache-2.0
"""What is no tensor in a call of attention, in the form that operators take: numbers apart from a constant text.

A graph can hold the numbers as symbols that way; the text says which they are, and holds what is a word.
"""

import ast
import functools
from typing import NamedTuple, Tuple

import torch

INTEGERS = (int, torch.SymInt)
NUMBERS = (int, float, torch.SymInt, torch.SymFloat)


class Options(NamedTuple):
    """`words`: the text of a dict; its "integers", "floats" and "extra" name the numbers and the further tensors."""

    words: str
    integers: Tuple[int, ...]
    floats: Tuple[float, ...]


def plain(value):
    """Numbers and arrays of NumPy's or PyTorch's as Python's own, in pairs too."""
    if isinstance(value, (str, *NUMBERS)):
        return value
    if isinstance(value, (tuple, list)):
        return tuple(plain(side) for side in value)
    return value.tolist() if hasattr(value, "tolist") else value


def is_pair(value):
    return (isinstance(value, (tuple, list)) and len(value) == 2
            and all(side is None or isinstance(side, INTEGERS) and not isinstance(side, bool) for side in value))


def encode(options, extra):
    """`options`: the keyword arguments that are no tensors, None for absent; `extra`: names of the tensors beside."""
    words, integers, floats = {"extra": tuple(extra)}, {}, {}
    for name, value in options.items():
        if value is None:
            continue
        value = plain(value)
        if is_pair(value):
            integers.update((f"{name}.{n}", side) for n, side in enumerate(value) if side is not None)
        elif isinstance(value, bool) or not isinstance(value, NUMBERS):
            words[name] = value
        elif name in ("scale", "softcap", "dropout"):
            floats[name] = value
        elif isinstance(value, INTEGERS) and -2**63 <= value < 2**63:
            integers[name] = value
        else:
            words[name] = value
    words = {**words, "integers": tuple(integers), "floats": tuple(floats)}
    return Options(repr(words), tuple(integers.values()), tuple(floats.values()))


@functools.lru_cache(maxsize=4096)
def parse(words):
    return ast.literal_eval(words)


def is_packed(options):
    return "query_starts" in parse(options.words)["extra"]


def decode(options, extra):
    """The keyword arguments of the core; `extra`: tensors in the order of their names."""
    words = parse(options.words)
    arguments = {name: value for name, value in words.items() if name not in ("extra", "integers", "floats")}
    arguments.update(zip(words["floats"], options.floats))
    for name, value in zip(words["integers"], options.integers):
        base, _, side = name.partition(".")
        if side:
            arguments.setdefault(base, [None, None])[int(side)] = value
        else:
            arguments[name] = value
    arguments.update(zip(words["extra"], extra))
    if isinstance(arguments.get("seed"), torch.Tensor):
        arguments["seed"] = int(arguments["seed"])
    return arguments
