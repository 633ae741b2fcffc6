"""The command ``spiral node-cache``: what this node holds of remote files and shared prepared data, and how to remove it."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.table import Table

from spiral_stream.cache.working_folder import held_here, make_room
from spiral_stream.commands.command_words import console
from spiral_stream.keeping.share import working_folders
from spiral_stream.storage.node_cache.cache import OFF, NodeCache

_UNITS: Final = (("days", 86_400), ("hours", 3_600), ("minutes", 60))


def node_cache(
    folder: Annotated[
        str | None, typer.Option(envvar="SPIRAL_NODE_CACHE", help="Its folder; ~/.cache/spiral/node by default.")
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove all files.")] = False,
    remove_older: Annotated[
        float | None, typer.Option(min=0, metavar="DAYS", help="Remove files that were not used for so many days.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the facts as JSON.")] = False,
) -> None:
    """List what lies on this node of remote files and of shared prepared data: bytes, limit, and age."""
    if folder == OFF:  # what lies where it would be
        folder = "~/.cache/spiral/node"
        if not as_json:
            typer.echo(f"$SPIRAL_NODE_CACHE={OFF}: nothing is kept at present. What was kept before:")
    root = Path(folder or "~/.cache/spiral/node").expanduser()
    there = "://" in str(folder) or (root / "files").is_dir() or working_folders(root)
    if not there:  # to look makes no folder
        typer.echo("[]" if as_json else f"No node cache lies in {root}: nothing was kept there")
        return
    cache, gone = NodeCache(folder), None
    if clear or remove_older is not None:
        older_than_s = 0.0 if clear else (remove_older or 0.0) * 86_400
        gone = cache.clear(older_than_s)
        for here in held_here(cache.folder):
            more = make_room(here.path, older_than_s=older_than_s)
            gone = gone[0] + more[0], gone[1] + more[1]
    files = cache.files()
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in files]))
        return
    listing = Table("file", "version", "bytes", "here", "on disk", "used")
    for each in files:
        name = each.uri or "unknown: nothing is known of its bytes"
        sizes = f"{each.size:,}", f"{each.there:,}", f"{each.on_disk:,}"
        listing.add_row(name, each.version[:16], *sizes, _age(time.time() - each.used))
    out = console(plain=True)
    out.print(listing)
    used = sum(each.on_disk for each in files)
    out.print(f"{len(files):,} files, {used:,} bytes of {cache.limit_bytes:,}", soft_wrap=True)
    for here in held_here(cache.folder):
        said = f"{here.bytes:,} bytes of {here.limit_bytes:,} of prepared data of {here.uri}, in {here.path}"
        out.print(said, soft_wrap=True)
    if gone is not None:
        out.print(f"{gone[0]:,} files removed, {gone[1]:,} bytes")


def _age(seconds: float) -> str:
    for name, size in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name} ago"
    return "now"
