"""Draw images and write them as a relation: Lance, Parquet or class folders.

The columns are those of `vision.imagenet_train` and `vision.imagenet_labels`. Images
are drawn and encoded on all cores. One process writes, one storage shard at a time,
so memory holds one shard (3,000 images in 8 shards: 32 MB).
"""

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from spiral_assets.corpora.drawing import CLASSES, Painter
from spiral_assets.corpora.writing import Record, worker_count, write_lance

Form = Literal["lance", "parquet", "folder"]
Encoded = tuple[bytes, int, int]  # JPEG bytes, width, height

RECORD: Final = "drawn.json"
DRAWING_VERSION: Final = 1  # raise it when an image of the same seed and number changes
QUALITY: Final = 90
CHUNK: Final = 32  # images per task: about 0.15 CPU s, so that the bar moves and a pickle stays under 4 MB
FIRST_INGEST_NS: Final = 1_767_225_600_000_000_000  # 2026-01-01, then one second per image
SECOND_NS: Final = 1_000_000_000

TRAIN_SCHEMA: Final = pa.schema(
    [
        ("sample_id", pa.string()),
        ("split", pa.string()),
        ("image_ref", pa.large_binary()),
        ("label_id", pa.int64()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("source_uri", pa.string()),
        ("storage_shard", pa.string()),
        ("ingest_ts", pa.timestamp("ns")),
    ]
)
LABELS_SCHEMA: Final = pa.schema([("label_id", pa.int64()), ("class_name", pa.string())])


@dataclass(frozen=True)
class DrawnImages:
    """What was written, and where."""

    train_uri: str  # Lance dataset, glob of Parquet files, or folder of split folders
    labels_uri: str | None  # None for folders, whose names are the labels
    form: Form
    count: int
    train_count: int  # rows whose split is "train"; the others are "val"
    shards: int
    image_bytes: int


@dataclass(frozen=True)
class _Recipe:
    """Everything that decides which bytes are written."""

    root: str
    count: int
    seed: int
    shards: int
    form: Form
    val_every: int
    version: int = DRAWING_VERSION

    def __post_init__(self) -> None:
        if not 1 <= self.shards <= self.count:
            msg = f"write_image_relation: {self.count} images in {self.shards} shards. Give each shard an image or more"
            raise ValueError(msg)
        if self.form not in _WRITERS:
            msg = f"write_image_relation: form {self.form!r} is unknown; it is one of {', '.join(_WRITERS)}"
            raise ValueError(msg)


def write_image_relation(
    root: Path,
    count: int = 3_000,
    seed: int = 0,
    shards: int = 8,
    form: Form = "lance",
    *,
    val_every: int = 10,
    workers: int | None = None,
    progress: bool = True,
) -> DrawnImages:
    """Draw ``count`` images of ten classes under ``root``; an earlier result with the same settings is reused.

    Args:
        root: folder of its own; created if need be.
        count: number of images, evenly spread over classes and shards.
        seed: the same seed draws the same bytes.
        shards: storage shards: Lance fragments, Parquet files; folders have none.
        form: how it is stored.
        val_every: every n-th image has split ``val``; 0 gives none.
        workers: processes that draw; None is one per core, 0 draws in this process. With more than 0 the
            calling script needs the usual ``if __name__ == "__main__"``.
        progress: show a bar.

    Raises:
        ValueError: a number that makes no sense, or ``root`` holds something else.
    """
    root = Path(root).resolve()
    recipe = _Recipe(str(root), count, seed, shards, form, val_every)
    record = Record(root, RECORD, [leaf for writer in _WRITERS.values() for leaf in writer.leaves])
    found = record.found(asdict(recipe))
    if found is not None:
        return DrawnImages(**found)
    record.begin()
    drawn = _WRITERS[form].write(root, _shard_tables(recipe, workers, progress=progress))
    record.finish(asdict(recipe), asdict(drawn))
    return drawn


def label_of(number: int) -> int:
    """Return the class of an image: each class once per ten images, and once per hundred among every tenth image."""
    return (number + number // len(CLASSES)) % len(CLASSES)


def _shard_tables(recipe: _Recipe, workers: int | None, *, progress: bool) -> Iterator[pa.Table]:
    """One table of `TRAIN_SCHEMA` per storage shard, in order."""
    encoded = _encoded_images(recipe.count, recipe.seed, worker_count(workers))
    columns = [TextColumn("drawing images"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    with Progress(*columns, disable=not progress) as bar:
        task = bar.add_task("draw", total=recipe.count)
        for shard in range(recipe.shards):
            first, last = (at * recipe.count // recipe.shards for at in (shard, shard + 1))
            images = []
            for _ in range(last - first):
                images.append(next(encoded))
                bar.advance(task)
            yield _table(range(first, last), images, recipe, f"part-{shard:04d}")


def _table(numbers: range, images: list[Encoded], recipe: _Recipe, shard: str) -> pa.Table:
    labels = [label_of(number) for number in numbers]
    every = recipe.val_every
    held_out = [every > 0 and number % every == every - 1 for number in numbers]
    columns = {
        "sample_id": [f"{CLASSES[label]}_{number:06d}" for number, label in zip(numbers, labels, strict=True)],
        "split": ["val" if out else "train" for out in held_out],
        "image_ref": [image for image, _, _ in images],
        "label_id": labels,
        "width": [width for _, width, _ in images],
        "height": [height for _, _, height in images],
        "source_uri": [f"drawn://seed-{recipe.seed}/{number:06d}.jpg" for number in numbers],
        "storage_shard": [shard] * len(numbers),
        "ingest_ts": [FIRST_INGEST_NS + number * SECOND_NS for number in numbers],
    }
    return pa.table(columns, schema=TRAIN_SCHEMA)


def _encoded_images(count: int, seed: int, workers: int) -> Iterator[Encoded]:
    chunks = [range(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)]
    if workers == 0:
        painter = Painter(seed)
        for chunk in chunks:
            yield from _draw(painter, chunk)
        return
    # Spawned: the parent may hold the threads of Lance or torch, which a fork would leave half alive.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_Worker.start, initargs=(seed,)) as pool:
        for images in pool.map(_Worker.draw, chunks):
            yield from images


class _Worker:
    """The painter of a worker process, whose noise fields cost 0.3 CPU s once."""

    painter: Painter

    @classmethod
    def start(cls, seed: int) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the pool ends it so; a background job of a shell may ignore it
        cls.painter = Painter(seed)

    @classmethod
    def draw(cls, numbers: range) -> list[Encoded]:
        return _draw(cls.painter, numbers)


def _draw(painter: Painter, numbers: range) -> list[Encoded]:
    """Draw and encode; a Python loop per image at 4.4 CPU ms each, nearly all of it in native code."""
    import simplejpeg

    images = []
    for number in numbers:
        pixels = painter.draw(number, label_of(number))
        height, width, _ = pixels.shape
        images.append((simplejpeg.encode_jpeg(pixels, QUALITY, "RGB", "420"), width, height))
    return images


def _labels() -> pa.Table:
    return pa.table({"label_id": range(len(CLASSES)), "class_name": CLASSES}, schema=LABELS_SCHEMA)


class _Tally:
    """Counts rows and bytes on their way to a writer."""

    def __init__(self) -> None:
        self.count = self.train = self.shards = self.image_bytes = 0

    def through(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        for table in tables:
            self.count += table.num_rows
            self.train += table["split"].to_pylist().count("train")
            self.shards += 1
            self.image_bytes += sum(len(image) for image in table["image_ref"].to_pylist())
            yield table

    def drawn(self, form: Form, train_uri: Path, labels_uri: Path | None) -> DrawnImages:
        labels = None if labels_uri is None else str(labels_uri)
        return DrawnImages(str(train_uri), labels, form, self.count, self.train, self.shards, self.image_bytes)


def _write_lance(root: Path, tables: Iterable[pa.Table]) -> DrawnImages:
    """One fragment per shard."""
    import lance

    train, labels, tally = root / "imagenet_train.lance", root / "imagenet_labels.lance", _Tally()
    write_lance(train, TRAIN_SCHEMA, tally.through(tables))
    lance.write_dataset(_labels(), str(labels), data_storage_version="2.2", enable_stable_row_ids=True)
    return tally.drawn("lance", train, labels)


def _write_parquet(root: Path, tables: Iterable[pa.Table]) -> DrawnImages:
    """One file per shard; row groups of 128 images (11 MB) are read in one go."""
    import pyarrow.parquet as pq

    folder, labels, tally = root / "imagenet_train", root / "imagenet_labels.parquet", _Tally()
    folder.mkdir()
    for shard, table in enumerate(tally.through(tables)):
        pq.write_table(table, folder / f"part-{shard:04d}.parquet", row_group_size=128, compression="none")
    pq.write_table(_labels(), labels)
    return tally.drawn("parquet", folder / "*.parquet", labels)


def _write_folder(root: Path, tables: Iterable[pa.Table]) -> DrawnImages:
    """``<split>/<class>/<sample_id>.jpg``."""
    tally = _Tally()
    for table in tally.through(tables):
        for row in table.select(["split", "label_id", "sample_id", "image_ref"]).to_pylist():
            path = root / row["split"] / CLASSES[row["label_id"]] / f"{row['sample_id']}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(row["image_ref"])
    return tally.drawn("folder", root / "train", None)


@dataclass(frozen=True)
class _Writer:
    write: Callable[[Path, Iterable[pa.Table]], DrawnImages]
    leaves: tuple[str, ...]  # names of what it writes under the root


_WRITERS: Final[dict[Form, _Writer]] = {
    "lance": _Writer(_write_lance, ("imagenet_train.lance", "imagenet_labels.lance")),
    "parquet": _Writer(_write_parquet, ("imagenet_train", "imagenet_labels.parquet")),
    "folder": _Writer(_write_folder, ("train", "val")),
}
