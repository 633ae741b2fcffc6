"""Text that every machine has: documents of installed packages and of Python's standard library.

There are three collections. Their order depends only on the files of this machine:

* `packages`: descriptions, licences, READMEs and notes that come with installed packages; Markdown is cut at its
  headings, and a text that several packages share counts once.
* `articles`: the interpreter's help topics, and the docstrings of each module, class and function of the library.
* `sources`: the library's source files; those above `WHOLE` characters are cut into their functions and classes.

Parsing the library (11 MB) costs 3 CPU s; a collection stops when it has the characters that it was asked for,
from files in an order by hash, so that a part of it is drawn from everywhere.
"""

import ast
import hashlib
import os
import re
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Final, final

WHOLE: Final = 4_000  # characters up to which a source file stays one document
SHORTEST: Final = 40  # characters of a docstring that makes an article of its own
LARGEST_FILE: Final = 400_000  # bytes: above it lie generated tables
NOTES: Final = (".md", ".rst", ".txt")
NAMED: Final = ("readme", "license", "licence", "copying", "notice", "authors", "changelog", "changes")
NO_LIBRARY: Final = {"site-packages", "dist-packages", "idlelib", "pydoc_data", "test", "tests"}
HEADING: Final = re.compile(r"^(?=#{1,3} \S)", re.MULTILINE)


@final
@dataclass(frozen=True, slots=True)
class Document:
    """A text and where it comes from."""

    path: str  # of its file and its place there: the same as long as the package is
    text: str
    origin: str  # url, page or repository, by collection
    license: str = ""


def packages() -> Iterator[Document]:
    """Yield descriptions, licences and notes of installed packages, package by package."""
    seen: set[bytes] = set()
    found = {_name(each): each for each in metadata.distributions()}
    for name in sorted(found):
        each = found[name]
        said = each.metadata.json
        home = _home(said, name)
        for path, text in _files(each, str(said.get("description", ""))):
            for part, piece in enumerate(HEADING.split(text) if path.endswith((".md", "METADATA")) else [text]):
                digest = hashlib.blake2b(piece.strip().encode()).digest()
                if piece.strip() and digest not in seen:
                    seen.add(digest)
                    yield Document(f"{name}/{path}#{part}", piece, home)


def articles(characters: int) -> Iterator[Document]:
    """Yield help topics for at most half of the characters, then docstrings for the rest."""
    topics: dict[str, str] = import_module("pydoc_data.topics").topics
    left = characters
    for name in _shuffled(topics):
        if left <= characters // 2:
            break
        yield Document(f"topics/{name}", topics[name], name)
        left -= len(topics[name])
    for file in library():
        if left <= 0:
            return
        for name, text in _docstrings(file):
            yield Document(f"{file.path}#{name}", text, name)
            left -= len(text)


def sources(characters: int) -> Iterator[Document]:
    """Yield source files and their parts until there are enough characters."""
    left = characters
    for file in library():
        if left <= 0:
            return
        for part, text in _parts(file):
            yield Document(
                f"{file.path}#{part}", text, f"python/{file.path.split('/')[0].removesuffix('.py')}", "PSF-2.0"
            )
            left -= len(text)


@final
@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of the standard library, parsed."""

    path: str  # under the library
    text: str
    tree: ast.Module

    @property
    def module(self) -> str:
        """The name under which it is imported."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def library() -> Iterator[SourceFile]:
    """Yield the files of the standard library except tests, ordered by a hash of their paths."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in _shuffled(_python_files(root)):
        text = _read(root / path)
        try:
            tree = ast.parse(text or "")
        except (SyntaxError, ValueError):  # templates, and files for other versions
            continue
        if text is not None:
            yield SourceFile(path, text, tree)


def _python_files(root: Path) -> Iterator[str]:
    """Yield the paths of the library's files; folders that are left out are not entered, and some have 25,000 files."""
    for folder, below, files in os.walk(root):
        below[:] = [name for name in below if name not in NO_LIBRARY]
        inside = Path(folder).relative_to(root)
        yield from ((inside / name).as_posix() for name in files if name.endswith(".py"))


def _shuffled(names: Iterable[str]) -> list[str]:
    """Return names ordered by their hash."""
    return sorted(names, key=lambda name: hashlib.blake2b(name.encode()).digest())


def _docstrings(file: SourceFile) -> Iterator[tuple[str, str]]:
    """Yield the docstrings of a module, its functions and its classes; a class includes its methods."""
    module = ast.get_docstring(file.tree)
    if module and len(module) >= SHORTEST:
        yield file.module, module
    for node in file.tree.body:
        if isinstance(node, ast.ClassDef):
            inner = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            said = [
                ast.get_docstring(node),
                *(f"{each.name}: {text}" for each in inner if (text := ast.get_docstring(each))),
            ]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            said = [ast.get_docstring(node)]
        else:
            continue
        text = "\n\n".join(filter(None, said))
        if len(text) >= SHORTEST:
            yield f"{file.module}.{node.name}", text


def _parts(file: SourceFile) -> Iterator[tuple[str, str]]:
    """Yield a short file whole, even an empty one; of a longer file its functions and classes, then the rest."""
    if len(file.text) <= WHOLE:
        yield "", file.text
        return
    lines, rest, at = file.text.splitlines(keepends=True), list[str](), 0
    for node in file.tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.end_lineno is not None:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)]) - 1
            rest += lines[at:first]
            yield f"{node.name}:{node.lineno}", "".join(lines[first : node.end_lineno])
            at = node.end_lineno
    yield "", "".join([*rest, *lines[at:]])


def _files(package: metadata.Distribution, described: str) -> Iterator[tuple[str, str]]:
    """Yield the description, and the files that are meant for people."""
    yield "METADATA", described
    for file in sorted(package.files or (), key=str):
        name = file.name.lower()
        if not (name.endswith(NOTES) or (name.startswith(NAMED) and not file.suffix)):
            continue
        text = _read(Path(str(file.locate())))
        if text is not None and not name.startswith(("record", "top_level", "entry_points")):
            yield str(file), text


def _read(path: Path) -> str | None:
    """Return the text of a file, or None if it is not text or too large."""
    try:
        return path.read_text("utf-8") if path.stat().st_size <= LARGEST_FILE else None
    except (OSError, UnicodeDecodeError):
        return None


def _name(package: metadata.Distribution) -> str:
    return re.sub(r"[-_.]+", "-", package.metadata["Name"] or "unnamed").lower()


def _home(said: dict[str, Any], name: str) -> str:
    """Return the address of a package's home page, or a placeholder."""
    addresses = [address for each in said.get("project_url", ()) if (address := each.partition(",")[2].strip())]
    return str(said.get("home_page") or next(iter(addresses), f"package://{name}"))
