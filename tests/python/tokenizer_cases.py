# SPDX-License-Identifier: Apache-2.0
"""Tokenizers for the tests, made with the package `tokenizers`: models trained on a little text, and every component."""

import base64
import json
import struct
from functools import cache

from tokenizer_text import SENTENCES, lines
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

SPECIAL = ["<s>", "</s>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])

TRAINING = SENTENCES * 3 + lines(300, seed=1)


# ---- Models

@cache
def trained(kind):
    """The JSON of a model, trained once."""
    if kind == "byte_level":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=SPECIAL, show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    elif kind == "sentencepiece":
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        trainer = trainers.BpeTrainer(vocab_size=1200, limit_alphabet=300, show_progress=False,
                                      special_tokens=[*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))])
    elif kind == "suffixed":
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.BpeTrainer(vocab_size=700, limit_alphabet=150, special_tokens=SPECIAL, show_progress=False,
                                      end_of_word_suffix="</w>", continuing_subword_prefix="##")
    elif kind == "word_piece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=900, special_tokens=SPECIAL, show_progress=False)
    elif kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=3000, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False)
    else:
        tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        trainer = trainers.WordLevelTrainer(vocab_size=500, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(TRAINING, trainer)
    return json.loads(tokenizer.to_str())["model"]


def with_model(kind, change=lambda model: None):
    """A tokenizer of this model and nothing else; `change` may edit the model's JSON first."""
    tokenizer = Tokenizer(models.BPE())
    whole = json.loads(tokenizer.to_str())
    whole["model"] = json.loads(json.dumps(trained(kind)))
    change(whole["model"])
    return Tokenizer.from_str(json.dumps(whole))


def build(kind, change=lambda model: None, tokens=SPECIAL, **parts):
    """A tokenizer of this model with normalizer=, pre_tokenizer=, post_processor=, decoder=, and added tokens."""
    tokenizer = with_model(kind, change)
    for name, part in parts.items():
        if part is not None:
            setattr(tokenizer, name, part)
    for token in tokens:
        if isinstance(token, str):
            tokenizer.add_special_tokens([token])
        else:
            tokenizer.add_tokens([token])
    return tokenizer


# ---- A precompiled map, of strings to strings

def precompiled(mapping):
    """SentencePiece's double-array trie for a few strings: greedy placement, as its own builder does."""
    text, values = b"", {}
    for key, value in mapping.items():
        values[key.encode()] = len(text)
        text += value.encode() + b"\0"
    units, used = {0: 0}, {0}

    def place(position, prefixes, depth):
        labels = sorted({key[depth] if depth < len(key) else 0 for key in prefixes})
        offset = 1
        while any((position ^ offset ^ label) in used for label in labels) or offset in taken:
            offset += 1
        taken.add(offset)
        base = position ^ offset
        used.update(base ^ label for label in labels)
        units[position] |= offset << 10
        for label in labels:
            below = [key for key in prefixes if (key[depth] if depth < len(key) else 0) == label]
            if label == 0:
                units[position] |= 1 << 8
                units[base] = values[below[0]] | 1 << 31
            else:
                units[base ^ label] = label
                place(base ^ label, below, depth + 1)

    taken = set()
    place(0, sorted(values), 0)
    size = (max(units) | 0xFF) + 1
    trie = struct.pack(f"<{size}I", *(units.get(position, 0) for position in range(size)))
    return base64.b64encode(struct.pack("<I", len(trie)) + trie + text).decode()


MAPPING = {"①": "1", "½": "1⁄2", "ﬁ": "fi", "Ａ": "A", "\u3000": " ", "\t": " ", "ﷺ": "صلى الله عليه وسلم", "㎏": "kg", "\u200b": "",
           "e\u0301": "é", "é": "é", "\u0344": "\u0308\u0301", "か\u3099": "が", "\u00ad": "", "İ": "I", "a\u0300": "à", "\x01": "",
           "가": "가", "👍": "+1", "²": "2", "µ": "μ", "…": "..."}


def precompiled_normalizer(mapping=None):
    part = {"type": "Precompiled", "precompiled_charsmap": precompiled(mapping or MAPPING)}
    whole = json.loads(Tokenizer(models.BPE()).to_str())
    whole["normalizer"] = part
    return Tokenizer.from_str(json.dumps(whole)).normalizer
