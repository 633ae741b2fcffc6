"""What MkDocs cannot say in its settings: folders in the navigation, and pages for programs beside those for people."""

import shutil
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


def on_post_build(config: Any) -> None:
    """Put each page's Markdown into the site, since `llms.txt` names it."""
    docs, site = Path(config["docs_dir"]), Path(config["site_dir"])
    for page in docs.rglob("*.md"):
        place = site / page.relative_to(docs)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, place)
