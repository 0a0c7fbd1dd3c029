# SPDX-License-Identifier: Apache-2.0
"""Each rule of script/lint_rules.py finds what it must and lets pass what it may."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "script"))
import lint_rules  # noqa: E402
import wrap_comments  # noqa: E402

CODE = """
namespace a {
struct X : Y {
  X(int a, Map b = {}) : c_(a), d_{b} {
    // }
    call("}");
  }
  X& operator=(const X& x) { return *this; }
};
int table[] = {1, 2,
  3};
TEST(A, b) {
  char brace = '}';
  int million = 1'000'000;
}
auto lambda = [](int x) {
  return R"(
  } } )";
};
template <class T>
requires(sizeof(T) > 1)
void last(T x) {
  if (x) {
  }
}
}  // namespace a
"""


def test_function_lengths_survive_braces_in_text_and_initialisers():
    found = [(function.line, function.lines) for function in lint_rules.functions(CODE)]
    assert found == [(4, 4), (8, 1), (12, 4), (16, 4), (20, 6)]


@pytest.mark.parametrize("path, limit", [("src/tensor/a.cc", 80), ("src/kernels/a-inl.h", 120)])
def test_long_functions_fail_and_kernels_may_be_longer(path, limit):
    def faults(lines):
        return list(lint_rules.size_faults(path, "void f() {\n" + "g();\n" * (lines - 2) + "}\n"))
    assert faults(limit) == []
    assert f"a function of {limit + 1} lines, at most {limit}" in faults(limit + 1)[0]


def test_long_files_and_lines_fail():
    assert list(lint_rules.size_faults("a.cc", "x;\n" * 500)) == []
    assert "501 lines" in list(lint_rules.size_faults("a.cc", "x;\n" * 501))[0]
    assert "121 columns" in list(lint_rules.size_faults("a.cc", "x" * 121 + "\n"))[0]


@pytest.mark.parametrize("path, include, fault", [
    ("src/tensor/a.cc", '"qkv/support/error.h"', None),
    ("src/tensor/a.cc", '"tensor/mapping.h"', None),
    ("src/tensor/a.cc", '"attention/mask.h"', "stands to its right"),
    ("src/kernels/a.cc", '"qkv/attention/options.h"', "stands to its right"),
    ("src/train/a.cc", '"qkv/generate/cache.h"', "stands to its right"),
    ("src/tensor/a.cc", '"qkv/attention.h"', "stands to its right"),
    ("tests/tensor/a_test.cc", '"qkv/attention/reference.h"', "stands to its right"),
    ("src/text/a.cc", '"tensor/mapped_file.h"', None),
    ("src/text/a.cc", '"kernels/registry.h"', "needs support and tensor alone"),
    ("include/qkv/text/a.h", '"qkv/attention.h"', "needs support and tensor alone"),
    ("bench/a.cc", '"attention/plan.h"', None),
    ("cli/a.cc", '"qkv/attention.h"', None),
    ("include/qkv/tensor/a.h", '"tensor/mapping.h"', "not installed"),
    ("include/qkv/tensor/a.h", "<hwy/highway.h>", "only the standard library"),
    ("include/qkv/tensor/a.h", "<vector>", None),
])
def test_include_direction(path, include, fault):
    found = list(lint_rules.include_faults(path, f"#include {include}\n"))
    assert (found == []) if fault is None else (len(found) == 1 and fault in found[0])


def test_links_paths_and_first_lines_of_a_whole_tree(tmp_path):
    files = {
        "README.md": "# Top\n## Two words\n[a](docs/a.md#here) [b](gone.md) [c](docs/a.md#there) [d](#two-words)\n"
                     "`src/gone.cc` `src/<room>/*.cc`\n```\n[e](not-a-link.md)\n```\n",
        "docs/a.md": "# Here\n[up](../README.md) [out](https://example.org)\n",
        "src/tensor/a.cc": "int x;\n",
        "script/run": "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    assert list(lint_rules.faults(tmp_path)) == [
        "README.md: links to gone.md, which does not exist",
        "README.md: links to docs/a.md#there, but there is no such heading",
        "README.md: speaks of src/gone.cc, which does not exist",
        "src/tensor/a.cc: the first line must name the licence: SPDX-License-Identifier: Apache-2.0",
    ]


def test_long_comments_are_wrapped_and_formulas_kept():
    words = "word " * 30
    lines = [f"  // {words}end", "  // goes on", "  //   s = q k", "int x;  // " + words, f"/// {words}end", "f();"]
    result = wrap_comments.wrapped(lines)
    assert result[1] == "  // word word word word word word word end goes on"
    assert result[2:4] == lines[2:4]
    assert result[5:] == ["/// word word word word word word word end", "f();"]
    assert all(len(line) <= 120 for line in result if not line.startswith("int"))
