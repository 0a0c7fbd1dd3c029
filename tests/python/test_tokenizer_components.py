# SPDX-License-Identifier: Apache-2.0
"""Every normalizer, pre-tokenizer, post-processor, decoder and option, alone and behind others."""

import itertools
import json

import pytest
from tokenizer_cases import build, precompiled_normalizer, with_model
from tokenizer_check import assert_same, assert_same_or_refused, assert_same_text
from tokenizer_text import lines
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors

N, P, Q, D = normalizers, pre_tokenizers, processors, decoders
LINES = lines(500, seed=11, extra=["<s>", "tok", "A tok", "  tok  ", "TOK", "é", "e\u0301"])
BEHAVIORS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]

NORMALIZERS = {
    **{form: getattr(N, form)() for form in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel")},
    **{f"bert_{'_'.join(map(str, on))}": N.BertNormalizer(*on)
       for on in itertools.product([True, False], [True, False], [True, False, None], [True, False])},
    "strip": N.Strip(), "strip_left": N.Strip(right=False), "strip_right": N.Strip(left=False),
    "prepend": N.Prepend("▁x"), "prepend_nothing": N.Prepend(""),
    "replace": N.Replace("e", "[e]"), "replace_longer": N.Replace("the ", ""), "replace_blank": N.Replace(" ", "▁"),
    "replace_regex": N.Replace(Regex(r"\p{Lu}+"), "U"), "replace_front": N.Replace(Regex("^"), ">"),
    "replace_nothing": N.Replace(Regex("x*"), "-"), "replace_empty": N.Replace("", "_"),
    "replace_special": N.Replace("a.b*c", "?"), "precompiled": precompiled_normalizer(),
}
SEQUENCES = {
    "decomposed_stripped_lower": ["NFD", "StripAccents", "Lowercase"],
    "composed_after_prepend": ["prepend", "NFC", "strip"], "forms_then_front": ["NFKD", "Lowercase", "replace_front"],
    "twice": ["NFKC", "precompiled", "NFKC"], "bytes_last": ["Nmt", "strip", "ByteLevel"],
    "nothing_left": ["replace_blank", "replace_longer", "Nmt", "replace_nothing"],
    "moved_marks_split": ["NFD", "replace"], "regex_then_bert": ["replace_regex", "bert_True_True_None_True"],
}
PRE_TOKENIZERS = {
    "bert": P.BertPreTokenizer(), "whitespace": P.Whitespace(), "whitespace_split": P.WhitespaceSplit(),
    "scripts": P.UnicodeScripts(), "digits": P.Digits(False), "single_digits": P.Digits(True),
    "delimiter": P.CharDelimiterSplit("e"), "fixed_length": P.FixedLength(3),
    **{f"byte_level_{a}_{b}": P.ByteLevel(add_prefix_space=a, use_regex=b)
       for a, b in itertools.product([True, False], [True, False])},
    **{f"metaspace_{scheme}_{split}": P.Metaspace("▁", scheme, split)
       for scheme, split in itertools.product(["always", "first", "never"], [True, False])},
    **{f"punctuation_{how}": P.Punctuation(how) for how in BEHAVIORS},
    **{f"split_{how}_{invert}": P.Split(" ", how, invert) for how, invert in itertools.product(BEHAVIORS, [True, False])},
    **{f"split_regex_{how}_{invert}": P.Split(Regex(r"\s+|\p{L}{2,}"), how, invert)
       for how, invert in itertools.product(BEHAVIORS, [True, False])},
    **{f"split_empty_{how}": P.Split(Regex(r"(?=[A-Z])|x*"), how) for how in BEHAVIORS},
    "split_empty_string": P.Split("", "isolated"),
    "sequence": P.Sequence([P.WhitespaceSplit(), P.Punctuation("isolated"), P.Digits(True)]),
    "scripts_then_metaspace": P.Sequence([P.UnicodeScripts(), P.Metaspace(prepend_scheme="first")]),
    "metaspace_then_bytes": P.Sequence([P.Metaspace(), P.ByteLevel(add_prefix_space=True)]),
    "nothing": P.Sequence([]),
}
MODELS = {"byte_level": "byte_level", "sentencepiece": "sentencepiece", "unigram": "unigram"}


def in_bytes(**parts):
    """A model whose tokens are bytes: every difference of a normalizer or pre-tokenizer is seen."""
    def bytes_alone(model):
        model["merges"] = []

    pre_tokenizer = parts.pop("pre_tokenizer", None)
    after = P.ByteLevel(add_prefix_space=False, use_regex=False)
    return build("byte_level", bytes_alone, tokens=["<s>", AddedToken("tok", single_word=True), AddedToken("é")],
                 pre_tokenizer=P.Sequence([pre_tokenizer, after]) if pre_tokenizer else after, **parts)


@pytest.mark.parametrize("name", NORMALIZERS)
def test_normalizer(tmp_path, name):
    assert_same_or_refused(in_bytes(normalizer=NORMALIZERS[name]), tmp_path, LINES)


@pytest.mark.parametrize("name", SEQUENCES)
def test_normalizers_in_sequence(tmp_path, name):
    parts = [NORMALIZERS[part] for part in SEQUENCES[name]]
    assert_same_or_refused(in_bytes(normalizer=N.Sequence(parts)), tmp_path, LINES)


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_pre_tokenizer(tmp_path, name):
    """Every piece is unknown to this model, and so one token with the offsets of the piece."""
    tokenizer = build("word_level", tokens=["<s>", "tok"], pre_tokenizer=PRE_TOKENIZERS[name])
    assert_same(tokenizer, tmp_path, LINES)


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
@pytest.mark.parametrize("normalizer", ["NFD", "prepend", "replace_front", "bert_True_True_None_True"])
def test_pre_tokenizer_of_normalized_text(tmp_path, name, normalizer):
    """Alignment by bytes, of pieces that moved marks or inserted text lie in."""
    tokenizer = in_bytes(normalizer=NORMALIZERS[normalizer], pre_tokenizer=PRE_TOKENIZERS[name])
    assert_same_or_refused(tokenizer, tmp_path, LINES[:150])


def test_every_way_to_find_added_tokens(tmp_path):
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    tokens, text = ["<s>"], []
    for number, on in enumerate(itertools.product([True, False], repeat=5)):
        word = f"Tok{chr(65 + number)}"
        tokens.append(AddedToken(word, **dict(zip(flags, on))))
        text += [word, f"  {word}  ", f"x{word}", f"{word}y", f"{word}{word}", f"\u3000{word}\t", word.lower(), f"é{word}"]
    tokens += [AddedToken("ab"), AddedToken("abc"), AddedToken("bcd"), AddedToken(" b", rstrip=True), AddedToken("ÀÉ")]
    text += ["abcd", "ab cd", "xabcx", "  b  b", "Àé", "a\u0300e\u0301", "àé", "abc ab  bcd"]
    for normalizer in (None, N.Lowercase(), N.NFD(), N.Prepend("▁"), N.BertNormalizer()):
        if normalizer is not None and "Prepend" in str(normalizer):
            continue  # what is looked for would itself begin with the prefix
        tokenizer = build("byte_level", tokens=tokens, normalizer=normalizer,
                          pre_tokenizer=P.ByteLevel(add_prefix_space=False))
        assert_same(tokenizer, tmp_path, text + lines(400, seed=2, extra=text))


@pytest.mark.parametrize("kind", ["byte_level", "word_piece", "unigram"])
@pytest.mark.parametrize("special", [True, False])
def test_post_processors(tmp_path, kind, special):
    template = Q.TemplateProcessing(single="<s> $A </s> <s>", pair="$A $B", special_tokens=[("<s>", 0), ("</s>", 1)])
    short = Q.TemplateProcessing(single="<s> $A", pair="$A <s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    bert, roberta = Q.BertProcessing(("</s>", 1), ("<s>", 0)), Q.RobertaProcessing(("</s>", 1), ("<s>", 0), False, False)
    trim, prefixed = Q.ByteLevel(trim_offsets=True, add_prefix_space=False), Q.ByteLevel(trim_offsets=True)
    kept = Q.ByteLevel(trim_offsets=False)
    spaced = Q.TemplateProcessing(single="\u0120a $A", pair="$A $B", special_tokens=[("\u0120a", 7)])
    for processor in (template, short, bert, roberta, trim, prefixed, kept, spaced, Q.RobertaProcessing(("</s>", 1), ("<s>", 0)),
                      Q.Sequence([trim, template]), Q.Sequence([short, prefixed]), Q.Sequence([spaced, trim]),
                      Q.Sequence([short, bert]), Q.Sequence([bert, roberta]), Q.Sequence([short, short]), Q.Sequence([])):
        tokenizer = build(kind, tokens=["<s>", "</s>", AddedToken("tok", lstrip=True, rstrip=True)],
                          post_processor=processor, pre_tokenizer=P.ByteLevel(add_prefix_space=kind == "byte_level"))
        assert_same(tokenizer, tmp_path, LINES[:60], special)


DECODERS = {
    "bpe": D.BPEDecoder(), "bpe_suffix": D.BPEDecoder("e"), "byte_level": D.ByteLevel(), "word_piece": D.WordPiece(),
    "word_piece_plain": D.WordPiece("a", cleanup=False), "metaspace": D.Metaspace(),
    "metaspace_never": D.Metaspace("▁", "never"), "metaspace_first": D.Metaspace("▁", "first"),
    "ctc": D.CTC("<s>", "|", True), "ctc_plain": D.CTC("e", "|", False), "fuse": D.Fuse(), "fallback": D.ByteFallback(),
    "replace": D.Replace("▁", " "), "replace_regex": D.Replace(Regex("[aeiou]+"), "V"), "nothing": D.Sequence([]),
    "sequence": D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)]),
    "strip": D.Sequence([D.Fuse(), D.Replace(Regex("^"), "  x"), D.Replace(Regex("$"), "x "), D.Strip(" ", 3, 2)]),
    "none": None,
}


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece", "word_piece"])
def test_decoder(tmp_path, name, kind):
    tokenizer = build(kind, tokens=["<s>", "</s>", AddedToken("don't |tok"), AddedToken("é e")], decoder=DECODERS[name])
    size = tokenizer.get_vocab_size()
    lists = [[]] + [[(n * 7919 + k * k * 31) % size for k in range(n % 12)] for n in range(1, 300)]
    lists += [list(range(n, min(n + 40, size))) for n in range(0, size, 40)]
    if name == "strip":  # the package panics where nothing is left to strip
        return assert_same_text(tokenizer, tmp_path, [ids for ids in lists if ids])
    for special in (True, False):
        assert_same_text(tokenizer, tmp_path, lists, special)


@pytest.mark.parametrize("options", itertools.product([True, False], repeat=3), ids=str)
def test_unknown_characters_of_bpe(tmp_path, options):
    fuse, fallback, ignore = options

    def change(model):
        model.update(fuse_unk=fuse, byte_fallback=fallback, ignore_merges=ignore)
        if fallback:  # some bytes have no token: their characters are unknown after all
            model["vocab"] = {token: id for token, id in model["vocab"].items() if not token.startswith("<0xE")}

    assert_same(with_model("sentencepiece", change), tmp_path, LINES)


def test_bpe_without_an_unknown_token_drops_characters(tmp_path):
    tokenizer = with_model("sentencepiece", lambda model: model.update(unk_token=None, byte_fallback=False))
    assert_same(tokenizer, tmp_path, LINES)


def test_merges_as_strings(tmp_path):
    def change(model):
        model["merges"] = ["#version: 0.2"] + [" ".join(pair) for pair in model["merges"] if " " not in "".join(pair)]

    tokenizer = with_model("byte_level", change)
    whole = json.loads(tokenizer.to_str())
    change(whole["model"])
    assert_same(json.dumps(whole), tmp_path, LINES[:100])


def test_scores_of_unigram_tie_as_they_do_there(tmp_path):
    """Sums of the same scores in another order decide, to the last bit of how the package reads a number."""
    scores = [-9.841955184936523, -7.1234567890123456, -3.3333333333333335, -12.000000000000002, -1e-7, -5]

    def change(model):
        model["unk_id"] = 0
        model["vocab"] = [["<unk>", 0.0]] + [["a" * n, scores[n - 1] * n ** 0.9999999] for n in range(1, 7)]
        model["vocab"] += [["ab" * n, scores[n]] for n in range(1, 4)] + [["b", -4.25], ["-", -2.1], ["--", -4.2], ["---", -6.3]]

    text = ["a" * n for n in range(1, 60)] + ["ab" * n for n in range(1, 40)] + ["-" * n + "a" for n in range(40)]
    assert_same(with_model("unigram", change), tmp_path, text)


def test_words_of_word_piece_that_are_too_long(tmp_path):
    tokenizer = build("word_piece", pre_tokenizer=P.WhitespaceSplit(), normalizer=N.Lowercase())
    assert_same(tokenizer, tmp_path, ["a" * n for n in (99, 100, 101, 500)] + ["é" * n + " the" for n in (99, 100, 101)])
