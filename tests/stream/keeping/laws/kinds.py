"""What is kept, kind by kind: how its sources are made, how it is built, what it reads as, and what of it is no law.

A kind is declared once; each law is tried with every kind, in a folder and on a store.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import lance
import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.testing import frozen
from tests.fixtures import relations, texts, videos
from tests.stream.keeping.laws.ground import PLACES, SOURCES, Ground

ROWS: Final = 32
SHARDS: Final = 4
WORDS: Final = texts.TOKENIZER


@dataclass(frozen=True)
class KeptKind:
    """One kind of what is kept.

    Attributes:
        name: of the kind.
        make: makes what it is built from, and what was kept before.
        build: builds it; what is there already is not built again.
        read: gives its values, which may be compared as JSON.
        derivable: whether it can be made again if it is lost.
        holds: whether what is read after a kill has all that was kept before, of (before, after, found).
        own: what the names of its own files hold, which are damaged.
        again: registers again what was registered, replacing it, if it is that.
        unread: what the names of files hold that nobody has to read.
        unnoticed: damage that nobody can see: what the name of a file holds -> the ways.
        of_each_machine: whether nothing of it lies on a store: each machine makes its own (docs/decisions/0051).
        stays: what a killed machine may leave on a store, and why: how its name begins -> the reason.
    """

    name: str
    make: Callable[[Ground], None]
    build: Callable[[Ground], Any]
    read: Callable[[Ground], Any]
    derivable: bool = True
    holds: Callable[[Any, Any, Any], bool] = lambda before, after, found: found in (before, after)
    own: tuple[str, ...] = ()
    again: Callable[[Ground], Any] = lambda _: None
    unread: tuple[str, ...] = (
        "/.lock",
        "leases.json",
        "/claims",
        "/committing",
        "/entering",
        "_transactions/",
        "latest_version_hint",
    )
    unnoticed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    of_each_machine: bool = False
    stays: Mapping[str, str] = field(default_factory=dict)


def digest(values: Any) -> str:
    """A digest of batches."""
    state = hashlib.sha256()
    for batch in values:
        state.update(repr(sorted(frozen(batch).items())).encode())
    return state.hexdigest()


# ---- sources


def make_rows(ground: Ground) -> None:
    """Images, texts and numbers in shards of their own, and a table to join."""
    table = relations.imagenet_train(ROWS, labels=5, shards=SHARDS, side=16).drop_columns(["storage_shard"])
    documents = texts.documents("d", ROWS, longest=6).select(["text", "tokens", "quality", "size"])
    for name in documents.schema.names:
        table = table.append_column(name, documents[name])
    folder = ground.home / SOURCES
    lance.write_dataset(table, str(folder / "rows.lance"), max_rows_per_file=ROWS // SHARDS)
    catalog = ground.catalog()
    source = sp.Lance(str(folder / "rows.lance"))
    catalog.register("rows", source, identity="sample_id", semantic={"image_ref": "image/jpeg-ref"})
    sizes = {"size": list(range(9)), "twice": [2 * size for size in range(9)]}
    catalog.register("sizes", sp.Arrow(pa.table(sizes)), identity="size")
    catalog.register_tokenizer(WORDS, texts.tokenizer())


# ---- streams: what they need is built when they are opened, or when they are asked to


def streamed(name: str, plan: Callable[[sp.Relation], sp.Relation], **options: Any) -> KeptKind:
    """What a stream of the rows keeps."""
    asked = options.pop("asked", False)

    def build(ground: Ground) -> None:
        with plan(ground.catalog().table("rows")).to_numpy() as stream:
            if asked:
                stream.materialize(lambda _: None)
            digest(stream)

    def read(ground: Ground) -> str:
        with plan(ground.catalog().table("rows")).to_numpy() as stream:
            return digest(stream)

    return KeptKind(name, make_rows, build, read, **options)


def columns(rows: sp.Relation) -> sp.Relation:
    """Kept columns."""
    sampled = rows.sample(order=sp.GlobalShuffle(seed=1))
    return sampled.collate(batch_size=8, fields={"label": sp.Stack("label_id"), "name": sp.List("sample_id")})


def survivors(rows: sp.Relation) -> sp.Relation:
    """The rows that a filter keeps."""
    return columns(rows.filter(sp.col("quality") > 0.3))


def buckets(rows: sp.Relation) -> sp.Relation:
    """The index of an order over identities."""
    order = sp.HashBucketed(seed=5, bucket_count=4, bucket_order=sp.ShuffleBuckets(seed=6))
    return rows.sample(order=order).collate(batch_size=8, fields={"name": sp.List("sample_id")})


def formation(rows: sp.Relation) -> sp.Relation:
    """Lengths, and how many batches each chapter has."""
    formed = sp.WindowedBucket(window_size=16, keys=[sp.BucketKey("len(tokens)")], budget=sp.BatchBudget(max_tokens=24))
    sampled = rows.sample(order=sp.GlobalShuffle(seed=2))
    return sampled.collate(batch_size=None, formation=formed, fields={"tokens": sp.Pad("tokens")})


def values(rows: sp.Relation) -> sp.Relation:
    """What a function returns."""
    sampled = rows.sample(order=sp.GlobalShuffle(seed=3))
    made = sampled.map(longer, columns=["size"], name="longer", returns=pa.int64()).cache()
    return made.collate(batch_size=8, fields={"longer": sp.Stack("longer")})


def longer(size: pa.Array) -> pa.Array:
    return pa.array([value + 1 for value in size.to_pylist()], pa.int64())


def images(rows: sp.Relation) -> sp.Relation:
    """Decoded images."""
    sampled = rows.cache(image_ref=sp.Raw(shorter_side=8)).sample(order=sp.GlobalShuffle(seed=7))
    image = sp.Stack("image_ref", decode="jpeg", transforms=[sp.RandomResizedCrop(8)])
    return sampled.collate(batch_size=8, fields={"image": image})


def tokens(rows: sp.Relation) -> sp.Relation:
    """Tokens of texts."""
    mapped = rows.project("sample_id", "text").sample(order=sp.GlobalShuffle(seed=8))
    made = mapped.map(sp.Tokenize("text", tokenizer=WORDS) >> "tokens")
    return made.collate(batch_size=8, fields={"tokens": sp.Pad("tokens")})


def outcomes(rows: sp.Relation) -> sp.Relation:
    """What a look at all rows gives: the first of each size."""
    sampled = rows.project("sample_id", "size").distinct("size").sample(order=sp.GlobalShuffle(seed=9))
    return sampled.collate(batch_size=4, fields={"size": sp.Stack("size"), "name": sp.List("sample_id")})


def groups(rows: sp.Relation) -> sp.Relation:
    """A relation that a plan makes."""
    made = rows.group_by("label_id").aggregate(size=("size", "max"), name=("sample_id", "min"))
    sampled = made.sample(order=sp.GlobalShuffle(seed=9))
    return sampled.collate(batch_size=2, fields={"size": sp.Stack("size"), "name": sp.List("name")})


def _joined() -> KeptKind:
    def opened(ground: Ground) -> sp.PreparedStream:
        catalog = ground.catalog()
        return columns(catalog.table("rows").join(catalog.table("sizes"), on="size")).to_numpy()

    def read(ground: Ground) -> str:
        with opened(ground) as stream:
            return digest(stream)

    return KeptKind("matches", make_rows, read, read, own=("derived/matches", "selections/"))


def _kept_records(before: Any, after: Any, found: Any) -> bool:
    """Whether no record is lost, and none is another one."""
    return bool(before.items() <= found.items() <= after.items())


# ---- what is asked for by a call


def _index(ground: Ground) -> Any:
    return sp.index_videos(ground.catalog(), "clips", "clip").drop_columns([]).to_pylist()


def make_videos(ground: Ground) -> None:
    folder = ground.home / SOURCES
    (folder / "files").mkdir()
    for at in range(2):
        videos.write_video(folder / "files" / f"{at}.mp4", videos.Made(frames=6, gop=3, first=10 * at))
    rows = pa.table({"id": range(4), "clip": ["0.mp4", "1.mp4"] * 2, "part": ["a", "a", "b", "b"]})
    source = sp.Arrow(rows, base=str(folder / "files"))
    catalog = ground.catalog()
    catalog.register("clips", source, identity="id", shard="part", semantic={"clip": "video/h264-ref"})


def numbers(first: int) -> pa.Table:
    return pa.table({"n": range(first, first + ROWS), "half": [n / 2 for n in range(ROWS)]})


def make_catalog(ground: Ground) -> None:
    """A catalog with a relation, in the place."""
    ground.kept_catalog().register("first", sp.Arrow(numbers(0)), identity="n")


def build_statistics(ground: Ground) -> None:
    ground.kept_catalog().measure("first")


def read_statistics(ground: Ground) -> Any:
    return json.loads(json.dumps(ground.kept_catalog().measure("first").columns.to_pylist(), default=str))


def numbered(catalog: sp.Catalog, name: str) -> sp.PreparedStream:
    sampled = catalog.table(name).sample(order=sp.GlobalShuffle(seed=1))
    return sampled.collate(batch_size=8, fields={"n": sp.Stack("n")}).to_numpy()


def make_records(ground: Ground) -> None:
    make_catalog(ground)
    catalog = ground.kept_catalog()
    catalog.save_stream("first", numbered(catalog, "first"))


def register_records(ground: Ground) -> None:
    catalog = ground.kept_catalog()
    for name, first in (("first", 0), ("second", 100)):
        catalog.register(name, sp.Arrow(numbers(first)), identity="n", replace=True)
        catalog.save_stream(name, numbered(catalog, name))
    catalog.register_tokenizer(WORDS, texts.tokenizer(), replace=True)


def build_records(ground: Ground) -> None:
    catalog = ground.kept_catalog()
    catalog.register("second", sp.Arrow(numbers(100)), identity="n")
    catalog.register_tokenizer(WORDS, texts.tokenizer())
    if "second" not in catalog.streams():
        catalog.save_stream("second", numbered(catalog, "second"))


def read_records(ground: Ground) -> Any:
    catalog = ground.kept_catalog()
    found: dict[str, Any] = {f"relation {name}": catalog.table(name).count() for name in catalog.tables()}
    for name in catalog.streams():
        with catalog.open_stream(name) as stream:
            found[f"stream {name}"] = digest(stream)
    return {**found, **{f"tokenizer {name}": catalog.tokenizer(name).digest for name in catalog.tokenizers()}}


def make_imports(ground: Ground) -> None:
    """Rows of files that are gone: only the catalog has them."""
    folder = ground.home / SOURCES
    for name, first in (("old", 0), ("new", 100)):
        (folder / name).mkdir(parents=True)
        for part in range(3):
            lines = [json.dumps({"n": first + 10 * part + at}) for at in range(4)]
            (folder / name / f"{part}.jsonl").write_text("\n".join(lines))
    ground.kept_catalog().register("old", sp.sources.Jsonl(str(folder / "old" / "*.jsonl")), identity="n")
    shutil.rmtree(folder / "old")


def build_imports(ground: Ground) -> None:
    source = sp.sources.Jsonl(str(ground.home / SOURCES / "new" / "*.jsonl"))
    ground.kept_catalog().register("new", source, identity="n")


def register_imports(ground: Ground) -> None:
    """Registers again what has files."""
    source = sp.sources.Jsonl(str(ground.home / SOURCES / "new" / "*.jsonl"))
    ground.kept_catalog().register("new", source, identity="n", replace=True)


def read_imports(ground: Ground) -> Any:
    catalog = ground.kept_catalog()
    return {name: catalog.table(name).project("n").to_arrow()["n"].to_pylist() for name in sorted(catalog.tables())}


SCHEMA: Final = pa.schema([("n", pa.int64()), ("text", pa.utf8())])


def written(ground: Ground, part: str, first: int) -> None:
    try:
        with sp.sources.Writer(ground.uri("rows.lance"), SCHEMA, part=part, shard_rows=4) as writer:
            for n in range(first, first + 10):
                writer.write({"n": n, "text": f"row {n}"})
    except sp.errors.SourceError as error:
        if f"has part '{part}' already" not in str(error):
            raise


def make_written(ground: Ground) -> None:
    written(ground, "first", 0)


def build_written(ground: Ground) -> None:
    written(ground, "second", 100)


def read_written(ground: Ground) -> Any:
    """The rows, of a catalog that keeps nothing."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setenv("SPIRAL_CACHE", folder)
        catalog = sp.connect(folder)
        catalog.register("rows", sp.Lance(ground.uri("rows.lance")), identity="n")
        return catalog.table("rows").project("n", "text").to_arrow().to_pydict()


# docs/howto/object-stores.md
FILES_STAY: Final = {"kept/catalog/data/": "another machine may be using the same file; drop leaves it, too"}
PLACED_STAY: Final = {
    "kept/rows.lance/data/": "another machine does not know whose they are; Lance removes them after a week"
}

# Which version of a Lance table is the newest only its folder says: without that version it is the table before. A row has a
# seal of its own, so no record is ever another one; one that is gone is as if it had not been registered. On a store a listing of
# the records is the table: a name whose record is gone is as if it had not been registered, too.
REVERTED: Final = {
    "relations.lance/_versions": ("removed", "another"),
    "relations.lance/data": ("another",),
    "streams.lance/_versions": ("removed", "another"),
    "streams.lance/data": ("another",),
    "tokenizers/names": ("removed",),  # the name itself
    "records/relations/": ("removed",),
    "records/streams/": ("removed",),
    "records/tokenizers/": ("removed",),
}

ALL: Final = (
    streamed("columns", columns, own=("derived/columns",)),
    streamed("survivors", survivors, own=("derived/survivors",)),
    _joined(),
    streamed("buckets", buckets, own=("selections/",), of_each_machine=True),
    streamed("formation", formation, own=("formations/",), of_each_machine=True),
    streamed("values", values, asked=True, own=("derived/values",)),
    streamed("images", images, asked=True, own=("caches/",)),
    streamed("tokens", tokens, asked=True, own=("caches/",)),
    streamed("outcomes", outcomes, own=("derived/outcomes", "selections/")),
    streamed("groups", groups, own=("prepared/relations/",), of_each_machine=True),
    KeptKind("videos", make_videos, _index, _index, own=("caches/",)),
    KeptKind(
        "statistics",
        make_catalog,
        build_statistics,
        read_statistics,
        own=("derived/facts", "/statistics/"),
        stays=FILES_STAY,
    ),
    KeptKind(
        "records",
        make_records,
        build_records,
        read_records,
        derivable=False,
        holds=_kept_records,
        own=("catalog/",),
        again=register_records,
        unnoticed=REVERTED,
        stays=FILES_STAY,
    ),
    KeptKind(
        "imports",
        make_imports,
        build_imports,
        read_imports,
        derivable=False,
        own=("catalog/imports/", "catalog/records/imports", "catalog/data"),
        again=register_imports,
        stays=FILES_STAY,
    ),
    KeptKind(
        "writer",
        make_written,
        build_written,
        read_written,
        derivable=False,
        own=("rows.lance/",),
        unnoticed={"rows.lance/_versions": ("removed", "another")},  # the dataset is a Lance dataset like any other
        stays=PLACED_STAY,
    ),
)
KINDS: Final = {each.name: each for each in ALL}
EVERY: Final = tuple((kind, place) for place in PLACES for kind in KINDS)


def by_day(*cases: tuple[str, str]) -> list[Any]:
    """Every kind in every place, of which only some are tried by day: what is built first costs most."""
    return [pytest.param(*each, marks=() if each in cases else pytest.mark.slow) for each in EVERY]
