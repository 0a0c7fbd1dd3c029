#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The rules of this tree that no common tool knows: first lines, sizes, include direction, documentation links.

    python script/lint_rules.py [FOLDER]    prints one line a fault; exit 1 when there is one
"""

import ast
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

COLUMNS = 120
FILE_LINES = 500
FUNCTION_LINES = 80
KERNEL_LINES = 120  # functions of *-inl.h, which are unrolled by hand
SPDX = "SPDX-License-Identifier: Apache-2.0"

# A room may include itself and those of a smaller rank: docs/design.md.
RANK = {"support": 0, "tensor": 1, "kernels": 2, "attention": 3, "positions": 4, "nn": 5,
        "text": 6, "models": 7, **dict.fromkeys(("train", "generate", "search", "inspect", "geometry", "dist"), 8), "cli": 9,
        "python": 10}
ONLY = {"text": {"support", "tensor"}}  # what a room may include, where that is less than all of a smaller rank
TOP_HEADERS = {"version": "support", "attention": "attention", "nn": "nn"}  # include/qkv/<name>.h and the room it stands for

FOLDERS = "src|include|tests|cli|bench|demo|docs|script|cmake|fuzz|python"

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)


# ---- Sizes of functions

@dataclass
class Function:
    line: int
    lines: int
    text: str


def without_comments_and_strings(text):
    """The same text, line for line, with comments and preprocessor lines blanked and literals emptied."""
    token = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"'
        r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'"
        r'|^[ \t]*#(?:[^\n\\]|\\.|\\\n)*', re.S | re.M)

    def blank(match):
        quotes = '""' if match.group().endswith('"') else ""
        return quotes + "\n" * match.group().count("\n")

    return token.sub(blank, text)


def brace_kind(statement):
    """What `{` after this text, outside any function, opens: a function, an initialiser, or a scope."""
    if statement.count("(") > statement.count(")") or re.search(r"=\s*$", statement):
        return "initialiser"
    head = re.sub(r"template\s*<[^{}]*?>(?=\s)", "", statement)
    if "(" not in head or re.search(r"(^|\s)(namespace|class|struct|union|enum)\s[^()]*$", head):
        return "scope"
    return "function"


def functions(text):
    """Every function of a C++ text: its first line, its number of lines, and how it begins."""
    code = without_comments_and_strings(text)
    found, scopes, statement, first, line = [], [], "", 0, 1  # scopes: None, or the function or initialiser it is
    for position, character in enumerate(code):
        line += character == "\n"
        outside = not any(scopes)
        if outside and not statement.strip():
            statement, first = "", line
        if character == "{":
            kind = brace_kind(statement) if outside else "scope"
            scopes.append((kind, first, " ".join(statement.split())[:60]) if kind != "scope" else None)
            if kind == "scope" and outside:
                statement = ""
        elif character == "}" and scopes:
            opened = scopes.pop()
            if opened and (opened[0] == "initialiser" or code[position + 1:].lstrip()[:1] in (",", "{")):
                statement += "{}"  # a default argument, a table, or `member_{value}` in a constructor's list
            elif opened:
                found.append(Function(opened[1], line - opened[1] + 1, opened[2]))
            if not statement.endswith("{}") and not any(scopes):
                statement = ""
        elif outside:
            statement = "" if character == ";" else statement + character
    return found


def python_functions(text):
    nodes = ast.walk(ast.parse(text))
    return [Function(node.lineno, node.end_lineno - node.lineno + 1, f"def {node.name}") for node in nodes
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def size_faults(path, text):
    lines = text.count("\n")
    for number, line in enumerate(text.split("\n") if path.endswith((".h", ".cc")) else [], 1):
        if len(line) > COLUMNS:
            yield f"{path}:{number}: {len(line)} columns, at most {COLUMNS}"
    if lines > FILE_LINES:
        yield f"{path}: {lines} lines, at most {FILE_LINES}"
    limit = KERNEL_LINES if path.endswith("-inl.h") else FUNCTION_LINES
    for function in python_functions(text) if path.endswith(".py") else functions(text):
        if function.lines > limit:
            yield f"{path}:{function.line}: a function of {function.lines} lines, at most {limit}: {function.text}"


# ---- Includes

def room_of(path):
    """The room a file belongs to, and None for what belongs to none (benchmarks, demo, shared test helpers)."""
    parts = path.split("/")
    if parts[0] in ("cli", "python"):
        return parts[0]
    if parts[:2] == ["include", "qkv"]:
        parts = parts[1:]
    elif parts[0] not in ("src", "tests"):
        return None
    if len(parts) == 2 and parts[0] == "qkv":
        return TOP_HEADERS.get(parts[1].removesuffix(".h"))
    return parts[1] if len(parts) > 2 and parts[1] in RANK else None


def room_of_include(target):
    parts = target.split("/")
    if parts[0] == "qkv":
        return TOP_HEADERS.get(parts[1].removesuffix(".h")) if len(parts) == 2 else parts[1]
    return parts[0] if len(parts) > 1 and parts[0] in RANK else None


def include_faults(path, text):
    room = room_of(path)
    public = path.startswith("include/")
    for mark, target in INCLUDE.findall(text):
        if public and mark == '"' and not target.startswith("qkv/"):
            yield f"{path}: a public header includes \"{target}\", which is not installed"
        if public and mark == "<" and re.search(r"[/.]", target):
            yield f"{path}: a public header includes <{target}>; only the standard library and qkv may stand there"
        entered = room_of_include(target)
        if room is None or entered is None or entered == room:
            continue
        if entered not in RANK:
            yield f"{path}: includes {target} of an unknown room"
        elif RANK[entered] >= RANK[room]:
            yield f"{path}: {room} may not include {target}: {entered} stands to its right"
        elif entered not in ONLY.get(room, RANK):
            yield f"{path}: {room} may not include {target}: it needs {' and '.join(sorted(ONLY[room]))} alone"


# ---- Documents

def anchors(text):
    """The anchors that headings of a Markdown text give."""
    headings = re.findall(r"^#{1,6}\s+(.*?)\s*#*$", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def document_faults(root, path, text):
    prose = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (root / path).parent / name if name else root / path
        if not file.exists():
            yield f"{path}: links to {target}, which does not exist"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
            yield f"{path}: links to {target}, but there is no such heading"
    # Paths in code marks must lead somewhere, too; <room> and * stand for names.
    for target in re.findall(rf"`((?:{FOLDERS})/[\w./*<>{{}},-]*)`", prose):
        pattern = re.sub(r"<[^>]*>|\{[^}]*\}", "*", target).rstrip("/")
        if not any(root.glob(pattern)) and not any((root / path).parent.glob(pattern)):
            yield f"{path}: speaks of {target}, which does not exist"


# ---- All files

def first_line_faults(path, text):
    head = text.split("\n", 2)
    line = head[1] if head[0].startswith("#!") and len(head) > 1 else head[0]
    if SPDX not in line:
        yield f"{path}: the first line must name the licence: {SPDX}"


def tree_files(root):
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return sorted(path for path in listed.split("\0") if path and (root / path).is_file())


def faults(root):
    for path in tree_files(root):
        is_script = path.startswith(("script/", ".ci/")) and "." not in path.rsplit("/", 1)[1]
        is_source = path.endswith((".h", ".cc", ".py"))
        if not (is_script or is_source or path.endswith(".md")):
            continue
        text = (root / path).read_text()
        if path.endswith(".md"):
            yield from document_faults(root, path, text)
            continue
        yield from first_line_faults(path, text)
        if is_source:
            yield from size_faults(path, text)
        if path.endswith((".h", ".cc")):
            yield from include_faults(path, text)


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
    found = list(faults(root))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
