# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="qkv" for the models of the package transformers.

A model asks its mask function for a mask once and hands it to every layer. Where the pattern is causal, a sliding
window, packed documents or padding, the mask given back is a Pattern: no Tq x Tk array, but options of attention()
(offsets, windows, lengths, segments). A model that computes with it finds the boolean mask that it stands for.
"""

import functools

import torch
from torch.utils import _pytree as pytree

from qkv.torch.attention import attention


class Pattern(torch.Tensor):
    """A boolean mask [B, 1, Tq, Tk] that is written out only when something other than attention_forward reads it."""

    @staticmethod
    def __new__(cls, shape, options, build):
        pattern = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool)
        pattern.options = options
        pattern.build = build
        return pattern

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), keywords=None):
        arguments, keywords = pytree.tree_map_only(cls, lambda pattern: pattern.build(), (arguments, keywords or {}))
        return function(*arguments, **keywords)

    def __repr__(self):
        return f"Pattern(shape={tuple(self.shape)}, options={self.options})"


def captured(function):
    """The variables a nested function refers to, by name."""
    return dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in function.__closure__ or ())))


def recognise(function, masking):
    """What a mask function of transformers says: a dict of causal, left, right, segments; None when it is another."""
    if function is masking.causal_mask_function:
        return {"causal": True}
    if function is masking.bidirectional_mask_function:
        return {}
    if getattr(function, "__module__", None) != masking.__name__:
        return None
    name, variables = function.__qualname__.split(".")[0], captured(function)
    if name == "sliding_window_overlay":
        return {"left": variables["sliding_window"] - 1}
    if name == "sliding_window_bidirectional_overlay":
        return {"left": variables["sliding_window"], "right": variables["sliding_window"]}
    if name == "packed_sequence_mask_function":
        return {"segments": variables["packed_sequence_mask"]}
    if name == "remap_positions_for_packed_sequence":
        # Positions of one document differ by as much as their places do, and the documents are told apart beside this.
        inner = recognise(variables["mask_function"], masking)
        return None if inner is None else {**inner, "remapped": True}
    if name == "and_masks":
        parts = [recognise(part, masking) for part in variables["mask_functions"]]
        if any(part is None for part in parts) or sum(map(len, parts)) > len(set().union(*parts)):
            return None
        return {key: value for part in parts for key, value in part.items()}
    return None


def options_of(pattern, padding, q_length, kv_length, offset):
    """The options of attention() for a recognised pattern with padding [B, Tk]; None where there are none."""
    if pattern is None or pattern.get("remapped") and "segments" not in pattern:
        return None
    options = {"causal": offset} if pattern.get("causal") else {"offset": offset}
    if "left" in pattern or "right" in pattern:
        options["window"] = (pattern.get("left"), pattern.get("right"))
    segments = pattern.get("segments")
    if segments is not None:
        options.update(query_segment=segments.long(), key_segment=segments.long())
    if padding is None or bool(padding.all()):
        return options
    lengths = padding.sum(-1)
    if torch.equal(padding, torch.arange(kv_length) < lengths[:, None]):
        options["key_lengths"] = lengths
    elif segments is None:
        options["key_segment"] = padding.long()
        options["query_segment"] = torch.ones((padding.shape[0], q_length), dtype=torch.int64)
    else:
        return None
    return options


def mask(batch_size, q_length, kv_length, q_offset=0, kv_offset=0, mask_function=None, attention_mask=None,
         use_vmap=False, **further):
    """The mask function: a Pattern where one exists, else the boolean mask of "sdpa"."""
    from transformers import masking_utils as masking

    function = masking.causal_mask_function if mask_function is None else mask_function
    further = {**further, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    build = functools.partial(masking.sdpa_mask, batch_size, q_length, kv_length, q_offset, kv_offset, function,
                              attention_mask, use_vmap=use_vmap, **further)
    if torch.compiler.is_compiling() or use_vmap:
        return build()
    padding = masking.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is not None:
        padding = padding[:, kv_offset:kv_offset + kv_length].bool()
    options = options_of(recognise(function, masking), padding, q_length, kv_length, int(q_offset) - int(kv_offset))
    if options is None:
        return build()
    return Pattern((batch_size, 1, q_length, kv_length), options, build)


def attention_forward(module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None,
                      position_bias=None, softcap=None, s_aux=None, **_):
    """The attention function: query [B, H, Tq, D], key and value [B, Hkv, Tk, D]; returns [B, Tq, H, Dv] and no weights.

    Takes what the models of transformers pass: a mask (boolean, additive or a Pattern), dropout, scaling, a position
    bias, a soft-cap and attention sinks (s_aux).
    """
    options = {"scale": scaling, "dropout": dropout, "softcap": softcap or 0.0}
    if s_aux is not None:
        options["sinks"] = s_aux.to(torch.float64 if query.dtype == torch.float64 else torch.float32)
    bias = position_bias
    if isinstance(attention_mask, Pattern) and attention_mask.shape[-1] != key.shape[2]:
        attention_mask = attention_mask.build()[..., :key.shape[2]]
    if isinstance(attention_mask, Pattern):
        options.update(attention_mask.options)
    elif attention_mask is None:
        is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        if is_causal and query.shape[2] > 1:
            options["causal"] = "top_left"
    elif attention_mask.dtype == torch.bool:
        options["mask"] = attention_mask
    else:
        bias = attention_mask if bias is None else bias + attention_mask
    if bias is not None:
        options["bias"] = bias if bias.dtype in (query.dtype, torch.float32) else bias.to(query.dtype)
    out = attention(query, key, value, **options)
    return out.transpose(1, 2).contiguous(), None


def register_with_transformers():
    """Makes attn_implementation="qkv" work in transformers. May be called again."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register("qkv", attention_forward)
    AttentionMaskInterface.register("qkv", mask)
