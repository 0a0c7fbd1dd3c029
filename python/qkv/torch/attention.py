# SPDX-License-Identifier: Apache-2.0
"""attention() for tensors, and scaled_dot_product_attention() with the signature of torch.nn.functional's."""

import math
from typing import Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from qkv import _core
from qkv.torch import ops
from qkv.torch.derivatives import Attention, Call
from qkv.torch.options import encode

Numbers = Union[Tensor, Sequence[float]]


def is_plain(tensors):
    """True where a call computes and nothing watches: no transform, no mode, no subclass, no tracing."""
    return (not torch.compiler.is_compiling()
            and ops.is_unwatched(tensors)
            and torch.autograd.forward_ad._current_level < 0)


def autocast(tensors):
    """The tensors in the dtype that autocast asks for, as PyTorch's own attention does."""
    if not torch.is_autocast_enabled("cpu"):
        return tensors
    dtype = torch.get_autocast_dtype("cpu")
    return [t.to(dtype) if t is not None and t.is_floating_point() and t.dtype != torch.float64 else t for t in tensors]


def as_numbers(values, q):
    if values is None or isinstance(values, Tensor):
        return values
    return torch.tensor(values, dtype=ops.number_dtype(q))


def as_integers(values):
    return values if values is None or isinstance(values, Tensor) else torch.tensor(values, dtype=torch.int64)


def attention(q: Tensor, k: Tensor, v: Tensor, *, return_lse: bool = False, scale: Union[float, Tensor, None] = None,
              softcap: float = 0.0, causal: Union[str, int, None] = None,
              window: Optional[Tuple[Optional[int], Optional[int]]] = None, offset: int = 0,
              offsets: Union[Tensor, Sequence[int], None] = None, bias: Optional[Tensor] = None,
              mask: Optional[Tensor] = None, slopes: Optional[Numbers] = None, sinks: Optional[Numbers] = None,
              table: Optional[Tensor] = None, buckets: Optional[str] = None, max_distance: int = 128,
              key_lengths: Union[Tensor, Sequence[int], None] = None,
              query_lengths: Union[Tensor, Sequence[int], None] = None, query_segment: Optional[Tensor] = None,
              key_segment: Optional[Tensor] = None, block_mask: Optional[Tensor] = None,
              block: Optional[Tuple[int, int]] = None, query_starts: Union[Tensor, Sequence[int], None] = None,
              key_starts: Union[Tensor, Sequence[int], None] = None, dropout: float = 0.0, seed: Optional[int] = None,
              threads: Optional[int] = None) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """out = softmax(scale q k^T + ...) v, exactly, in O(n) memory, differentiable twice.

    q [B, H, Tq, D], k [B, Hkv, Tk, D], v [B, Hkv, Tk, Dv] on the CPU, of one dtype: float64, float32, bfloat16 or
    float16; ranks 3 and 2 too; any strides, no copies. Returns out [B, H, Tq, Dv], with return_lse also lse [B, H, Tq].
    Options are those of qkv.attention. Differences: scale may be a tensor of one element, with a derivative; without a
    seed, dropout draws one from PyTorch's generator; threads is torch.get_num_threads() unless given.

    q, k, v, bias, slopes, table, sinks and scale have derivatives, in reverse and forward mode, and second ones: reverse
    over reverse, forward over reverse, reverse over forward. Under autocast q, k and v are cast as for PyTorch's own
    attention.
    """
    q, k, v = autocast((q, k, v))
    scalars = {"softcap": softcap, "causal": causal, "window": window, "offset": offset, "buckets": buckets,
               "max_distance": max_distance, "block": block, "dropout": dropout, "seed": seed, "threads": threads}
    is_tensor_scale = isinstance(scale, Tensor)
    if not is_tensor_scale:
        scalars["scale"] = scale
    extra = {"mask": mask, "offsets": as_integers(offsets), "key_lengths": as_integers(key_lengths),
             "query_lengths": as_integers(query_lengths), "query_segment": query_segment, "key_segment": key_segment,
             "block_mask": block_mask, "query_starts": as_integers(query_starts), "key_starts": as_integers(key_starts)}
    if dropout > 0 and seed is None:
        extra["seed"] = torch.randint(0, 2**63 - 1, ())
    extra = {name: tensor for name, tensor in extra.items() if tensor is not None}
    inputs = (q, k, v, bias, as_numbers(slopes, q), table, as_numbers(sinks, q), scale if is_tensor_scale else None)
    given = [tensor for tensor in inputs if tensor is not None]
    if is_plain((*given, *extra.values())) and not (torch.is_grad_enabled() and any(t.requires_grad for t in given)):
        return run_plain(inputs, extra, scalars, return_lse)
    options = encode(scalars, extra)
    if torch.compiler.is_compiling():
        results = torch.ops.qkv.forward(*inputs, list(extra.values()), *options)
    else:
        results = Attention.apply(Call(options), *inputs, *extra.values())
    return results[:2] if return_lse else results[0]


def run_plain(inputs, extra, scalars, return_lse):
    """The core without PyTorch's machinery around it, which costs more than a small attention."""
    q, k, v, bias, slopes, table, sinks, scale = inputs
    arguments = {name: value for name, value in scalars.items() if value is not None}
    arguments.setdefault("threads", torch.get_num_threads())
    arguments.update(extra)
    for name, tensor in (("bias", bias), ("slopes", slopes), ("table", table), ("sinks", sinks)):
        if tensor is not None:
            arguments[name] = tensor
    if scale is not None:
        arguments["scale"] = float(scale)
    if "seed" in extra:
        arguments["seed"] = int(extra["seed"])
    shape = q.shape
    out = ops.new_out(q, v)
    lse = q.new_empty(shape[:-1], dtype=ops.number_dtype(q)) if return_lse else None
    _core.forward(q, k, v, out, lse, **arguments)
    return (out, lse) if return_lse else out


def to_rank_4(tensor, batch):
    """[..., H, T, D] to [B, H, T, D] with the leading axes expanded to `batch`; a view wherever one exists."""
    return tensor.expand(*batch, *tensor.shape[-3:]).reshape(math.prod(batch), *tensor.shape[-3:])


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor] = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, scale: Optional[float] = None,
                                 enable_gqa: bool = False) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention, to be put in its place.

    query [N, ..., L, E], key [N, ..., S, E], value [N, ..., S, Ev]; attn_mask broadcasts to [N, ..., L, S]: bool (True
    is visible) or float, added to the scores and differentiable. is_causal is top-left (key j <= query i) and may come
    together with attn_mask. A row that sees no key is 0. Raises as attention() does.
    """
    rank = query.dim()
    if rank < 2 or key.dim() != rank or value.dim() != rank:
        raise ValueError(f"scaled_dot_product_attention: query, key and value need the same number of axes, at least 2, "
                         f"got {query.dim()}, {key.dim()} and {value.dim()}")
    leads = [tensor.shape[:-2] for tensor in (query, key, value)]
    if rank >= 3 and not enable_gqa and not leads[0] == leads[1] == leads[2]:
        heads = torch.broadcast_shapes(*leads)
        query, key, value = (tensor.expand(*heads, *tensor.shape[-2:]) for tensor in (query, key, value))
    if rank > 4 or rank == 4 and not query.shape[0] == key.shape[0] == value.shape[0]:
        batch = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
        lead = (*batch, query.shape[-3])
        query, key, value = (to_rank_4(tensor, batch) for tensor in (query, key, value))
    else:
        lead = query.shape[:-2]
    options = {"causal": "top_left" if is_causal else None, "scale": scale, "dropout": dropout_p}
    if attn_mask is not None:
        scores = (*lead, query.shape[-2], key.shape[-2])
        attn_mask = attn_mask[(None,) * max(0, rank - attn_mask.dim())]
        if rank > 4:  # more than one leading axis became the batch
            attn_mask = attn_mask.expand(scores).reshape(-1, *scores[-3:])
        if attn_mask.dtype == torch.bool:
            options["mask"] = attn_mask
        else:
            options["bias"] = attn_mask if attn_mask.dtype in (query.dtype, torch.float32) else attn_mask.to(query.dtype)
    out = attention(query, key, value, **options)
    return out.reshape(*lead, *out.shape[-2:]) if rank > 4 else out
