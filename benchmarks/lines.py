"""Lines of code by folder: without docstrings, blank lines, comment lines and imports.

    python -m benchmarks.lines [TREE] [--deep]

A line counts if a token of the program lies on it, other than of an import or a docstring; a text over several lines counts
each of them that is not blank. ``--deep`` lists the folders in a folder too.
"""

import argparse
import ast
import io
import tokenize
from collections import Counter
from pathlib import Path
from typing import Final

PACKAGES: Final = ("spiral_stream", "spiral_assets")
_SILENT: Final = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)


def code_lines(text: str) -> int:
    """Return how many lines of a module are code.

    >>> code_lines('"Doc."\\nimport os\\n\\n# why\\nx = (  # a\\n    1,\\n)\\n')
    3
    """
    left_out = set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                left_out |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    found, written = set[int](), text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SILENT:
            found |= {at for at in range(token.start[0], token.end[0] + 1) if written[at - 1].strip()}
    return len(found - left_out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", nargs="?", type=Path, default=Path())
    parser.add_argument("--deep", action="store_true")
    asked = parser.parse_args()
    for package in PACKAGES:
        folders = Counter[str]()
        for room in sorted((asked.tree / package).rglob("*.py")):
            parts = room.relative_to(asked.tree).parent.parts
            folders["/".join(parts if asked.deep else parts[:2])] += code_lines(room.read_text())
        for folder, lines in sorted(folders.items()):
            print(f"{lines:7,} {folder}/")
        print(f"{folders.total():7,} {package}")


if __name__ == "__main__":
    main()
