"""The command ``spiral copy``: prepared data from one place to another, verified."""

import warnings
from typing import Annotated

import typer
from rich.console import Console

from spiral_stream.cache.copying import Copied, copy_prepared
from spiral_stream.commands.command_words import console
from spiral_stream.errors import SpiralWarning


def copy(
    source: Annotated[
        str, typer.Argument(metavar="FROM", help="A prepared folder, or a URI such as s3://team/prepared.")
    ],
    target: Annotated[str, typer.Argument(metavar="TO", help="Likewise. A folder is made.")],
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="FINGERPRINT", help="Only this derivation or cache; several times, if you like."),
    ] = None,
) -> None:
    """Copy prepared data between folders and object stores. Every byte is verified; what is there already is left out."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", SpiralWarning)
        done = copy_prepared(source, target, only or ())
    for each in said:
        if issubclass(each.category, SpiralWarning):
            Console(stderr=True, markup=False, emoji=False, highlight=False).print(str(each.message), soft_wrap=True)
    print_copied(done)
    if done.damaged:
        raise typer.Exit(1)


def print_copied(done: Copied) -> None:
    """Print what became of a copy."""
    damaged = f", {done.damaged:,} damaged and not copied" if done.damaged else ""
    console(plain=True).print(f"{done.parts:,} parts copied, {done.bytes:,} bytes; {done.there:,} were there{damaged}")
