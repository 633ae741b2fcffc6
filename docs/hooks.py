"""What MkDocs cannot say in its settings: folders in the navigation, and pages for programs beside those for people."""

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEAD = """# Spiral

> Spiral turns a catalog of images, text and video into the exact sequence of batches that a training run sees. The Python \
package is `spiral_stream`; import it as `import spiral_stream as spiral`.

A program registers a source in a catalog, takes the relation, filters and joins rows, calls `sample` with an order and \
`collate` with fields, and iterates `to_torch()`, `to_numpy()` or `to_jax()`. A batch is a function of plan, data, epoch and \
place: threads, ranks and caches change only the speed.
"""
ROOMS = """# The rooms

Every module of `spiral_stream`, by its folder, with the first sentence of its docstring. The
folders are described under [Architecture](architecture.md). Written by `docs/hooks.py`.
"""
BEGIN, END = "<!-- folders: docs/hooks.py -->\n", "<!-- end -->"
NOT_PROSE = ("#", "|", "![", ":::", "*", "<", "!!!")


def on_config(config: Any) -> Any:
    """Replace every ``name: folder/`` of the navigation by the folder's pages."""
    config["nav"] = [_expanded(entry, Path(config["docs_dir"])) for entry in config["nav"]]
    return config


def _expanded(entry: Any, docs: Path) -> Any:
    if isinstance(entry, list):
        return [_expanded(each, docs) for each in entry]
    if isinstance(entry, dict):
        return {name: _expanded(value, docs) for name, value in entry.items()}
    if not entry.endswith("/"):
        return entry
    pages = sorted(
        (docs / entry).glob("*.md"), key=lambda page: (page.name != "index.md", page.name)
    )
    return [page.relative_to(docs).as_posix() for page in pages]


def on_post_build(config: Any) -> None:
    """Put each page's Markdown into the site, since `llms.txt` names it."""
    docs, site = Path(config["docs_dir"]), Path(config["site_dir"])
    for page in docs.rglob("*.md"):
        place = site / page.relative_to(docs)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, place)


def list_for_programs(docs: Path, nav: list[dict[str, Any]]) -> str:
    """What `llms.txt` holds (llmstxt.org): every page of the navigation but records, its title and first sentence."""
    parts = [HEAD]
    for name, pages in _sections(nav[1:]):
        entries = [_entry(docs, page) for page in pages if not page.endswith("/")]
        if entries:
            parts.append("\n".join([f"## {name}", "", *entries, ""]))
    return "\n".join(parts)


def _sections(nav: list[dict[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    for section in nav:
        for name, pages in section.items():
            if isinstance(pages, list) and isinstance(pages[0], dict):
                yield from ((f"{name}: {part}", each) for part, each in _sections(pages))
            else:
                yield name, pages if isinstance(pages, list) else [pages]


def _entry(docs: Path, page: str) -> str:
    text = re.sub(r"\A---\n.*?\n---\n", "", (docs / page).read_text(), flags=re.DOTALL)
    title, text = re.sub(r"```.*?```", "", text, flags=re.DOTALL).strip().split("\n", 1)
    prose = (each.strip() for each in re.split(r"\n\s*\n", text))
    first = next((each for each in prose if each and not each.startswith(NOT_PROSE)), "")
    first = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", " ".join(first.split())).replace(
        "**", ""
    )
    sentence = re.split(r"(?<=[.:!?])\s", first, maxsplit=1)[0].rstrip(":")
    return f"- [{title.removeprefix('# ')}]({page})" + (f": {sentence}" if sentence else "")


def folders(package: Path) -> str:
    """The table of `architecture.md`: what each folder says of itself in its `__init__`."""
    rows = [
        "| folder | decides | start at | may not know |",
        "|---|---|---|---|",
    ]
    for place in sorted(package.rglob("__init__.py")):
        if place.parent == package:
            continue
        said = ast.get_docstring(ast.parse(place.read_text())) or ""
        found = re.match(
            r"(.+?)\n\nStart at: (.+?)\.\nMay not know: (.+?)\.(?:\n\n|$)", said, re.DOTALL
        )
        if found is None:
            message = f"{place}: no map. Say what it decides, 'Start at: ...', 'May not know: ...'"
            raise ValueError(message)
        name = place.parent.relative_to(package).as_posix()
        rows.append(
            f"| `{name}/` | "
            + " | ".join(" ".join(each.split()) for each in found.groups())
            + " |"
        )
    return "\n".join(rows) + "\n"


def rooms(package: Path) -> str:
    """`rooms.md`: every room by its folder, with the first sentence of what it says of itself."""
    parts = [ROOMS]
    for folder in sorted(
        {package, *(each.parent for each in package.rglob("__init__.py"))}
    ):
        name = folder.relative_to(package.parent).as_posix()
        entries = []
        for room in sorted(folder.glob("[a-z]*.py")):
            said = ast.get_docstring(ast.parse(room.read_text())) or ""
            sentence = re.split(r"(?<=[.!?])\s|\n\n", said, maxsplit=1)[0]
            sentence = " ".join(sentence.split()).replace("|", "\\|")
            entries.append(f"| `{room.name}` | {sentence} |")
        if not entries:
            continue  # a namespace: its names live elsewhere
        parts.append("\n".join([f"## {name}", "", "| room | |", "|---|---|", *entries, ""]))
    return "\n".join(parts)


def in_place(page: str, made: str) -> str:
    """The page with what is made between the marks."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + "\n" + made + END + rest.partition(END)[2]


if __name__ == "__main__":
    import yaml

    root = Path(__file__).parents[1]
    page = root / "docs" / "architecture.md"
    page.write_text(in_place(page.read_text(), folders(root / "spiral_stream")))
    (root / "docs" / "rooms.md").write_text(rooms(root / "spiral_stream"))
    written = re.sub(r"!!python/name:\S+", "''", (root / "mkdocs.yml").read_text())
    made = list_for_programs(root / "docs", yaml.safe_load(written)["nav"])
    (root / "docs" / "llms.txt").write_text(made)
