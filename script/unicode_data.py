#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes src/text/unicode_data.cc: what single code points are to the package `tokenizers`, by asking it.

    .venv/bin/python script/unicode_data.py > src/text/unicode_data.cc

The package mixes tables of several versions of Unicode, from 8 to the newest. Asking it is the one way to agree with all
of them. tests/python/test_tokenizer_unicode.py holds the program against the package for every code point.
"""

import sys

from tokenizers import Regex, normalizers, pre_tokenizers

POINTS = [*range(0xD800), *range(0xE000, 0x110000)]
HIGHEST_CLASS = "\u0345"  # the only mark of combining class 240: all others are sorted before it


def bert(**on):
    options = dict.fromkeys(("clean_text", "handle_chinese_chars", "strip_accents", "lowercase"), False)
    return normalizers.BertNormalizer(**{**options, **on}).normalize_str


def splits(pre_tokenizer, inside="\x01{}\x01"):
    """Whether a character stands alone between two others."""
    return lambda c: len(pre_tokenizer.pre_tokenize_str(inside.format(c))) == 3


def regex(pattern):
    return splits(pre_tokenizers.Split(Regex(pattern), "isolated"))


def vanishes(normalize):
    return lambda c: normalize(f"a{c}b") == "ab"


def predicates():
    word = pre_tokenizers.Whitespace()
    nfd = normalizers.NFD().normalize_str
    return {
        "kNumeric": splits(pre_tokenizers.Digits(True)),
        "kPunctuation": splits(pre_tokenizers.Punctuation()),
        "kOther": vanishes(bert(clean_text=True)),
        "kNonspacing": vanishes(bert(strip_accents=True)),
        "kCombining": vanishes(normalizers.StripAccents().normalize_str),
        "kWord": lambda c: len(word.pre_tokenize_str(f"a{c}b")) == 1,
        "kReordered": lambda c: nfd(f"a{HIGHEST_CLASS}{c}") != f"a{HIGHEST_CLASS}{nfd(c)}",
        "kDecomposed": lambda c: normalizers.NFKD().normalize_str(c) != c,
        "kNumber": regex(r"\p{N}"),
        "kMark": regex(r"\p{M}"),
        "kUpperLetter": regex(r"\p{Lu}"),
        "kTitleLetter": regex(r"\p{Lt}"),
        "kLowerLetter": regex(r"\p{Ll}"),
        "kModifierLetter": regex(r"\p{Lm}"),
        "kOtherLetter": regex(r"\p{Lo}"),
        "kPunctuationMark": regex(r"\p{P}"),
        "kSymbol": regex(r"\p{S}"),
    }


def runs(holds):
    """[first, last] of every run of code points for which it holds."""
    found = []
    for point in POINTS:
        if not holds(chr(point)):
            continue
        if found and found[-1][1] == point - 1:
            found[-1][1] = point
        else:
            found.append([point, point])
    return found


def gaps(found):
    """Runs as pairs: code points skipped since the last run, code points in this one."""
    end, numbers = 0, []
    for first, last in found:
        numbers += [first - end, last - first + 1]
        end = last + 1
    return numbers


def lower_cases():
    """Runs of code points whose lower case is a constant distance away, at a constant step: first, count, step, distance."""
    lower = normalizers.Lowercase().normalize_str
    moved = [(point, ord(lower(chr(point))) - point) for point in POINTS
             if len(lower(chr(point))) == 1 and lower(chr(point)) != chr(point)]
    found = []
    for point, distance in moved:
        if found:
            first, count, step, same = found[-1]
            gap = point - (first + (count - 1) * step)
            if same == distance and gap <= 2 and (count == 1 or gap == step):
                found[-1] = (first, count + 1, gap, distance)
                continue
        found.append((point, 1, 1, distance))
    return [number for run in found for number in run]


def scripts():
    """Runs of one script, as pairs: code points in the run, the number of its script. Script 0 joins any other."""
    pieces = pre_tokenizers.UnicodeScripts().pre_tokenize_str

    def apart(a, b):
        return len(pieces(a + b)) == 2

    found, examples = [], []  # examples[n - 1] is of script n
    for point in POINTS:
        c = chr(point)
        if not pieces(c):
            number = 0
        elif found and found[-1][1] and not apart(examples[found[-1][1] - 1], c):
            number = found[-1][1]
        else:
            number = next((n for n, example in enumerate(examples, 1) if not apart(example, c)), 0)
            if number == 0:
                examples.append(c)
                number = len(examples)
        if point == 0xE000:
            found.append([0x800, 0])  # surrogates
        if found and found[-1][1] == number:
            found[-1][0] += 1
        else:
            found.append([1, number])
    return [number for run in found for number in run]


def table(kind, name, numbers):
    lines, line = [], "   "
    for number in numbers:
        if len(line) + len(f" {number},") > 118:
            lines.append(line)
            line = "   "
        line += f" {number},"
    return f"const {kind} {name}[] = {{\n" + "\n".join([*lines, line.rstrip(",")]) + "};\n" + \
        f"const size_t {name}Size = {len(numbers)};\n"


def main():
    out = sys.stdout.write
    out("// SPDX-License-Identifier: Apache-2.0\n// Written by script/unicode_data.py.\n"
        '#include "text/unicode_data.h"\n\nnamespace qkv::unicode_data {\n\n// clang-format off\n')
    for name, holds in predicates().items():
        out(table("uint32_t", name, gaps(runs(holds))))
    out(table("int32_t", "kLowerCase", lower_cases()))
    out(table("uint32_t", "kScripts", scripts()))
    out("// clang-format on\n\n}  // namespace qkv::unicode_data\n")


if __name__ == "__main__":
    main()
