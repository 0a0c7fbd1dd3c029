# SPDX-License-Identifier: Apache-2.0
"""Exact attention on CPUs: differentiable, with every option, in O(n) memory, with the same bits for any thread count.

    out = qkv.attention(q, k, v, causal="bottom_right", window=(255, 0))

Inputs are NumPy arrays or anything with __dlpack__, results are NumPy arrays. `python -m qkv` is the command line.
"""

from qkv._core import (
    Tokenizer,
    attention,
    attention_grad,
    attention_jvp,
    attention_second_order,
    available_threads,
    choose_target,
    probe,
    target,
    targets,
    version,
)
from qkv.transformer import Transformer

__version__ = version()

__all__ = [
    "Tokenizer",
    "Transformer",
    "attention",
    "attention_grad",
    "attention_jvp",
    "attention_second_order",
    "available_threads",
    "choose_target",
    "probe",
    "target",
    "targets",
    "version",
]
