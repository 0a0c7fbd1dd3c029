# SPDX-License-Identifier: Apache-2.0
"""MultiheadAttention with the parameters, arguments and results of torch.nn's."""

from typing import Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional

from qkv.torch.attention import attention


class MultiheadAttention(torch.nn.MultiheadAttention):
    """torch.nn.MultiheadAttention on qkv: same constructor, same state dict, same call.

    The output takes O(n) memory. The weights do not: they are computed only with need_weights=True (the default, as in
    PyTorch), apart from the output, and are those before dropout.
    """

    def forward(self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Optional[Tensor] = None,
                need_weights: bool = True, attn_mask: Optional[Tensor] = None, average_attn_weights: bool = True,
                is_causal: bool = False) -> Tuple[Tensor, Optional[Tensor]]:
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
        is_batched = query.dim() == 3
        if not is_batched:
            query, key, value = (x.unsqueeze(0 if self.batch_first else 1) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        if not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = self._projected(query, key, value)
        bias, mask = self._masks(attn_mask, key_padding_mask, q, k)
        dropout = self.dropout if self.training else 0.0
        out = attention(q, k, v, bias=bias, mask=mask, dropout=dropout)
        out = self.out_proj(out.transpose(1, 2).flatten(2))
        weights = _weights(q, k, bias, mask) if need_weights else None
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not is_batched:
            out = out.squeeze(0)
            weights = None if weights is None else weights.squeeze(0)
        elif not self.batch_first:
            out = out.transpose(0, 1)
        return out, weights

    def _projected(self, query, key, value):
        """q, k, v as [B, H, T, D], the extra keys of add_bias_kv and add_zero_attn appended."""
        if self._qkv_same_embed_dim:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (functional.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases))
        if self.bias_k is not None:
            k = torch.cat([k, self.bias_k.expand(k.shape[0], 1, -1)], 1)
            v = torch.cat([v, self.bias_v.expand(v.shape[0], 1, -1)], 1)
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in (q, k, v))
        if self.add_zero_attn:
            k, v = (functional.pad(x, (0, 0, 0, 1)) for x in (k, v))
        return q, k, v

    def _masks(self, attn_mask, key_padding_mask, q, k):
        """PyTorch's masks (True hides) as a bias and a mask (True shows) that broadcast over [B, H, Tq, Tk]."""
        bias, mask = None, None
        if attn_mask is not None:
            attn_mask = functional.pad(attn_mask, (0, k.shape[2] - attn_mask.shape[-1]))
            attn_mask = attn_mask[None, None] if attn_mask.dim() == 2 else attn_mask.unflatten(0, q.shape[:2])
            if attn_mask.dtype == torch.bool:
                mask = ~attn_mask
            else:
                bias = attn_mask
        if key_padding_mask is not None:
            padding = functional.pad(key_padding_mask, (0, k.shape[2] - key_padding_mask.shape[-1]))[:, None, None]
            if padding.dtype == torch.bool:
                mask = ~padding if mask is None else mask & ~padding
            else:
                bias = padding if bias is None else bias + padding
        return bias, mask


def _weights(q, k, bias, mask):
    scores = q @ k.transpose(-1, -2) / q.shape[-1]**0.5
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    is_empty = scores.isneginf().all(-1, keepdim=True)
    return torch.softmax(scores, -1).masked_fill(is_empty, 0.0)
