"""The commands about what runs saw: ``spiral seen``, ``spiral diff`` and ``spiral forget``."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from spiral_stream.commands.command_words import console, opened_catalog
from spiral_stream.connection import Catalog
from spiral_stream.errors import CatalogError, cut
from spiral_stream.integrity.publish import write_file
from spiral_stream.runs.checkpoints import CheckpointState, state_in, states_in
from spiral_stream.runs.forget import ids_of

Where = Annotated[str | None, typer.Option("--catalog", envvar="SPIRAL_CATALOG", help="Folder or URI of the catalog.")]
Trusted = Annotated[
    list[str] | None,
    typer.Option(
        "--trust", help="A module whose functions the saved plan may name; it is imported. Repeat for several."
    ),
]
Named = Annotated[str | None, typer.Option("--name", help="Which state, where the checkpoint has several.")]


def seen(
    checkpoint: Annotated[
        list[str], typer.Argument(help="Files or folders of checkpoints of one run, or of states; or a recorded run.")
    ],
    ids: Annotated[
        bool, typer.Option("--ids", help="Print the identities too, each with how often it was seen.")
    ] = False,
    out: Annotated[
        str | None, typer.Option("--out", help="Write the identities there instead: a Parquet file.")
    ] = None,
    manifest: Annotated[str | None, typer.Option("--manifest", help="Write the manifest there: a JSON file.")] = None,
    name: Named = None,
    where: Where = None,
    trust: Trusted = None,
) -> None:
    """Show what a run saw: samples, tokens and passes of each stream, from states in its checkpoints. Runs no code of theirs."""
    catalog = opened_catalog(where)
    if len(checkpoint) == 1 and is_recorded(catalog, checkpoint[0]):
        counted = catalog.seen(checkpoint[0], trust=trust or ())
    else:
        found = [chosen(path, name) for path in checkpoint]
        for each in found:
            console(plain=True).print(str(each), soft_wrap=True)
        counted = catalog.seen([each.state for each in found], trust=trust or ())
    console().print(counted)
    if ids or out is not None:
        import pyarrow.parquet as pq

        rows = counted.identities()
        if out is not None:
            pq.write_table(rows, out)
            console(plain=True).print(f"{out}: {len(rows):,} rows", soft_wrap=True)
        else:
            for row in rows.to_pylist():
                typer.echo(", ".join(str(value) for value in row.values()))
    if manifest is not None:
        made = counted.manifest()
        try:
            write_file(Path(manifest), made.to_bytes())
        except OSError as error:
            msg = f"seen: --manifest {cut(manifest)}: {error.strerror}. Give a file in a folder that can be written"
            raise CatalogError(msg) from error
        console(plain=True).print(f"{manifest}: root {made.root}, {made.distinct:,} rows", soft_wrap=True)


def is_recorded(catalog: Catalog, name: str) -> bool:
    """Return whether a word names a recorded run, and no path."""
    return name in catalog.runs() and not Path(name).exists()


def chosen(path: str, name: str | None) -> CheckpointState:
    """Return the state of a checkpoint; lists those of a checkpoint that has several, and asks for a name."""
    if name is None and len(several := states_in(path)) > 1:
        console().print(f"{cut(path)} has {len(several)} states. Take one with --name:")
        for each in several:
            console(plain=True).print(f"  {each.name or '(the whole file)'}: {each}", soft_wrap=True)
        raise typer.Exit(1)
    return state_in(path, name)


def diff(
    first: Annotated[
        str, typer.Argument(metavar="A", help="A checkpoint, a file of a state, a saved stream, or a recorded run.")
    ],
    second: Annotated[str, typer.Argument(metavar="B", help="Likewise.")],
    name: Named = None,
    where: Where = None,
    trust: Trusted = None,
) -> None:
    """Show where two runs part: the same until which batch, the rows that only one of them saw, and where their plans differ."""
    catalog = opened_catalog(where)
    saved = catalog.streams()
    given = [
        each if (each in saved and not Path(each).exists()) or is_recorded(catalog, each) else chosen(each, name).state
        for each in (first, second)
    ]
    console().print(catalog.diff(*given, trust=trust or ()))


def forget(
    checkpoint: Annotated[list[str], typer.Argument(help="Checkpoints of one run: the last says what it saw.")],
    ids: Annotated[
        str,
        typer.Option(
            "--ids",
            help="Identities, with commas between them; a file of them: a line each, Parquet or Arrow; or a relation.",
        ),
    ],
    out: Annotated[
        str, typer.Option("--out", help="Where the state to go on with is written, as JSON.")
    ] = "forgotten.json",
    where: Where = None,
    trust: Trusted = None,
) -> None:
    """Forget rows: show where a run first met them, and write the state from which it goes on without them."""
    catalog = opened_catalog(where)
    found = catalog.forget(checkpoint, _identities(catalog, ids), checkpoint, trust=trust or ())
    console().print(found)
    try:
        write_file(Path(out), json.dumps(dict(found.state)).encode())
    except OSError as error:
        msg = f"forget: --out {cut(out)}: {error.strerror}. Give a file in a folder that can be written"
        raise CatalogError(msg) from error
    console(plain=True).print(
        f"{out}: the state to go on with: stream.load_state_dict(json.load(open({out!r})))", soft_wrap=True
    )


def _identities(catalog: Catalog, given: str) -> Any:
    """The identities that a command names: a file of a table or a relation by its name, a file of lines, or as they are."""
    path = Path(given)
    if path.is_file():
        return given if path.suffix in (".parquet", ".arrow", ".feather", ".ipc") else ids_of(path.read_text())
    return given if given in catalog.tables() else ids_of(given)
