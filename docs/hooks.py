"""What MkDocs cannot say in its settings: a folder in the navigation stands for its pages."""

from pathlib import Path
from typing import Any


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
