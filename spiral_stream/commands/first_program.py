"""What a first program over some data needs: its source, the columns that become fields, and the identity of rows.

`look` registers the data, as ``spiral register NAME auto`` does, and reads its first rows; `program` writes what was found as a
Python program, and `definitions` as YAML for Dagster. Whatever was guessed is said in a comment of the program.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, final

import pyarrow as pa

from spiral_stream.catalog.relation.entry import Entry
from spiral_stream.catalog.relation.row_identity import ROW_ID, RowIdentity
from spiral_stream.catalog.relation.source_facts import source_facts
from spiral_stream.commands.command_words import here
from spiral_stream.connection import Catalog
from spiral_stream.errors import CatalogError, SourceError, cut
from spiral_stream.semantic import H264_REF, JPEG_REF, is_list, is_number, is_text, semantic_of
from spiral_stream.sources.arrow.table import Arrow
from spiral_stream.sources.detect import guessed, source_at
from spiral_stream.sources.image_folder import IMAGES
from spiral_stream.sources.import_source import FILE, INDEX
from spiral_stream.sources.source import Source
from spiral_stream.sources.tokens.source import Tokens

LINES: Final = 40  # of a program
WIDTH: Final = 100  # of a line
KNOWN: Final = (
    "images in class folders, a folder of images, videos in class folders, Parquet, Lance, Vortex, CSV, JSON lines (texts, "
    "chats, features), text files, tars (WebDataset), MDS, a Hugging Face dataset (saved, or copied from the Hub), token "
    "files (.bin, .npy)"
)
_AT_THE_TOP: Final = (
    "Arrow",
    "ImageFolder",
    "Lance",
    "Parquet",
)  # of `spiral_stream`; other sources are in its `sources`
_IDENTITIES: Final = ("sample_id", "__key__", "id", "uid", "uuid", "row_id")  # columns that usually tell rows apart
_LABELS: Final = ("label", "label_id", "labels", "class_id", "cls", "target", "y")
_TEXTS: Final = ("text", "content", "document", "body", "prompt", "txt")
_MADE_COLUMNS: Final = (
    FILE,
    INDEX,
    ROW_ID,
    "storage_shard",
    "size_bytes",
    "start",
    "length",
)  # that Spiral adds: no fields
_MAGIC: Final = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"BM", b"RIFF")  # how images begin
_HEAD: Final = 100  # rows that are looked at
_BATCH: Final = 32
_DOCUMENT: Final = 1_024  # ids of a document, where nothing says
_FEW_FIELDS: Final = 8


@final
@dataclass(frozen=True, slots=True)
class DataFound:
    """What lies at a path, and what was guessed of it."""

    name: str  # of the relation
    path: str  # as it was typed, or the part of it that holds one split
    kind: str
    source: Source
    options: Mapping[str, Any] = field(default_factory=dict)  # of the source, beside its path
    rows: int = 0
    identity: tuple[str, ...] = ()  # (ROW_ID,): made
    semantic: Mapping[str, str] = field(default_factory=dict)  # that the source does not say itself
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    head: pa.Table = field(default_factory=lambda: pa.table({}), repr=False)  # first rows: no images or films
    notes: Mapping[str, str] = field(default_factory=dict)  # line of the program ("source", ...) -> what was guessed
    tokenizer: str | None = None  # that lies there
    flat: bool = False  # images without class folders

    @property
    def typed_identity(self) -> str:
        """The options of ``spiral register`` that say the identity."""
        if self.identity == (ROW_ID,):
            return "--row-identity"
        return " ".join(f"--identity {column}" for column in self.identity)


def name_of(path: str) -> str:
    """Return the name of a relation for a path: its last part, of letters that a catalog takes."""
    last = path if here(path) is None else os.path.realpath(path)
    stem = re.split(r"[.*?\[{]", last.rstrip("/").rpartition("/")[2])[0]
    return re.sub(r"\W+", "_", stem).strip("_") or "data"


def look(
    path: str,
    catalog: Catalog,
    *,
    force: bool = False,
    made: bool = True,
) -> DataFound:
    """Register what lies at a path, and look at its first rows.

    Args:
        path: a file, a folder, a pattern, or a URI.
        catalog: that the program opens.
        force: whether to replace another relation of that name.
        made: whether identities may be made; False names the places of rows in their files instead.

    Raises:
        SourceError: what lies there is not known.
        CatalogError: the catalog has another relation of that name.
    """
    notes: dict[str, str] = {}
    found = _source(path, notes)
    if found.name in catalog.tables() and not force and not _is_of(catalog.entry(found.name), found):
        msg = (
            f"init: the catalog has another relation {found.name!r}. Give --force to replace it, or another --catalog, or "
            "give the data another name"
        )
        raise CatalogError(msg)

    def register(identity: tuple[str, ...], semantic: Mapping[str, str]) -> Any:
        what = RowIdentity() if identity == (ROW_ID,) else list(identity)
        return catalog.register(found.name, found.source, identity=what, semantic=semantic or None, replace=True)

    identity: tuple[str, ...] = ("sample_id",) if found.flat else (ROW_ID,)
    semantic = dict(found.semantic)
    try:
        entry = register(identity, semantic)
    except SourceError:
        if not isinstance(found.source, Tokens):
            raise
        found = replace(found, source=Tokens(path, length=_DOCUMENT), options={"length": _DOCUMENT})
        notes["source"] = f"guessed: {_DOCUMENT:,} ids each; or separator="
        entry = register(identity, semantic)
    light = [each.name for each in entry.schema if semantic_of(each) is None and not each.name.startswith("__")]
    head = catalog.table(found.name).select(*light).head(_HEAD).to_arrow()
    images = [name for name in light if _holds_images(head[name], found)]
    semantic |= dict.fromkeys(images, JPEG_REF)
    if not found.flat:
        wanted = _identity(found, entry, register, semantic, notes, made=made)
        if not wanted:  # a source that says the places of rows only if it is asked to
            options = {**found.options, "origin": True}
            found = replace(found, source=source_at(found.path, found.kind, typed_options(options)), options=options)
            wanted = (FILE, INDEX)
            register(wanted, semantic)
        identity = wanted
    entry = catalog.entry(found.name)
    return replace(
        found,
        rows=entry.manifest().total,
        identity=identity,
        semantic=semantic,
        schema=entry.schema,
        head=head.drop_columns(images),
        notes=notes,
        tokenizer=_tokenizer(path),
    )


def _source(path: str, notes: dict[str, str]) -> DataFound:
    """What a path is, before its rows are looked at."""
    place = path.rstrip("/") or path
    data = here(path)
    if data is not None and not re.search(r"[*?\[{]", path) and not data.exists():
        msg = f"init: {cut(path)} is not there. Give a file, a folder, a pattern, or a URI"
        raise SourceError(msg)
    name = name_of(place)
    try:
        kind, splits = guessed(place)
    except SourceError as error:
        if "what kind" not in str(error):
            raise
        msg = (
            f"init: what lies at {cut(path)} is not known. Known are {KNOWN}. Of another kind, make a source: "
            "docs/howto/own-source.md"
        )
        raise SourceError(msg) from error
    options: dict[str, Any] = {}
    notes["source"] = "guessed by the names of files"
    if splits:
        split = "train" if "train" in splits else next(iter(splits))
        notes["source"] = f"of the splits {', '.join(sorted(splits))}"
        if kind == "huggingface":
            options["split"] = split
        else:
            place = splits[split]
    elif kind == "huggingface" and (at := Path(path, "dataset_dict.json")).is_file():
        names = [str(each) for each in json.loads(at.read_text()).get("splits", [])]
        notes["source"] = f"of the splits {', '.join(sorted(names))}"
        options["split"] = "train" if "train" in names else names[0]
    if kind == "image_folder" and (folder := here(place)) is not None and _is_flat(folder):
        notes["source"] = "no class folders, so there are no labels"
        return DataFound(name, place, kind, _flat(place), semantic={"image_ref": JPEG_REF}, flat=True)
    return DataFound(name, place, kind, source_at(place, kind, typed_options(options)), options)


def typed_options(options: Mapping[str, Any]) -> list[str]:
    """Options of a source as the command takes them."""
    return [f"{key}={json.dumps(value)}" for key, value in options.items()]


def _is_flat(folder: Path) -> bool:
    return folder.is_dir() and not any(
        each.suffix.lower() in IMAGES for below in folder.iterdir() if below.is_dir() for each in below.rglob("*")
    )


def _flat(folder: str) -> Arrow:
    """The images of one folder as rows; the program says the same."""
    names = sorted(each.name for each in Path(folder).iterdir() if each.suffix.lower() in IMAGES)
    return Arrow(pa.table({"sample_id": names, "image_ref": names}), base=folder)


def _is_of(entry: Entry, found: DataFound) -> bool:
    """Whether a relation of the catalog is of the same files."""
    if found.flat:
        return getattr(entry.source, "base", None) == getattr(found.source, "base", "")
    place = getattr(found.source, "path", None) or getattr(found.source, "uri", None)
    return source_facts(entry).place == place


def _identity(
    found: DataFound,
    entry: Entry,
    register: Callable[[tuple[str, ...], Mapping[str, str]], Any],
    semantic: Mapping[str, str],
    notes: dict[str, str],
    *,
    made: bool,
) -> tuple[str, ...]:
    """Register once more with the column that tells rows apart, or with a made identity; nothing if none may be made."""
    names = set(entry.schema.names)
    kinds = {each.name: each.type for each in entry.schema}
    wanted = [
        each
        for each in (*_IDENTITIES, f"{found.name}_id", *([FILE] if found.kind == "text_files" else []))
        if each in names and (is_text(kinds[each]) or pa.types.is_integer(kinds[each]))
    ]
    for column in wanted:
        try:
            register((column,), semantic)
        except CatalogError:
            notes["identity"] = f"{column!r} does not tell all rows apart"
            continue
        notes["identity"] = "guessed by its name, and no value repeats"
        return (column,)
    notes.setdefault("identity", "no column is known to tell rows apart")
    if not made:
        if not {FILE, INDEX} <= names:
            return ()
        register((FILE, INDEX), semantic)
        return (FILE, INDEX)
    register((ROW_ID,), semantic)
    return (ROW_ID,)


def _holds_images(values: pa.ChunkedArray, found: DataFound) -> bool:
    """Whether the first value of a column is an image, or names one that is there."""
    first = next((each for each in values.to_pylist() if each is not None), None)
    if isinstance(first, dict) and set(first) == {"bytes", "path"}:
        first = first["bytes"]
    if isinstance(first, bytes):
        return first.startswith(_MAGIC)
    if not isinstance(first, str) or not first.lower().endswith(IMAGES) or (file := here(first)) is None:
        return False
    return (Path(getattr(found.source, "base", None) or "") / file).is_file()


def _tokenizer(path: str) -> str | None:
    """A tokenizer that lies beside the program, or in the data."""
    files = [each / "tokenizer.json" for each in (Path(), here(path)) if each is not None]
    return next((str(each) for each in files if each.is_file()), None)


def batch_size(found: DataFound) -> int:
    """Return the samples of a batch: fewer where there are few rows."""
    return max(1, min(_BATCH, found.rows // 4))


def fields_of(found: DataFound) -> tuple[dict[str, str], list[str], str | None]:
    """Return the fields as Python, the columns that are left out, and the column of text that is tokenized."""
    fields: dict[str, str] = {}
    left: list[str] = []
    tokenized = None
    for column in sorted(found.schema, key=_rank):
        name, kind = column.name, column.type
        if name in _MADE_COLUMNS or name in found.identity:
            continue
        said = _stacked(column)
        if said is not None:
            fields["image" if semantic_of(column) == JPEG_REF and "image" not in fields else name] = said
        elif semantic_of(column) is not None:
            left.append(name)
        elif found.tokenizer and tokenized is None and name in _TEXTS and is_text(kind):
            tokenized = name
            fields |= _TOKENS
        elif name == "tokens" or (name in ("input_ids", "ids") and is_list(kind)):
            fields |= {key: said.replace('"tokens"', f'"{name}"') for key, said in _TOKENS.items()}
        elif is_number(kind) and not found.head[name].null_count:
            dtype = "float32" if pa.types.is_floating(kind) else "int64"
            fields[name] = f'spiral.Stack({_text(name)}, dtype="{dtype}")'
        else:
            fields[name] = f"spiral.List({_text(name)})"
    names = list(fields)
    left = [*names[_FEW_FIELDS:], *left]
    fields = {name: fields[name] for name in names[:_FEW_FIELDS]}
    for column in found.identity:
        fields[column] = f"spiral.List({_text(column)})"
    return fields, left, tokenized


_TOKENS: Final = {
    "input_ids": 'spiral.Pad("tokens")',
    "attention_mask": 'spiral.PadMask("tokens")',
    "labels": 'spiral.ShiftedLabels("tokens")',
}


def _rank(column: pa.Field) -> tuple[int, ...]:
    """Images and films come first, then tokens and texts, labels, and all others as they are stored."""
    first = semantic_of(column) in (JPEG_REF, H264_REF)
    texts = column.name == "tokens" or column.name in _TEXTS or _is_chat(column.type)
    wanted = (first, texts, column.name in _LABELS)
    return tuple(int(not each) for each in wanted)


def _stacked(column: pa.Field) -> str | None:
    """The field of a column of images, films or vectors."""
    if is_list(column.type) and semantic_of(column) is not None:
        return None
    name = _text(column.name)
    if semantic_of(column) == JPEG_REF:
        cropped = "spiral.RandomResizedCrop(224), spiral.RandomHorizontalFlip()"
        return f'spiral.Stack(\n{" " * 16}{name}, decode="jpeg", dtype="float32",\n{" " * 16}transforms=[{cropped}],\n{" " * 12})'
    if semantic_of(column) == H264_REF:
        options = 'sequence_length=16, resize_shorter=128, crop=112, dtype="float32"'
        return f'spiral.Stack(\n{" " * 16}{name}, decode="h264",\n{" " * 16}{options},\n{" " * 12})'
    if pa.types.is_fixed_size_list(column.type) and is_number(column.type.value_type):
        return f'spiral.Stack({name}, dtype="float32")'
    return None


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def program(found: DataFound, catalog: str) -> str:
    """Return the program that trains on what was found.

    Args:
        found: by `look`.
        catalog: folder or URI.
    """
    fields, left, tokenized = fields_of(found)
    while True:
        lines = _lines(found, catalog, fields, left, tokenized)
        if len(lines) <= LINES:
            return "\n".join(lines) + "\n"
        dropped = next(name for name in reversed(list(fields)) if name not in found.identity)
        left = [dropped, *left]
        del fields[dropped]


def _lines(
    found: DataFound, catalog: str, fields: Mapping[str, str], left: list[str], tokenized: str | None
) -> list[str]:
    indent = " " * 12
    size = batch_size(found)
    few = f"  # a quarter of {found.rows} rows; give more where there are more" if size < _BATCH else ""
    shown = next(iter(fields))
    looked = f'tuple(batch["{shown}"].shape)' if "List" not in fields[shown] else f'batch["{shown}"][:1]'
    stream = (
        [f'    .map(spiral.Tokenize({_text(tokenized)}, tokenizer="tokenizer", max_length=1024) >> "tokens")']
        if tokenized
        else []
    )
    return [
        f'"""Train on {found.name}. Written by `spiral init`: a beginning, change what you like."""',
        "",
        "from pathlib import Path",
        "",
        *(["import pyarrow as pa"] if found.flat else []),
        "import spiral_stream as spiral",
        "import torch",
        "",
        'EPOCHS, CHECKPOINT = 1, Path("checkpoint.pt")',
        "",
        f"catalog = spiral.connect({_text(catalog)})",
        *_registered(found),
        *([f'catalog.register_tokenizer("tokenizer", {_text(str(found.tokenizer))})'] if tokenized else []),
        "plan = (",
        f"    catalog.table({_text(found.name)})",
        "    .sample(order=spiral.GlobalShuffle(seed=0))",
        *stream,
        "    .collate(",
        f"        batch_size={size},{few}",
        "        fields={",
        *"\n".join(f"{indent}{_text(name)}: {said},{_why(found, said)}" for name, said in fields.items()).split("\n"),
        *_left(left, indent),
        "        },",
        "    )",
        ")",
        "stream = plan.to_torch()",
        "print(stream.explain())",
        "if CHECKPOINT.exists():  # started again: go on at the next batch",
        '    stream.load_state_dict(torch.load(CHECKPOINT)["stream"])',
        "while stream.epoch < EPOCHS:",
        "    for batch in stream:",
        f'        print({looked}, batch["{list(fields)[-1]}"][:2])  # train here',
        '        torch.save({"stream": stream.state_dict()}, "checkpoint.new")  # and your model',
        '        Path("checkpoint.new").replace(CHECKPOINT)  # a kill leaves a whole file',
    ]


def _why(found: DataFound, said: str) -> str:
    """Why a column is a list of its values, and what else it may become."""
    column = re.fullmatch(r'spiral\.List\("(.*)"\)', said)
    if column is None or column[1] not in found.head.column_names:
        return ""
    values = found.head[column[1]]
    if column[1] in _TEXTS and is_text(values.type):
        return "  # spiral.Tokenize makes tokens of it"
    if _is_chat(values.type):
        return "  # spiral.transforms.ChatTemplate: to tokens"
    return "  # some are missing" if is_number(values.type) and values.null_count else ""


def _is_chat(kind: pa.DataType) -> bool:
    """Whether a column holds messages, each with its role."""
    return is_list(kind) and pa.types.is_struct(kind.value_type) and kind.value_type.get_field_index("role") >= 0


def _left(left: list[str], indent: str) -> list[str]:
    if not left:
        return []
    line = f"{indent}# left out: {', '.join(left)}"
    return [line if len(line) <= WIDTH else f"{line[: WIDTH - 4].rpartition(',')[0]}, ..."]


def _registered(found: DataFound) -> list[str]:
    """The lines that register the source, with what was guessed."""
    if found.flat:
        return [
            f"folder = Path({_text(found.path)})  # {found.notes['source']}",
            f"names = sorted(file.name for file in folder.iterdir() if file.suffix.lower() in {_endings(found)})",
            'source = spiral.Arrow(pa.table({"sample_id": names, "image_ref": names}), base=str(folder))',
            "catalog.register(",
            f'    {_text(found.name)}, source, identity="sample_id", semantic={{"image_ref": "{JPEG_REF}"}}',
            ")",
        ]
    options = "".join(
        f", {key}={_text(value) if isinstance(value, str) else value}" for key, value in found.options.items()
    )
    kind = type(found.source).__name__
    home = "" if kind in _AT_THE_TOP else "sources."
    if found.identity == (ROW_ID,):
        identity = "spiral.RowIdentity()"
    else:
        identity = _text(found.identity[0]) if len(found.identity) == 1 else json.dumps(found.identity)
    semantic = [f"    semantic={json.dumps(dict(found.semantic))},  # by their first values"] if found.semantic else []
    return [
        "catalog.register(",
        f"    {_text(found.name)},",
        f"    spiral.{home}{kind}({_text(found.path)}{options}),  # {found.notes['source']}",
        f"    identity={identity},  # {found.notes['identity']}",
        *semantic,
        ")",
    ]


def _endings(found: DataFound) -> str:
    assert isinstance(found.source, Arrow)
    names = found.source.table["image_ref"].to_pylist()
    there = sorted({Path(name).suffix.lower() for name in names})
    return "(" + ", ".join(map(_text, there)) + ("," if len(there) == 1 else "") + ")"


def definitions(found: DataFound, catalog: str) -> dict[str, str]:
    """Return the files of a Dagster project, by their paths: where the catalog lies, and the relation.

    Args:
        found: by `look`.
        catalog: folder or URI.

    Raises:
        SourceError: no component has such a source.
    """
    if found.flat:
        msg = (
            f"init: --dagster: {cut(found.path)} is a folder of images without classes, which no component of YAML reads. "
            "Put them into folders, one per class; or leave --dagster out"
        )
        raise SourceError(msg)
    argument = "uri" if found.kind == "lance" else "path"
    options = "".join(f", {key}: {json.dumps(value)}" for key, value in found.options.items())
    labels = [name for name in found.schema.names if name in _LABELS]
    identity = json.dumps(list(found.identity)) if len(found.identity) > 1 else _text(found.identity[0])
    relation = [
        "type: spiral_assets.components.Relation",
        "attributes:",
        f"  name: {_text(found.name)}",
        f"  source: {{kind: {found.kind}, {argument}: {_seen_from_project(found.path)}{options}}}  # {found.notes['source']}",
        f"  identity: {identity}  # {found.notes.get('identity', 'the place of a row in its file')}",
        *([f"  semantic: {json.dumps(dict(found.semantic))}"] if found.semantic else []),
        *([f"  labels: {json.dumps(labels)}  # guessed by the name"] if labels else []),
    ]
    where = [
        "type: spiral_assets.components.Catalog",
        "attributes:",
        f"  path: {_seen_from_project(catalog)}",
        f"  root: {_in_project('')}",
        "---",
        "type: spiral_assets.components.Upkeep",
        "attributes: {}",
    ]
    project = [
        'directory_type = "project"',
        "",
        "[project]",
        'root_module = "defs"',
        'defs_module = "defs"',
        f'code_location_name = "{found.name}"',
        'code_location_target_module = "spiral_assets.project"',
    ]
    files = {"dg.toml": project, f"defs/{found.name}/defs.yaml": [*where, "---", *relation]}
    return {name: "\n".join(lines) + "\n" for name, lines in files.items()}


def _seen_from_project(path: str) -> str:
    """A path or a URI, as YAML has it: one that is relative begins at the project."""
    at = here(path)
    return _text(path) if at is None or at.is_absolute() else _in_project(path)


def _in_project(path: str) -> str:
    return _text("{{ context.project_root }}" + (f"/{path}" if path else ""))
