# SPDX-License-Identifier: Apache-2.0
"""Exact attention for JAX on the CPU, through XLA's foreign function interface: jit, grad, jvp, vmap, and twice.

    out = qkv.jax.attention(q, k, v, causal="bottom_right", bias=bias)
"""

from qkv.jax.attention import attention

__all__ = ["attention"]
