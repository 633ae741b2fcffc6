"""Images or videos in class folders, read as torchvision's ImageFolder reads them.

One unit a class folder, rows sorted by path, never in the order the file system
lists them. Everything but the payload is known from the listing; a file is
opened only when its reference is resolved. Listing costs one ``stat`` a file; on
an object store one list, which also tells what pins the files.
"""

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, final

import numpy as np
import pyarrow as pa

from spiral_stream.arguments import FLAG, check, class_door
from spiral_stream.display.progress import working
from spiral_stream.errors import SourceError, cut
from spiral_stream.integrity.regular_files import need_file
from spiral_stream.semantic import H264_REF, JPEG_REF, with_semantic
from spiral_stream.sources.arrow.table import MemoryReader
from spiral_stream.sources.change_detection import content_key
from spiral_stream.sources.files.listing import grouped, listed_below, shown_files
from spiral_stream.sources.files.paths import absolute_folder, not_found, reference_to
from spiral_stream.sources.import_source import FILE, INDEX
from spiral_stream.sources.pins import Pin, pin_of
from spiral_stream.sources.source import Reader, ReaderOver, Source, Unit
from spiral_stream.storage.uri import is_object

# torchvision.datasets.folder.IMG_EXTENSIONS; what a decoder cannot read it refuses by name.
IMAGES: Final = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
_OTHER_IMAGES: Final = (".avif", ".gif", ".heic", ".jp2", ".jxl")
_NAMED: Final = 5  # extensions that a message names
Classes = dict[str, list[tuple[str, int, int]]]  # by class folder: path, bytes and time of change of each file, sorted
VIDEOS: Final = (".mp4", ".m4v", ".mov", ".mkv", ".ts", ".avi")


@dataclass(frozen=True, slots=True)
class ClassFolder(Source):
    """``path/<class>/**/<file>``."""

    REFERENCE: ClassVar[str]  # the column that names the files
    SEMANTIC: ClassVar[str]
    EXTENSIONS: ClassVar[tuple[str, ...]]
    path: str
    origin: bool = False

    def __post_init__(self) -> None:
        check(self, type(self).__name__, "=", SourceError, origin=FLAG)
        object.__setattr__(self, "path", absolute_folder(self.path))

    def open(self) -> Reader:
        return ClassFolderReader(self)

    @property
    def schema(self) -> pa.Schema:
        """The columns of every such folder."""
        kinds = {"sample_id": pa.utf8(), self.REFERENCE: pa.utf8(), "label_id": pa.int64(), "class_name": pa.utf8()}
        sized = {**kinds, "size_bytes": pa.int64(), "storage_shard": pa.utf8()}
        origin = {FILE: pa.utf8(), INDEX: pa.int64()} if self.origin else {}
        return with_semantic(pa.schema(list((sized | origin).items())), {self.REFERENCE: self.SEMANTIC})


@final
@class_door(SourceError)
@dataclass(frozen=True, slots=True)
class ImageFolder(ClassFolder):
    """``path/<class>/**/<image>``: labels are the places of the sorted class names.

    Columns: ``sample_id`` and ``image_ref`` (path relative to ``path``),
    ``label_id``, ``class_name``, ``size_bytes``, ``storage_shard`` (the class folder).

    Args:
        path: the folder, or the URI of one on an object store; ``~`` is expanded.
        origin: whether to add the columns ``__file__``, the path of a row's file below the folder, and
            ``__index_in_file__``, which is 0: a file is a row.

    Examples:
        >>> for kind in ("fox", "owl"):
        ...     Path("pictures", kind).mkdir(parents=True)
        ...     size = Path("pictures", kind, "1.jpg").write_bytes(jpeg(9))
        >>> entry = catalog.register("from-folder", spiral.ImageFolder("pictures"))
        >>> catalog.table("from-folder").columns
        ['sample_id', 'image_ref', 'label_id', 'class_name', 'size_bytes', 'storage_shard']
    """

    KIND: ClassVar[str] = "image_folder"
    REFERENCE: ClassVar[str] = "image_ref"
    SEMANTIC: ClassVar[str] = JPEG_REF
    EXTENSIONS: ClassVar[tuple[str, ...]] = IMAGES


@final
@class_door(SourceError)
@dataclass(frozen=True, slots=True)
class VideoFolder(ClassFolder):
    """``path/<class>/**/<video>``: each file is one clip; labels are the places of the sorted class names.

    Columns: ``sample_id`` and ``clip_ref`` (path relative to ``path``),
    ``label_id``, ``class_name``, ``size_bytes``, ``storage_shard`` (the class folder).

    Args:
        path: the folder, or the URI of one on an object store; ``~`` is expanded.
        origin: whether to add the columns ``__file__``, the path of a row's file below the folder, and
            ``__index_in_file__``, which is 0: a file is a row.

    Examples:
        >>> for kind in ("fox", "owl"):
        ...     Path("clips", kind).mkdir(parents=True)
        ...     size = Path("clips", kind, "1.mp4").write_bytes(b"a film")  # registering decodes nothing
        >>> entry = catalog.register("from-clips", spiral.sources.VideoFolder("clips"))
        >>> catalog.table("from-clips").to_arrow()["clip_ref"].to_pylist()
        ['fox/1.mp4', 'owl/1.mp4']
    """

    KIND: ClassVar[str] = "video_folder"
    REFERENCE: ClassVar[str] = "clip_ref"
    SEMANTIC: ClassVar[str] = H264_REF
    EXTENSIONS: ClassVar[tuple[str, ...]] = VIDEOS


@final
class ClassFolderReader(ReaderOver):
    """A listed folder of class folders."""

    def __init__(self, source: ClassFolder) -> None:
        kind = type(source).__name__
        remote = is_object(source.path)
        if not remote and not Path(source.path).is_dir():
            raise not_found(source.path, kind)
        left: Counter[str] = Counter()
        try:
            with working(f"looking at the files of {cut(source.path)}", "files") as shown:
                found = _objects(source, left) if remote else _classes(source, left, shown)
            units, tables = _list_classes(source, found)
        except (OSError, UnicodeEncodeError) as error:
            what = f"the name {error.object!r} is not UTF-8" if isinstance(error, UnicodeEncodeError) else str(error)
            msg = f"{kind} {source.path}: {what}. Rename or remove it, or check its rights"
            raise SourceError(msg) from error
        self.left_out = _left_out(source, left)
        rows = pa.concat_tables(tables)
        self._listed = _Pins(units, rows, found) if remote else None
        super().__init__(MemoryReader(rows, units, source.path))

    def listed(self, name: str) -> Pin | None:
        return None if self._listed is None else self._listed.pin(name)


@final
class _Pins:
    """What a list said of each object, 8 bytes each next to the rows. Rows of a class are sorted by path."""

    def __init__(self, units: Sequence[Unit], rows: pa.Table, found: Classes) -> None:
        starts = np.cumsum([0, *(unit.rows for unit in units)]).tolist()
        self._rows = {unit.name: range(start, start + unit.rows) for unit, start in zip(units, starts, strict=False)}
        self._paths = rows["sample_id"].combine_chunks()
        self._sizes = rows["size_bytes"].combine_chunks()
        self._marks = np.array([when for unit in units for _, _, when in found[unit.name]], np.int64)

    def pin(self, name: str) -> Pin | None:
        """Return the pin of a file by its path; None if it is not among them."""
        name = name.removeprefix("./")
        rows = self._rows.get(name.partition("/")[0], range(0))
        at = bisect_left(rows, name, key=lambda row: self._paths[row].as_py())
        if at == len(rows) or self._paths[rows[at]].as_py() != name:
            return None
        return Pin(self._sizes[rows[at]].as_py(), int(self._marks[rows[at]]), 0)


def _left_out(source: ClassFolder, left: Counter[str]) -> str | None:
    """Say which files are not read: how many of each extension."""
    if not left:
        return None
    kinds = sorted(left, key=lambda each: (-left[each], each))
    named = [f"{left[each]:,} {each or 'without an extension'}" for each in kinds[:_NAMED]]
    more = f", {sum(left[each] for each in kinds[_NAMED:]):,} of other kinds" if len(kinds) > _NAMED else ""
    known = [each for each in kinds if each in _OTHER_IMAGES]
    way = (
        f" Convert {' '.join(known)} to PNG or WebP to read them." if known and isinstance(source, ImageFolder) else ""
    )
    files = f"{left.total():,} files" if left.total() > 1 else "1 file"
    return (
        f"{type(source).__name__} {cut(source.path)} leaves {files} out: {', '.join(named)}{more}; it reads "
        f"{' '.join(source.EXTENSIONS)} in class folders.{way}"
    )


def _extension(name: str) -> str:
    return os.path.splitext(name)[1].lower()  # noqa: PTH122  a Path costs 10x as much


def _classes(source: ClassFolder, left: Counter[str], shown: Callable[[int], None]) -> Classes:
    """The files of each class folder, sorted; counts by extension the files that are left out."""
    found: Classes = {}
    seen = 0
    with os.scandir(source.path) as entries:
        for entry in entries:
            if not entry.name.startswith(".") and entry.is_dir():
                folder = os.path.join(source.path, entry.name)  # noqa: PTH118  Path costs 10x as much a file
                found[entry.name] = sorted(_files(folder, entry.name, source.EXTENSIONS, left))
                seen += len(found[entry.name])
                shown(seen)
            elif not entry.name.startswith("."):
                left[_extension(entry.name)] += 1
    return found


def _objects(source: ClassFolder, left: Counter[str]) -> Classes:
    """As `_classes`, of objects."""
    folders = grouped(shown_files(listed_below(source.path, type(source).__name__)))
    found: Classes = {}
    for folder, files in folders.items():
        good = [bool(folder) and each.name.lower().endswith(source.EXTENSIONS) for each in files]
        left.update(_extension(each.name) for each, is_media in zip(files, good, strict=True) if not is_media)
        if folder:
            is_media = [each for each, is_media in zip(files, good, strict=True) if is_media]
            found[folder] = [(each.name, *pin_of(each.facts)[:2]) for each in is_media]
    return found


def _list_classes(source: ClassFolder, found: Classes) -> tuple[list[Unit], list[pa.Table]]:
    """Return a unit and a table for each class folder."""
    kind, root = type(source).__name__, source.path
    classes = list(found)
    classes.sort()
    what = "image" if isinstance(source, ImageFolder) else "video"
    if not classes:
        msg = (
            f"{kind}: {root} has no class folders; {what}s lie in {root}/<class name>/<{what}>. Put them into folders, one per "
            f'class; or register a table that names them, with base="{root}" (docs/howto/images.md)'
        )
        raise SourceError(msg)
    units, tables = [], []
    for label, name in enumerate(classes):
        files = found[name]
        if not files:
            msg = (
                f"{kind}: class folder {name!r} of {root} has no {what} "
                f"({' '.join(source.EXTENSIONS)}). Remove the folder, or put {what}s into it"
            )
            raise SourceError(msg)
        paths, sizes, times = zip(*files, strict=True)
        count = len(paths)
        columns = [
            pa.array(paths, pa.utf8()),
            pa.array(map(reference_to, paths), pa.utf8()),
            pa.array(np.full(count, label, dtype=np.int64)),
            pa.array([name] * count, pa.utf8()),
            pa.array(sizes, pa.int64()),
            pa.array([name] * count, pa.utf8()),
            *([pa.array(paths, pa.utf8()), pa.array(np.zeros(count, np.int64))] if source.origin else []),
        ]
        facts = "\0".join(paths), np.array(sizes, np.int64).tobytes(), np.array(times, np.int64).tobytes()
        # the label is part of the rows, and it moves when a class is added before this one
        units.append(Unit(name, count, sum(sizes), content_key(label, *facts), (count,)))
        tables.append(pa.table(columns, schema=source.schema))
    return units, tables


def _files(
    folder: str, relative: str, extensions: tuple[str, ...], left: Counter[str]
) -> Iterator[tuple[str, int, int]]:
    """(relative path, bytes, mtime in ns) of each file of a kind below ``folder``; 3 us per file in CPython."""
    with os.scandir(folder) as entries:
        for entry in entries:
            name = f"{relative}/{entry.name}"
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield from _files(entry.path, name, extensions, left)
            elif entry.name.lower().endswith(extensions):
                facts = entry.stat()
                need_file(entry.path, facts)
                yield name, facts.st_size, facts.st_mtime_ns
            else:
                left[_extension(entry.name)] += 1
