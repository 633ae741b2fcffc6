"""The command ``spiral init``: from data to a program that trains on it."""

import os
from pathlib import Path
from typing import Annotated

import typer

from spiral_stream.commands.command_words import console, here
from spiral_stream.commands.first_program import DataFound, definitions, look, program, typed_options
from spiral_stream.connection import connect
from spiral_stream.display.progress import working
from spiral_stream.errors import SpiralError, cut

_PROGRAM = "train.py"
_CATALOG = "catalog"


def init(
    path: Annotated[str, typer.Argument(help="A file, a folder, a pattern, or a URI.")],
    dagster: Annotated[bool, typer.Option("--dagster", help="Also write defs/ and dg.toml, for Dagster.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Write over files, and replace another relation of that name.")
    ] = False,
    where: Annotated[
        str | None, typer.Option("--catalog", envvar="SPIRAL_CATALOG", help="Folder or URI of the catalog.")
    ] = None,
) -> None:
    """Look at data, register it, and write train.py, a program that trains on it. Comments say what was guessed."""
    catalog = where or _CATALOG
    _need_free_folder(path)
    _need_free([_PROGRAM, *(["dg.toml", "defs"] if dagster else [])], force=force)
    with working("init"):
        found = look(path, connect(catalog), force=force, made=not dagster)
    files = {_PROGRAM: program(found, catalog)} | (definitions(found, catalog) if dagster else {})
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")
    for line in _said(found, list(files), catalog):
        console(plain=True).print(line, soft_wrap=True)


def _need_free_folder(path: str) -> None:
    """Refuse data around the place of the program: the catalog would lie inside the data.

    Raises:
        SpiralError: says where to go.
    """
    folder, data = Path.cwd(), here(path)
    if data is not None and data.resolve() in (folder, *folder.parents):
        msg = (
            f"init: {cut(path)} holds this folder, so the catalog would lie in the data. Make a folder beside the data, and "
            "call init in it"
        )
        raise SpiralError(msg)


def _need_free(names: list[str], *, force: bool) -> None:
    """Refuse to write over what is there.

    Raises:
        SpiralError: something is.
    """
    there = [name for name in names if os.path.lexists(name)]
    if there and not force:
        msg = f"init: {', '.join(there)} is there already. Move it, call init in another folder, or give --force to write over it"
        raise SpiralError(msg)


def _said(found: DataFound, files: list[str], catalog: str) -> list[str]:
    options = "".join(f" --option {each}" for each in typed_options(found.options))
    images = "".join(f" --image {name}" for name in found.semantic)
    elsewhere = "" if catalog == _CATALOG else f" --catalog {catalog}"
    kind = "auto" if not found.options else found.kind
    same = f"as: spiral register {found.name} {kind} {found.path} {found.typed_identity}{options}{images}{elsewhere}"
    if found.flat:
        same = "as spiral.Arrow, a table of their names"
    return [
        f"{found.name}: {found.rows:,} rows registered, {same}",
        f"written: {', '.join(files)}",
        "Run: python train.py",
    ]
