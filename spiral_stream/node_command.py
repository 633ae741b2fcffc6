"""The command ``spiral node-cache``: what remote files lie on this node, and their removal."""

import json
import sys
import time
from dataclasses import asdict
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from spiral_stream.storage.node_cache import NodeCache

_WIDTH: Final = 10_000  # where no terminal shows lines: none is broken
_UNITS: Final = (("days", 86_400), ("hours", 3_600), ("minutes", 60))


def node_cache(
    folder: Annotated[
        str | None, typer.Option(envvar="SPIRAL_NODE_CACHE", help="Its folder; ~/.cache/spiral/node by default.")
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove all files that no process holds.")] = False,
    remove_older: Annotated[
        float | None, typer.Option(min=0, metavar="DAYS", help="Remove files that were not used for so many days.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the facts as JSON.")] = False,
) -> None:
    """List the remote files that lie on this node: bytes, limit, age, and whether a process holds them."""
    with NodeCache(folder) as cache:
        gone = None
        if clear or remove_older is not None:
            gone = cache.clear(0.0 if clear else (remove_older or 0.0) * 86_400)
        files = cache.files()
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in files]))
        return
    listing = Table("file", "version", "bytes", "here", "on disk", "used", "held")
    for each in files:
        name, held = each.uri or "unknown: nothing is known of its bytes", "held" if each.held else ""
        sizes = f"{each.size:,}", f"{each.there:,}", f"{each.on_disk:,}"
        listing.add_row(escape(name), escape(each.version[:16]), *sizes, _age(time.time() - each.used), held)
    console = Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False)
    console.print(listing)
    used, held_bytes = sum(each.on_disk for each in files), sum(each.on_disk for each in files if each.held)
    console.print(
        f"{len(files):,} files, {used:,} bytes of {cache.limit_bytes:,}, {held_bytes:,} held",
        soft_wrap=True,
        markup=False,
    )
    if gone is not None:
        console.print(f"{gone[0]:,} files removed, {gone[1]:,} bytes")


def _age(seconds: float) -> str:
    for name, size in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name} ago"
    return "now"
