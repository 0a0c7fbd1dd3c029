# SPDX-License-Identifier: Apache-2.0
"""Exact attention for PyTorch tensors on the CPU, differentiable in reverse and forward mode.

    out = qkv.torch.attention(q, k, v, causal="bottom_right", bias=bias)    # backward, forward mode, vmap
    torch.nn.functional.scaled_dot_product_attention = qkv.torch.scaled_dot_product_attention
    qkv.torch.register_with_transformers()                                  # then attn_implementation="qkv"
"""

from qkv.torch.attention import attention, scaled_dot_product_attention
from qkv.torch.modules import MultiheadAttention
from qkv.torch.transformers import register_with_transformers

__all__ = ["MultiheadAttention", "attention", "register_with_transformers", "scaled_dot_product_attention"]
