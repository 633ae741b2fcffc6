"""Datasets of Hugging Face: a folder of ``save_to_disk``, or one of Parquet files as on the Hub.

Neither needs the package ``datasets``. Rows are read where they lie: Arrow files are memory-mapped (`arrow.stream`), and Parquet
files are read by row group (`parquet`). Arrow files on an object store have no index to read rows by: a catalog reads them once
and keeps the rows. Columns become those of Spiral in `features`.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, final

import pyarrow as pa

from spiral_stream.arguments import FLAG, check, class_door, of_kind
from spiral_stream.errors import SourceError, cut
from spiral_stream.semantic import BYTES
from spiral_stream.sources.arrow.stream import ArrowStreamReader, has_values, object_batches
from spiral_stream.sources.change_detection import content_key
from spiral_stream.sources.columnar.features import FeaturedColumns, FeaturedReader, Features, media_columns
from spiral_stream.sources.columnar.parquet import ParquetReader
from spiral_stream.sources.files.listing import ListedObject, confirmed, found_below, listed_below, need_utf8
from spiral_stream.sources.files.partition_columns import need_free, with_added
from spiral_stream.sources.files.paths import absolute, absolute_folder, not_found, outside_allowed
from spiral_stream.sources.import_source import FILE, INDEX, LINE_COLUMNS, ImportedSource, ImportUnit, Refused
from spiral_stream.sources.source import Known, Reader
from spiral_stream.storage.faults import NotThereError
from spiral_stream.storage.file_object import maps
from spiral_stream.storage.open import store_of
from spiral_stream.storage.uri import is_object

_WHAT: Final = "HuggingFace"
_SPLIT_FILE: Final = re.compile(r"(.+?)-\d{5}-of-\d{5}(?:-[0-9a-f]+)?\.parquet")  # train-00000-of-00002.parquet
_NUMBER: Final = re.compile(r"\d+\.parquet")  # train/0000.parquet, as the Hub converts datasets
_DATA: Final = "data"  # the folder of a dataset with one configuration
_ALL: Final = "train"  # the split of files that name none
_SPLITS: Final = frozenset(("train", "test", "validation", "valid", "val", "dev", "eval"))


@final
@class_door(SourceError)
@dataclass(frozen=True, slots=True)
class HuggingFace(ImportedSource):
    """A dataset that ``datasets`` wrote: a folder of ``save_to_disk``, or Parquet files as ``push_to_hub`` lays them out.

    Columns of images, videos and sounds are reference columns: binary where the rows hold the bytes, else utf8 paths.
    Class labels are described by their names. Formats that ``set_format`` chose are not applied.

    Rows are read in place, except those of a folder of ``save_to_disk`` on an object store: it is read once, when it is
    registered, and the catalog keeps its rows.

    Args:
        path: the folder, or its URI on an object store; ``~`` is expanded.
        split: such as ``"train"``; needed where there are several.
        base: folder that relative paths of images start from; by default ``path``.
        allow_outside: whether paths may name files that do not lie below ``base``; by default only where no base is given.
        origin: whether to add the columns ``__file__``, the name of a row's file, and ``__index_in_file__``, its place in it.

    Examples:
        >>> import datasets
        >>> datasets.Dataset.from_dict({"id": [0, 1], "text": ["fox", "owl"]}).save_to_disk("saved")
        >>> entry = catalog.register("from-hub", spiral.sources.HuggingFace("saved"), identity="id")
        >>> catalog.table("from-hub").count()
        2
    """

    KIND: ClassVar[str] = "huggingface"
    PATHS: ClassVar[tuple[str, ...]] = ("path", "base")
    path: str
    split: str | None = None
    base: str | None = None  # type: ignore[assignment]  # None stands for the path
    allow_outside: bool | None = None
    origin: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", absolute_folder(self.path))
        object.__setattr__(self, "allow_outside", outside_allowed(self.base, self.allow_outside))
        if self.base is not None:
            object.__setattr__(self, "base", absolute(self.base))
        split = of_kind(str | None, 'the name of one split, such as "train"')
        check(self, _WHAT, "=", SourceError, split=split, origin=FLAG)

    @property
    def imports(self) -> bool:
        return not maps(self.path) and self._folder()[1] is not None

    def import_units(self) -> Sequence[ImportUnit]:
        folder, state = self._folder()
        names, info = _saved_files(folder, state or {})
        there = {each.name: each.facts for each in listed_below(folder, _WHAT)}
        uris = {name: f"{folder}/{name}" for name in names}
        if missing := next((name for name in uris if name not in there), None):
            msg = f"{_WHAT}: {cut(f'{folder}/state.json')} lists {cut(missing)}, which is not there. Save the dataset again"
            raise SourceError(msg)
        facts = confirmed([ListedObject(uri, uri, there[name], looked=False) for name, uri in uris.items()])
        said = json.dumps(info.get("features"), sort_keys=True)
        return [
            ImportUnit(name, uri, seen.size, content_key(name, seen.size, seen.mark, said), seen=(seen,), also=said)
            for (name, uri), seen in zip(uris.items(), facts, strict=True)
        ]

    def import_schema(self, units: Sequence[ImportUnit]) -> pa.Schema:
        batches = (batch for unit in units for batch in object_batches(unit.path, unit.facts(unit.path)))
        stored = next(batches).schema
        features = _features_of(units[0], stored)
        inline = dict[str, bool]()  # as `ArrowStreamReader.has_values`
        media = media_columns(stored, features)
        while len(inline) < len(media) and (batch := next(batches, None)) is not None:
            some = [name for name in media if name not in inline and batch.column(name).null_count < len(batch)]
            inline |= {name: has_values(batch.column(name), BYTES) for name in some}
        batches.close()
        schema = FeaturedColumns(stored, features, dict.fromkeys(media, True) | inline, self.path).schema
        if self.origin:
            need_free(schema, self.path, (FILE, INDEX))
        return schema

    def import_rows(self, unit: ImportUnit, schema: pa.Schema, refused: Refused) -> Iterator[pa.RecordBatch]:
        del refused
        batches = object_batches(unit.path, unit.facts(unit.path))
        stored = next(batches).schema
        features = _features_of(unit, stored)
        inline = {
            name: name in schema.names and not pa.types.is_string(schema.field(name).type)
            for name in media_columns(stored, features)
        }
        columns = FeaturedColumns(stored, features, inline, self.path)
        if not columns.schema.equals(schema):
            msg = f"Arrow file {cut(unit.path)} has other columns than the dataset that was registered. Save the dataset again"
            raise SourceError(msg)
        for batch in batches:
            yield pa.record_batch([columns.column(batch, name) for name in schema.names], schema)

    def presented(self, reader: Reader) -> Reader:
        reader.base = self.base or self.path
        if not self.origin:
            reader.schema = pa.schema([field for field in reader.schema if LINE_COLUMNS not in (field.metadata or {})])
        return reader

    def open(self) -> Reader:
        return self._open(None)

    def open_known(self, known: Known) -> Reader:
        return self._open(known)

    def _open(self, known: Known | None) -> Reader:
        folder, state = self._folder()
        if state is not None and not maps(folder):
            return ImportedSource.open(self)  # which refuses that
        rows = _parquet(self, known) if state is None else _saved(self, folder, state, known)
        return with_added(rows, {}, known, origin=self.origin)

    def _folder(self) -> tuple[str, Mapping[str, Any] | None]:
        """The folder of the one split, where each has its own, and its ``state.json``; None where it has none.

        Raises:
            SourceError: there is none, or which one is meant is not said.
        """
        folder = self.path
        if not is_object(folder) and not Path(folder).is_dir():
            raise not_found(self.path, "Hugging Face dataset")
        splits_of = _read(f"{folder}/dataset_dict.json")
        if splits_of is not None:
            splits = splits_of.get("splits")
            if not isinstance(splits, list) or not all(isinstance(each, str) and _is_name(each) for each in splits):
                msg = f"{_WHAT}: {cut(f'{folder}/dataset_dict.json')} lists no splits. Save the dataset again"
                raise SourceError(msg)
            folder = f"{folder}/{_chosen(splits, self.split, self.path)}"
            return folder, _need(f"{folder}/state.json")
        state = _read(f"{folder}/state.json")
        if self.split is not None and state is not None:
            msg = f"{_WHAT}: {cut(self.path)} is a dataset without splits, and split={self.split!r} was asked for. Give no split"
            raise SourceError(msg)
        return folder, state


def _saved_files(folder: str, state: Mapping[str, Any]) -> tuple[list[str], Features]:
    """The names of the Arrow files of a folder of ``save_to_disk``, and what it says of its columns.

    Raises:
        SourceError: it lists none, or its rows are a choice of theirs.
    """
    info = _need(f"{folder}/dataset_info.json")
    indices = next((key for key in state if "indices" in key and state[key]), None)
    if indices is not None:
        msg = (
            f"{_WHAT}: {cut(folder)} has an indices mapping ({indices}): its rows are a choice of those in its files, "
            "as older versions of datasets saved it. Write the chosen rows: dataset.flatten_indices().save_to_disk(...)"
        )
        raise SourceError(msg)
    files = state.get("_data_files")
    names = [each.get("filename") for each in files if isinstance(each, dict)] if isinstance(files, list) else []
    if not names or not all(isinstance(name, str) and _is_name(name) for name in names):
        msg = f"{_WHAT}: {cut(f'{folder}/state.json')} lists no data files of its folder. Save the dataset again"
        raise SourceError(msg)
    return [str(name) for name in names], info


def _saved(source: HuggingFace, folder: str, state: Mapping[str, Any], known: Known | None) -> Reader:
    """Open a folder of ``save_to_disk`` on this machine."""
    names, info = _saved_files(folder, state)
    rows = ArrowStreamReader(
        folder,
        names,
        source.base or source.path,
        allow_outside=bool(source.allow_outside),
        known=known,
        mark="origin" if source.origin else "",
    )
    features = _features(info, rows.first.schema)
    return FeaturedReader(rows, features, {n: rows.has_values(n, BYTES) for n in media_columns(rows.schema, features)})


def _parquet(source: HuggingFace, known: Known | None) -> Reader:
    """Open Parquet files of one split."""
    import pyarrow.parquet as pq

    if known is None:
        root, names = source.path, _of_split(source, _parquet_names(source.path))
    else:
        root, names = source.path, known.names.to_pylist()
    mark = "origin" if source.origin else ""
    outside = bool(source.allow_outside)
    rows = ParquetReader(root, names, source.base or root, allow_outside=outside, known=known, mark=mark)
    features = _features({}, pq.read_schema(rows.opened(0)))
    media = media_columns(rows.schema, features)
    return FeaturedReader(rows, features, {name: _stores_bytes(rows, len(names), name) for name in media})


def _parquet_names(path: str) -> list[str]:
    """The names of the Parquet files below a folder or a URI.

    Raises:
        SourceError: there are none.
    """
    names = [each.name for each in found_below(path, _WHAT, ".parquet")]
    if names:
        need_utf8(names, path, _WHAT)
        return names
    there = [each.name for each in listed_below(path, _WHAT)]
    arrow = next((name for name in there if name.endswith(".arrow")), None)
    found = f"{cut(arrow)} without the state.json of save_to_disk" if arrow else "neither state.json nor *.parquet"
    msg = (
        f"{_WHAT}: {cut(path)} has {found}; there is {cut(there[0])}. Give a folder that dataset.save_to_disk(...) wrote, or "
        "one of Parquet files as on the Hub"
    )
    raise SourceError(msg)


def _stores_bytes(rows: ParquetReader, count: int, name: str) -> bool:
    """As `_holds_bytes`, by the statistics of Parquet files."""
    import pyarrow.parquet as pq

    for unit in range(count):
        footer = pq.read_metadata(rows.opened(unit))
        for group in (footer.row_group(at) for at in range(footer.num_row_groups)):
            leaves = {leaf.path_in_schema: leaf for leaf in (group.column(at) for at in range(group.num_columns))}
            values = [_values(leaves[f"{name}.{part}"]) for part in (BYTES, "path")]
            if any(values):
                return bool(values[0])
    return True


def _values(leaf: Any) -> int:
    """How many values a column of a row group has, at most."""
    unknown = leaf.statistics is None or not leaf.statistics.has_null_count
    return int(leaf.num_values if unknown else leaf.num_values - leaf.statistics.null_count)


def tells_apart(names: Sequence[str]) -> bool:
    """Whether names of Parquet files say, as the Hub spells them, that they are of several splits or configurations."""
    return len({_configuration_and_split(name) for name in names}) > 1


def _of_split(source: HuggingFace, names: Sequence[str]) -> list[str]:
    """The files of the one configuration and split that are asked for.

    Raises:
        SourceError: there are several, or none of that name.
    """
    splits = [_configuration_and_split(name) for name in names]
    folders = sorted({folder for folder, _ in splits})
    if len(folders) > 1:
        first = next(folder for folder in folders if folder)
        msg = (
            f"{_WHAT}: {cut(source.path)} has several configurations: {', '.join(each or '.' for each in folders)}. Give the "
            f'folder of one: HuggingFace("{cut(source.path)}/{first}")'
        )
        raise SourceError(msg)
    split = _chosen(sorted({split for _, split in splits}), source.split, source.path)
    return [name for name, parsed in zip(names, splits, strict=True) if parsed[1] == split]


def _configuration_and_split(name: str) -> tuple[str, str]:
    """The configuration's folder and the split of a Parquet file."""
    *folders, file = name.split("/")
    piece = _SPLIT_FILE.fullmatch(file)
    if piece is not None:
        split = piece[1]
    elif file.removesuffix(".parquet") in _SPLITS:
        split = file.removesuffix(".parquet")
    elif folders and (_NUMBER.fullmatch(file) or folders[-1] in _SPLITS):
        split = folders.pop()
    else:
        split = _ALL
    if folders == [_DATA]:
        folders = []
    return "/".join(folders), split


def _chosen(splits: Sequence[str], named: str | None, path: str) -> str:
    if named in splits:
        return str(named)
    if named is None and len(splits) == 1:
        return splits[0]
    what = "has several splits" if named is None else f"has no split {named!r}"
    msg = f"{_WHAT}: {cut(path)} {what}: there are {', '.join(splits)}. Name one with split="
    raise SourceError(msg)


def _features(info: Mapping[str, Any], schema: pa.Schema) -> Features:
    """What the dataset says of its columns: in its own file, else in the metadata of its first file."""
    found = info.get("features")
    if not isinstance(found, dict):
        try:
            found = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features")
        except (ValueError, AttributeError):
            found = None
    return found if isinstance(found, dict) else {}


def _features_of(unit: ImportUnit, schema: pa.Schema) -> Features:
    return _features({"features": json.loads(unit.also)}, schema)


def _need(path: str) -> Mapping[str, Any]:
    """As `_read`, of a file that has to be there."""
    found = _read(path)
    if found is None:
        msg = f"{_WHAT}: {cut(path)}: No such file or directory. Save the dataset again"
        raise SourceError(msg)
    return found


def _read(path: str) -> Mapping[str, Any] | None:
    """What a file of JSON says, here or on an object store; None if there is none."""
    try:
        store, key = store_of(path)
        found = json.loads(bytes(store.get(key).data or b""))
    except NotThereError:
        return None
    except ValueError as error:
        msg = f"{_WHAT}: {cut(path)}: {error}. Save the dataset again"
        raise SourceError(msg) from error
    if not isinstance(found, dict):
        msg = f"{_WHAT}: {cut(path)} is no JSON object. Save the dataset again"
        raise SourceError(msg)
    return found


def _is_name(name: str) -> bool:
    """Whether this is the name of a file or folder right here."""
    return bool(name) and "/" not in name and "\0" not in name and name not in (".", "..")
