"""What there is: relations in a folder, and relations that a catalog has."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from spiral_assets.relations.sources import expanded

_IMAGES: Final = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
_VIDEOS: Final = (".mp4", ".m4v", ".mov", ".mkv")
_FILES: Final = {".parquet": "parquet", ".jsonl": "jsonl"}  # kinds of one file, and of a folder of them


def in_folder(folder: str, prefix: str = "") -> dict[str, dict[str, Any]]:
    """Return the declared source of each child of a folder, by the relation's name.

    Lance datasets, files of Parquet or JSON lines, folders of such files, and folders of class folders with images or
    videos become relations; other children do not.

    Args:
        folder: to look into; variables of the environment are put in.
        prefix: before each name.
    """
    root = Path(expanded(folder)).expanduser()
    found = {}
    for child in sorted(root.iterdir()):
        kind = None if child.name.startswith(".") else _kind(child)
        if kind is not None:
            name = child.name.removesuffix(child.suffix) if child.suffix in {".lance", *_FILES} else child.name
            found[f"{prefix}.{name}" if prefix else name] = {"kind": kind, "path": f"{folder}/{child.name}"}
    return found


def in_catalog(folder: str) -> dict[str, dict[str, Any]]:
    """Return kind, place and rows of each relation that a catalog has, by name.

    Args:
        folder: of the catalog, or its place on an object store; variables of the environment are put in.
    """
    catalog_folder = expanded(folder)
    if "://" not in catalog_folder and not Path(catalog_folder).exists():  # opening it would make it
        return {}
    import spiral_stream as spiral
    from spiral_stream.report import source_facts

    catalog = spiral.connect(catalog_folder)
    entries = [catalog.entry(name) for name in catalog.tables()]
    facts = {entry.name: (source_facts(entry), entry.manifest().total) for entry in entries}
    return {name: {"kind": source.kind, "place": source.place, "rows": rows} for name, (source, rows) in facts.items()}


def _kind(child: Path) -> str | None:
    """Return the kind of source that a path is; None if it is none."""
    if child.is_file():
        return _FILES.get(child.suffix)
    if (child / "_versions").is_dir():
        return "lance"
    for ending, kind in _FILES.items():
        if any(child.glob(f"*{ending}")):
            return kind
    endings = {path.suffix.lower() for path in _first_files(child)}
    if endings & set(_IMAGES):
        return "image_folder"
    return "video_folder" if endings & set(_VIDEOS) else None


def _first_files(folder: Path) -> Iterator[Path]:
    """Yield a file of the first class folder that has one."""
    for below in sorted(folder.iterdir()):
        if below.is_dir():
            yield from (path for path, _ in zip(below.iterdir(), range(1), strict=False))
