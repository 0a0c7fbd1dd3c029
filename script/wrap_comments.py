#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Moves words of comment lines beyond 120 columns to the next line. clang-format would reflow formulas and tables, too.

    python script/wrap_comments.py FILE...
"""

import re
import sys
from pathlib import Path

COLUMNS = 120
COMMENT = re.compile(r"(\s*(?:///|//) )(\S.*)")


def wrapped(lines):
    lines = list(lines)
    for i, line in enumerate(lines):  # grows while it runs
        comment = COMMENT.fullmatch(line)
        if len(line) <= COLUMNS or not comment:
            continue
        cut = line.rfind(" ", len(comment.group(1)), COLUMNS + 1)
        if cut < 0:
            continue
        lines[i], rest = line[:cut], line[cut + 1:]
        following = COMMENT.fullmatch(lines[i + 1]) if i + 1 < len(lines) else None
        if following and following.group(1) == comment.group(1):
            lines[i + 1] = f"{comment.group(1)}{rest} {following.group(2)}"
        else:
            lines.insert(i + 1, comment.group(1) + rest)
    return lines


def main():
    for name in sys.argv[1:]:
        path = Path(name)
        before = path.read_text()
        after = "\n".join(wrapped(before.split("\n")))
        if after != before:
            path.write_text(after)


if __name__ == "__main__":
    main()
