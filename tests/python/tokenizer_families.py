# SPDX-License-Identifier: Apache-2.0
"""Small tokenizers put together as those of well-known models are."""

from tokenizer_cases import (LLAMA3, O200K, QWEN, build, precompiled_normalizer)
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors

TEMPLATE = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
                                         special_tokens=[("[CLS]", 3), ("[SEP]", 4)])
BEGIN = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B:1", special_tokens=[("<s>", 0)])
ADDED = ["<s>", "</s>", "<unk>", "[CLS]", "[SEP]", AddedToken("[MASK]", lstrip=True, special=True, normalized=False),
         AddedToken("added"), AddedToken("New Word", single_word=True), AddedToken("<|x|>", rstrip=True)]


def split_then_bytes(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def update(**changes):
    return lambda model: model.update(changes)


def sentencepiece_decoder():
    return decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                              decoders.Strip(" ", 1, 0)])


FAMILIES = {
    "gpt2": lambda: build("byte_level", tokens=ADDED, pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False),
                          post_processor=processors.ByteLevel(trim_offsets=False), decoder=decoders.ByteLevel()),
    "roberta": lambda: build("byte_level", tokens=ADDED, pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True),
                             post_processor=processors.RobertaProcessing(("</s>", 1), ("<s>", 0)),
                             decoder=decoders.ByteLevel()),
    "modernbert": lambda: build("byte_level", tokens=ADDED, normalizer=normalizers.NFC(),
                                pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False), post_processor=TEMPLATE,
                                decoder=decoders.ByteLevel()),
    "llama3": lambda: build("byte_level", update(ignore_merges=True), tokens=ADDED, pre_tokenizer=split_then_bytes(LLAMA3),
                            post_processor=processors.Sequence([processors.ByteLevel(trim_offsets=True), BEGIN]),
                            decoder=decoders.ByteLevel()),
    "qwen2": lambda: build("byte_level", tokens=ADDED, normalizer=normalizers.NFC(), pre_tokenizer=split_then_bytes(QWEN),
                           post_processor=processors.ByteLevel(trim_offsets=False), decoder=decoders.ByteLevel()),
    "gpt4o": lambda: build("byte_level", tokens=ADDED, pre_tokenizer=split_then_bytes(O200K), decoder=decoders.ByteLevel()),
    "llama2": lambda: build("sentencepiece", tokens=ADDED, post_processor=BEGIN, decoder=sentencepiece_decoder(),
                            normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])),
    "mistral": lambda: build("sentencepiece", tokens=ADDED, post_processor=BEGIN, decoder=sentencepiece_decoder(),
                             pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first", split=False)),
    "gemma": lambda: build("sentencepiece", update(fuse_unk=True), tokens=ADDED, normalizer=normalizers.Replace(" ", "▁"),
                           pre_tokenizer=pre_tokenizers.Split(" ", "merged_with_previous"), post_processor=BEGIN,
                           decoder=sentencepiece_decoder()),
    "bert": lambda: build("word_piece", tokens=ADDED, normalizer=normalizers.BertNormalizer(), post_processor=TEMPLATE,
                          pre_tokenizer=pre_tokenizers.BertPreTokenizer(), decoder=decoders.WordPiece()),
    "bert_cased": lambda: build("word_piece", tokens=ADDED, normalizer=normalizers.BertNormalizer(lowercase=False),
                                pre_tokenizer=pre_tokenizers.BertPreTokenizer(), decoder=decoders.WordPiece(cleanup=False),
                                post_processor=processors.BertProcessing(("[SEP]", 4), ("[CLS]", 3))),
    "t5": lambda: build("unigram", tokens=ADDED, normalizer=precompiled_normalizer(), post_processor=TEMPLATE,
                        pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]),
                        decoder=decoders.Metaspace()),
    "xlm_roberta": lambda: build("unigram", tokens=ADDED, pre_tokenizer=pre_tokenizers.Metaspace(), post_processor=TEMPLATE,
                                 normalizer=normalizers.Sequence([precompiled_normalizer(),
                                                                  normalizers.Replace(Regex(" {2,}"), " ")]),
                                 decoder=decoders.Metaspace()),
    "albert": lambda: build("unigram", update(byte_fallback=True), tokens=ADDED, pre_tokenizer=pre_tokenizers.Metaspace(),
                            normalizer=normalizers.Sequence([normalizers.Replace("``", '"'), normalizers.NFKD(),
                                                             normalizers.StripAccents(), normalizers.Lowercase()]),
                            post_processor=TEMPLATE, decoder=decoders.Metaspace()),
    "gpt1": lambda: build("suffixed", tokens=ADDED, normalizer=normalizers.BertNormalizer(),
                          pre_tokenizer=pre_tokenizers.BertPreTokenizer(), decoder=decoders.BPEDecoder()),
    "word_level": lambda: build("word_level", tokens=ADDED, pre_tokenizer=pre_tokenizers.Whitespace()),
}
EXTRA = ["<s>", "</s>", "[MASK]", " [MASK]", "added", "unadded", "New Word", "New Words", "<|x|>  ", "ADDED", "[CLS]"]
