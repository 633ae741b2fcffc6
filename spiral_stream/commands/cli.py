"""The ``spiral`` command: inspect a catalog, register relations, convert data, explain streams, build and verify caches."""

import json
import sys
import warnings
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TextIO

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperCommand, TyperGroup

from spiral_stream.catalog.convert import convert
from spiral_stream.catalog.names import suggestions
from spiral_stream.catalog.registering.declaration import AUTO
from spiral_stream.catalog.relation.row_identity import RowIdentity
from spiral_stream.catalog.relation.source_facts import source_facts
from spiral_stream.catalog.statistics.measure import load_statistics
from spiral_stream.commands.command_words import (
    CachesCommand,
    RegisterCommand,
    console,
    need_kind,
    opened_catalog,
    typed,
    typed_calls,
)
from spiral_stream.commands.copy_command import copy
from spiral_stream.commands.init_command import init
from spiral_stream.commands.node_command import node_cache
from spiral_stream.commands.run_commands import diff, forget, seen
from spiral_stream.commands.spike_command import card, spike
from spiral_stream.connection import ANALYZED, EXPLAIN_DATA, Catalog, connect
from spiral_stream.display.markup import PAGE_BYTES
from spiral_stream.errors import CatalogError, PlanError, SpiralError, TrustError, cut
from spiral_stream.extras import installed
from spiral_stream.plan.tree import relations_of
from spiral_stream.planner.prepared_data.build import caches
from spiral_stream.planner.prepared_data.verify import Verification, relation_caches, verify_relation
from spiral_stream.prepared import stages_of
from spiral_stream.report.build import report_relation
from spiral_stream.report.columns import column_summaries, roles_of
from spiral_stream.report.relation_view import relation_view
from spiral_stream.semantic import H264_REF, JPEG_REF, semantic_of
from spiral_stream.sources.detect import source_at
from spiral_stream.sources.image_folder import ImageFolder, VideoFolder
from spiral_stream.sources.writing.parts import SHARD_BYTES

_SHOWN = 3  # names in one cell
_REFUSED = 10  # rows that an import left out
_KINDS = {"auto": None, "folder": "image_folder", "videos": "video_folder"}  # of `register`; others keep their names
_DAYS_FROM_H = 48
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
app.command("copy")(copy)
app.command("node-cache")(node_cache)
app.command("init")(init)
app.command("seen")(seen)
app.command("diff")(diff)
app.command("forget")(forget)
app.command("spike")(spike)
app.command("card")(card)
Where = Annotated[str | None, typer.Option("--catalog", envvar="SPIRAL_CATALOG", help="Folder or URI of the catalog.")]
Trusted = Annotated[
    list[str] | None,
    typer.Option(
        "--trust", help="A module whose functions the saved plan may name; it is imported. Repeat for several."
    ),
]


class ExecutorName(StrEnum):
    """Where caches are built."""

    threads = "threads"
    processes = "processes"
    ray = "ray"


def _tell_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"spiral {installed()}")
        raise typer.Exit


@app.callback(help=__doc__)
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_tell_version)
    ] = False,
) -> None:
    del version  # its callback has answered


@app.command()
def tables(where: Where = None) -> None:
    """List relations, tokenizers and saved streams."""
    catalog = opened_catalog(where)
    listing = Table("relation", "source", "rows", "shards", "identity", "data version")
    for name, entry in catalog.registry.relations.entries().items():
        manifest = entry.manifest()
        rows, shards = f"{manifest.total:,}", f"{len(manifest.shard_names):,}"
        listing.add_row(
            name, source_facts(entry).kind, rows, shards, ", ".join(entry.identity), entry.data_version[:12]
        )
    console().print(listing)
    console().print(f"tokenizers: {', '.join(catalog.tokenizers()) or 'none'}")
    console().print(f"streams: {', '.join(catalog.streams()) or 'none'}")


@app.command()
def show(name: str, where: Where = None) -> None:
    """Show the columns of a relation, their types and roles."""
    catalog = opened_catalog(where)
    entry = catalog.entry(name)
    found = load_statistics(entry)
    columns = column_summaries(entry, found, roles_of(entry, (), ()))
    listing = Table("column", "type", "role")
    for field, each in zip(entry.schema, columns, strict=True):
        named = [semantic_of(field) or role if role == "reference" else role for role in each.roles]
        listing.add_row(each.name, str(field.type), ", ".join(named))
    console().print(listing)
    facts_of_source = source_facts(entry)
    console(plain=True).print(f"source: {facts_of_source}", soft_wrap=True)
    if facts_of_source.imported is not None and facts_of_source.imported.refused:
        _show_refused(catalog, name)
    if found is None:
        console().print(f"statistics: unknown: materialize asset shard_stats, or type spiral measure {name}")
        return
    rows = [each.cells() for each in columns if each.nulls is not None]
    facts = Table(*(name for name in (rows[0] if rows else ()) if name != "type"))
    for row in rows:
        facts.add_row(*(text for name, text in row.items() if name != "type"))
    console().print(facts)


def _show_refused(catalog: Catalog, name: str) -> None:
    """Show the first rows that the import left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # how many there are was said
        rows = catalog.refused(name)
    listing = Table("left out", "place", "reason", "found")
    for row in rows.slice(0, _REFUSED).to_pylist():
        listing.add_row(*(cut(str(row[each])) for each in ("__file__", "place", "reason", "data")))
    console().print(listing)
    if len(rows) > _REFUSED:
        console(plain=True).print(f"catalog.refused({name!r}) returns {len(rows):,} such rows", soft_wrap=True)


@app.command()
def report(
    name: str,
    out: Annotated[str | None, typer.Option(help="File of the page; by default beside the catalog.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="A column of labels. Repeat for several.")] = None,
    origin: Annotated[list[str] | None, typer.Option(help="A column that says where rows come from. Repeat.")] = None,
    along: Annotated[str | None, typer.Option(help="The column of ingest time.")] = None,
    stream: Annotated[str | None, typer.Option(help="A saved stream, whose shuffle blocks are looked at.")] = None,
    where: Where = None,
    trust: Trusted = None,
) -> None:
    """Write a page on a relation: columns, samples, and pictures of how labels and sources are spread over its shards."""
    catalog = opened_catalog(where)
    catalog.measure(name)
    with ExitStack() as stack:
        opened = None if stream is None else stack.enter_context(catalog.open_stream(stream, trust=trust or ()))
        made = report_relation(catalog, name, labels=label, origins=origin, along=along, stream=opened)
    for note in made.notes:
        console(plain=True).print(typed(note, _command()), soft_wrap=True)
    console(plain=True).print(str(made.save(out)), soft_wrap=True)


@app.command()
def page(
    names: Annotated[
        list[str] | None, typer.Argument(help="Relations and saved streams that have a section; all if none is named.")
    ] = None,
    out: Annotated[str | None, typer.Option(help="File of the page; by default page.html beside the catalog.")] = None,
    samples: Annotated[int, typer.Option(min=0, help="Rows of each relation.")] = 5,
    pictures: Annotated[int, typer.Option(min=0, help="Rows whose images, clips and sounds are shown.")] = 8,
    batches: Annotated[int, typer.Option(min=0, help="Batches of each stream that are built and shown.")] = 2,
    max_bytes: Annotated[int, typer.Option(min=1, help="Most bytes of the page.")] = PAGE_BYTES,
    where: Where = None,
    trust: Trusted = None,
) -> None:
    """Write one page on the catalog, for a browser without a network: relations, streams with EXPLAIN and batches, caches."""
    made = opened_catalog(where).page(
        out,
        *(names or ()),
        samples=samples,
        pictures=pictures,
        batches=batches,
        max_bytes=max_bytes,
        trust=trust or (),
    )
    console(plain=True).print(str(made), soft_wrap=True)


@app.command()
def look(
    name: Annotated[str, typer.Argument(help="A saved stream or a relation.")],
    count: Annotated[int, typer.Option(min=1, help="How many samples of a stream.")] = 8,
    batch: Annotated[int | None, typer.Option(min=0, help="The global batch of a stream to begin with.")] = None,
    epoch: Annotated[int | None, typer.Option(min=0, help="The epoch of a stream.")] = None,
    tokenizer: Annotated[str | None, typer.Option("--tokenizer", help="Decodes the tokens of a stream.")] = None,
    out: Annotated[str | None, typer.Option(help="Write it there instead: .html, .png, .jpg or .webp.")] = None,
    where: Where = None,
    trust: Trusted = None,
) -> None:
    """Look at samples of a saved stream, or at a relation: what a notebook shows, in this terminal or in a file."""
    catalog = opened_catalog(where)
    if name not in catalog.streams() and name in catalog.tables():
        given = [
            word
            for word, value in (("--batch", batch), ("--epoch", epoch), ("--tokenizer", tokenizer))
            if value is not None
        ]
        if given:
            msg = f"look: {name} is a relation, and {given[0]} is of streams. Leave it out, or name a saved stream"
            raise PlanError(msg)
        if out is None:
            view = relation_view(catalog.table(name).node, catalog)
            console().print(replace(view, note=typed(view.note, _command())))
        else:
            console(plain=True).print(str(catalog.page(out, name)), soft_wrap=True)
        return
    if name not in catalog.streams():
        raise CatalogError(_nothing_to_look_at(catalog, name))
    with catalog.open_stream(name, trust=trust or ()) as stream:
        try:
            sheet = stream.show(count, batch=batch, epoch=epoch, tokenizer=tokenizer, path=out)
        except IndexError as error:  # as a sequence of Python raises it
            msg = f"look: {error}"
            raise PlanError(msg) from error
        if out is None and sys.stdout.isatty():
            console().print(sheet)
        else:  # tiles beside each other would fill lines of any width
            typer.echo(str(sheet) if out is None else out)


def _nothing_to_look_at(catalog: Catalog, name: str) -> str:
    """Say what `look` may be given, where a name is none of it: the path of data is not registered yet."""
    there = (
        f"Of saved streams, {suggestions(name, catalog.streams())} Of relations, {suggestions(name, catalog.tables())}"
    )
    path = cut(name)
    data = "data, and " if Path(name).exists() else ""
    first = f"Register it first: spiral init {path}, or spiral register NAME auto {path} --identity COLUMN"
    way_out = (
        first if Path(name).exists() else "Register data with spiral register, or save a stream with save_stream first"
    )
    return f"look: {path!r} is {data}no saved stream and no relation of catalog {catalog.uri}. {there} {way_out}"


@app.command(cls=RegisterCommand)
def register(
    name: str,
    kind: Annotated[
        str, typer.Argument(help="Such as parquet, lance, jsonl, folder (of images), videos; auto: as its files say.")
    ],
    path: Annotated[str, typer.Argument(help="A file, a folder, or a pattern.")],
    identity: Annotated[
        list[str] | None, typer.Option(help="A column that identifies a row. Repeat for several.")
    ] = None,
    row_identity: Annotated[
        bool, typer.Option("--row-identity", help="Give each row an identity of its own: no column identifies it.")
    ] = False,
    option: Annotated[
        list[str] | None, typer.Option(help="An option of the source, such as delimiter=';'. Values are JSON. Repeat.")
    ] = None,
    image: Annotated[
        list[str] | None, typer.Option(help="A column that refers to JPEG images. Repeat for several.")
    ] = None,
    video: Annotated[
        list[str] | None, typer.Option(help="A column that refers to H.264 videos. Repeat for several.")
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            help="The column that names the storage shards; by default storage_shard; '' takes the source's own units."
        ),
    ] = None,
    not_unique: Annotated[
        bool, typer.Option("--not-unique", help="Identities may repeat: the relation is only joined.")
    ] = False,
    replace: Annotated[bool, typer.Option(help="Replace the relation that has this name.")] = False,
    where: Where = None,
) -> None:
    """Register a source under a name: files of any kind that Spiral reads."""
    need_kind(name, kind, path)
    source = source_at(path, _KINDS.get(kind, kind), option or ())
    images = image if image is not None else (["image_ref"] if isinstance(source, ImageFolder) else [])
    videos = video if video is not None else (["clip_ref"] if isinstance(source, VideoFolder) else [])
    entry = connect(where).register(
        name,
        source,
        identity=RowIdentity() if row_identity else identity or "sample_id",
        semantic=dict.fromkeys(images, JPEG_REF) | dict.fromkeys(videos, H264_REF),
        replace=replace,
        shard=AUTO if shard is None else shard or None,
        unique=not not_unique,
    )
    manifest = entry.manifest()
    console().print(f"{name}: {manifest.total:,} rows in {len(manifest.shard_names):,} storage shards")
    console(plain=True).print(f"source: {source_facts(entry)}", soft_wrap=True)
    if entry.changes is not None:
        console(plain=True).print(f"shards that differ from before: {entry.changes}", soft_wrap=True)


@app.command()
def drop(name: str, where: Where = None) -> None:
    """Forget a relation, a saved stream or a tokenizer. Files of the source stay."""
    catalog = opened_catalog(where)
    drops = {
        "relation": (catalog.tables(), catalog.drop),
        "stream": (catalog.streams(), catalog.drop_stream),
        "tokenizer": (catalog.tokenizers(), catalog.drop_tokenizer),
    }
    found = [what for what, (names, _) in drops.items() if name in names]
    if not found:
        known = [each for names, _ in drops.values() for each in names]
        msg = (
            f"drop: {cut(name)!r} is no relation, no saved stream and no tokenizer of catalog {catalog.uri}; "
            f"{suggestions(name, dict.fromkeys(known))} Correct the name"
        )
        raise CatalogError(msg)
    for what in found:
        drops[what][1](name)
        console().print(f"{name}: {what} dropped")


@app.command()
def measure(name: str, where: Where = None) -> None:
    """Measure the statistics of a relation, shard by shard, for EXPLAIN and its report. Reads no payload."""
    catalog = opened_catalog(where)
    found = catalog.measure(name)
    manifest = catalog.entry(name).manifest()
    shards = len(manifest.shard_names)
    console().print(f"{name}: {len(found.columns)} columns of {manifest.total:,} rows in {shards:,} shards measured")
    console().print(f"spiral show {name} prints them")


@app.command("convert")
def _convert(
    source: str,
    uri: str,
    kind: Annotated[str | None, typer.Option(help="What the source is; by default, as its files are called.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="An option of the source, name=value. Repeat.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that copy at the same time.")] = 1,
    shard_bytes: Annotated[int, typer.Option(min=1, help="Bytes of one shard, about.")] = SHARD_BYTES,
) -> None:
    """Copy the rows of a source, and the bytes they refer to, into a Lance dataset. Continues where a killed call stopped."""
    done = convert(
        source_at(source, kind and _KINDS.get(kind, kind), option or ()),
        uri,
        workers=workers,
        shard_bytes=shard_bytes,
    )
    if not done.rows:
        console(plain=True).print(f"{uri}: it has all rows of {source} already", soft_wrap=True)
        return
    said = (
        f"{uri}: {done.rows:,} rows in {done.shards:,} shards added, {done.size_bytes:,} bytes, version {done.version}"
    )
    console(plain=True).print(said, soft_wrap=True)


@app.command()
def tokenizer(
    name: str,
    source: str,
    replace: Annotated[bool, typer.Option(help="Replace the tokenizer that has this name.")] = False,
    where: Where = None,
) -> None:
    """Register a tokenizer: a tokenizer.json, a folder that transformers can load, or a Hugging Face Hub name."""
    entry = connect(where).register_tokenizer(name, source, replace=replace)
    console().print(f"{name}: {entry.vocab_size:,} tokens, content {entry.digest[:12]}; encoded by {entry.engine}")


@app.command()
def refresh(name: str, where: Where = None) -> None:
    """Accept the data of a relation as it is now, under a new data version."""
    entry = opened_catalog(where).refresh(name)
    console().print(f"{name}: data version {entry.data_version[:12]}")
    console(plain=True).print(f"shards that differ from before: {entry.changes}", soft_wrap=True)


@app.command()
def explain(
    what: Annotated[str, typer.Argument(help="A saved stream, a relation, or a SELECT.")],
    where: Where = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the facts as JSON.")] = False,
    analyze: Annotated[bool, typer.Option("--analyze", help="Read batches first; show what was measured too.")] = False,
    batches: Annotated[int, typer.Option(min=1, help="How many batches --analyze reads.")] = ANALYZED,
    network: Annotated[str | None, typer.Option(help='Show what "10 Gbit/s, 50 ms" allows.')] = None,
    device: Annotated[str | None, typer.Option(help="Of all fields, in place of the plan's own.")] = None,
    trust: Trusted = None,
) -> None:
    """Explain what a saved stream does to its data (EXPLAIN DATA); without --analyze it reads no payload."""
    found = opened_catalog(where).explain(
        what, analyze=analyze, batches=batches, network=network, device=device, trust=trust or ()
    )
    typer.echo(found.to_json() if as_json else typed_calls(str(found)))


@app.command()
def materialize(
    stream: str,
    workers: Annotated[int | None, typer.Option(help="How many work at a time.")] = None,
    executor: Annotated[ExecutorName, typer.Option(help="Where they work.")] = ExecutorName.threads,
    lengths: Annotated[
        bool, typer.Option("--lengths", help="Also count the batches of an epoch that a formation decides on.")
    ] = False,
    epoch: Annotated[int, typer.Option(min=0, help="The epoch to count.")] = 0,
    where: Where = None,
    trust: Trusted = None,
) -> None:
    """Build the caches of a saved stream, together with whoever else builds them. Continues where an earlier build stopped."""
    with opened_catalog(where).open_stream(stream, trust=trust or ()) as opened:
        opened.set_epoch(epoch)
        done = opened.materialize(workers=workers, executor=executor.value, lengths=lengths)
        batches = opened.count() if lengths else None
        stores = {work.store.folder: work.store for work in caches(stages_of(opened))}
        used = [store.usage() for store in stores.values()]
    built = f"{done.rows:,} rows in {done.shards:,} shards built, {done.payload_bytes:,} bytes, {done.refused:,} rows refused"
    console().print(built if done.shards else "all is built")
    if batches is not None:
        console().print(f"epoch {epoch}: {batches:,} batches")
    live, dead = (sum(getattr(each, name) for each in used) for name in ("live_bytes", "dead_bytes"))
    console().print(f"caches: {live:,} bytes live, {dead:,} dead until the next build")


@app.command("caches", cls=CachesCommand)
def _caches(
    remove_dead: Annotated[bool, typer.Option("--remove-dead", help="Remove what is dead.")] = False,
    older_than: Annotated[
        float, typer.Option(min=0, help="Days: what was used or written within them is not dead.")
    ] = 7.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the facts as JSON.")] = False,
    where: Where = None,
    trust: Trusted = None,
) -> None:
    """List what lies in the prepared folder: sizes, live and dead bytes, age, and who uses it. Programs read ``--json``."""
    catalog = opened_catalog(where)
    found = catalog.caches(remove_dead=remove_dead, older_than=timedelta(days=older_than), trust=trust or ())
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found], default=str))
        return
    listing = Table("what", "of", "bytes", "live", "dead", *(["removed"] if remove_dead else []), "used", "by", "note")
    for each in found:
        of = [
            f"{each.name[:8]} {', '.join(each.relations[:_SHOWN])}: {', '.join(each.columns)}".strip(" :"),
            each.about[:60],
        ]
        sizes = [each.bytes, each.live_bytes, each.dead_bytes, *([each.removed_bytes] if remove_dead else [])]
        by = ", ".join(each.used_by[:_SHOWN]) + (" ..." if len(each.used_by) > _SHOWN else "")
        lines = [
            "\n".join(line for line in of if line),
            *(f"{size:,}" for size in sizes),
            _age(each.last_used),
            by,
            each.note,
        ]
        listing.add_row(each.kind, *lines)
    console().print(listing)
    removed = f", {sum(each.removed_bytes for each in found):,} bytes removed" if remove_dead else ""
    console().print(
        f"{sum(each.live_bytes for each in found):,} bytes live, {sum(each.dead_bytes for each in found):,} dead{removed}"
    )


def _age(moment: datetime) -> str:
    hours = (datetime.now(UTC) - moment).total_seconds() / 3600
    return f"{hours / 24:.0f} days ago" if hours >= _DAYS_FROM_H else f"{hours:.0f} hours ago" if hours >= 1 else "now"


@app.command()
def verify(
    name: str,
    mend: Annotated[
        bool, typer.Option(help="Rebuild what is damaged; for a relation, drop it from the caches.")
    ] = False,
    where: Where = None,
    trust: Trusted = None,
) -> None:
    """Read all bytes of a relation or saved stream, and of all files derived from it. Exit code 1 if any are damaged."""
    catalog = opened_catalog(where)
    if name in catalog.streams():
        with catalog.open_stream(name, trust=trust or ()) as opened:
            sound = min([_verify_sources(catalog, each) for each in relations_of(opened.plan)])
            found = opened.verify()
            if mend and found.damaged:
                opened.materialize()
                found = opened.verify()
    else:
        sound = _verify_sources(catalog, name)
        found = verify_relation(name, catalog.registry)
        for store in relation_caches(name, catalog.registry) if mend and found.damaged else ():
            store.mend()
            store.commit()
            store.sweep()
    _show(found)
    if found.damaged or not sound:
        raise typer.Exit(1)


def _verify_sources(catalog: Catalog, name: str) -> bool:
    """Return whether a relation's own bytes are those that were registered."""
    found = catalog.verify(name)
    console().print(f"{name}: {found.rows:,} rows, {found.bytes:,} bytes in {found.files:,} files of the source")
    if found.recorded:
        since = "the first time: " if not found.compared else ""
        said = f"{since}the bytes of {found.recorded:,} files are recorded as they are; later calls compare with that"
        console().print(said)
    for each in found.differences:
        console(plain=True).print(f"{each.file}: {typed(each.found, _command())}", soft_wrap=True)
    return found.sound


def _show(found: Verification) -> None:
    """Print a table of what was verified, one row per cache or kind of file, and then what is damaged."""
    listing = Table("derived files", "files", "bytes", "sound", "unverified", "damaged")
    kinds = dict.fromkeys(each.what for each in found.files)
    for what in kinds:
        files = [each for each in found.files if each.what == what]
        states = [str(sum(each.state == state for each in files)) for state in ("sound", "unverified", "damaged")]
        listing.add_row(what, str(len(files)), f"{sum(each.bytes for each in files):,}", *states)
    console().print(listing)
    if any(each.state == "unverified" for each in found.files):
        console().print("unverified: who wrote them was killed before it noted their digest. Build again")
    console().print(f"caches: {found.live_bytes:,} bytes live, {found.dead_bytes:,} dead until the next build")
    for each in found.damaged:
        console(plain=True).print(typed(each.found, _command()), soft_wrap=True)


@app.command()
def sql(
    text: str, where: Where = None, rows: Annotated[int, typer.Option(min=0, help="How many rows to print.")] = 20
) -> None:
    """Run a query over the catalog's relations; EXPLAIN DATA before a name or a query explains it."""
    if EXPLAIN_DATA.match(text):
        typer.echo(typed_calls(str(opened_catalog(where).sql(text))))
        return
    found = opened_catalog(where).sql(text).to_arrow()
    listing = Table(*found.column_names)
    for row in found.slice(0, rows).to_pylist():
        listing.add_row(*(str(value)[:60] for value in row.values()))
    console().print(listing)
    console().print(f"{len(found):,} rows")


def _command() -> TyperCommand | None:
    """What was typed; None if it is no command."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    found = group.commands.get(next(iter(sys.argv[1:]), ""))
    return found if isinstance(found, TyperCommand) else None


def _tell(color: str, kind: str, message: str) -> None:
    Console(stderr=True).print(f"[{color}]{kind}[/{color}]: ", end="")
    Console(stderr=True, markup=False, emoji=False, highlight=False).print(
        " ".join(typed(message, _command()).split("\n")), soft_wrap=True
    )


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning as one line: whoever types a command does not look for it in Python's files."""
    del category, filename, lineno, file, line
    _tell("yellow", "warning", str(message))


def main() -> None:
    """Run the command. An error or a warning is one line, which says what to type."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            app()
    except SpiralError as error:
        way_out = ". On the command line: --trust MODULE" if isinstance(error, TrustError) else ""
        _tell("red", type(error).__name__, f"{error}{way_out}")
        raise SystemExit(1) from error
    except OSError as error:  # of standard output, most often; a reader of a pipe that ends is no error
        _tell("red", "OSError", f"{error}. Make room, or correct where it is to be written")
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
