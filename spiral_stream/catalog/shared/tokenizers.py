"""The tokenizers of a shared catalog in its mirror: files by name, and the contents that they stand for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from spiral_stream.catalog.database import trying
from spiral_stream.catalog.shared.mirror import shared_of
from spiral_stream.integrity.publish import write_file

TOKENIZERS: Final = "tokenizers"  # the folder, and the kind of records


def bring_names(root: Path) -> None:
    """Have the files of the names that a shared catalog has, and no others; does nothing in another one.

    Raises:
        CatalogError: the store failed, or the mirror cannot be written.
    """
    shared = shared_of(root)
    if shared is None:
        return
    there, folder = shared.records(TOKENIZERS), root / TOKENIZERS / "names"
    with trying(root, "mirror tokenizers"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, record in there.items():
            file, text = folder / f"{name}.json", _text(record.row).encode()
            if not file.exists() or file.read_bytes() != text:
                write_file(file, text)
        for file in folder.glob("*.json"):
            if file.stem not in there:
                file.unlink(missing_ok=True)


def bring_content(root: Path, name: str, content: Path) -> None:
    """Have the folder of the content that a name of a shared catalog stands for.

    Raises:
        CatalogError: the store failed, or a file is damaged.
    """
    shared = shared_of(root)
    record = None if shared is None or content.exists() else shared.record(TOKENIZERS, name)
    if shared is not None and record is not None:
        shared.bring(record, f"{content.relative_to(root)}/")


def keep_name(root: Path, name: str, text: str, content: Path, *, replace: bool) -> bool | None:
    """Write a name and its content to a shared catalog; whether the name was free, None in another catalog.

    Raises:
        CatalogError: the store failed, or may not be written.
    """
    shared = shared_of(root)
    if shared is None:
        return None
    files = [str(file.relative_to(root)) for file in sorted(content.glob("[!.]*"))]
    return shared.keep(TOKENIZERS, name, {"file": text}, files, absent=not replace)


def drop_name(root: Path, name: str) -> bool:
    """Remove a name from a shared catalog, whose contents stay; whether the catalog is one.

    Raises:
        CatalogError: the store failed, or may not be written.
    """
    shared = shared_of(root)
    if shared is not None:
        shared.remove(TOKENIZERS, name)
    return shared is not None


def _text(row: Mapping[str, object] | None) -> str:
    return str((row or {}).get("file", ""))
