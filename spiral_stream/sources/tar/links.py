"""Texts that name members of tars, ``tar://shard.tar#key.jpg``, as references to the members' bytes.

Each tar is indexed once per import, from its headers: 40 bytes per member, found by a 128-bit XXH3 of the name. References
say the size and time of their tar, on a store its etag, so that a tar that is written again is noticed wherever they are
read.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeGuard, final

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from spiral_stream.errors import SourceError, cut, shown
from spiral_stream.semantic import SEMANTIC, is_list, is_text
from spiral_stream.sources.change_detection import content_key
from spiral_stream.sources.files.paths import absolute, reference_to
from spiral_stream.sources.import_source import Refused
from spiral_stream.sources.json.columns import without_rows
from spiral_stream.sources.references.resolve import flattened
from spiral_stream.sources.tar.headers import members
from spiral_stream.sources.tar.samples import SEMANTICS, MemberKind, kind_of
from spiral_stream.sources.tar.stream import PLAIN, is_compressed, open_tar
from spiral_stream.storage.faults import AwayError
from spiral_stream.storage.file_object import look, maps
from spiral_stream.storage.open import store_of
from spiral_stream.storage.store import ObjectStat
from spiral_stream.storage.uri import WEB, joined, parse_uri, printable, scheme_of

SCHEME: Final = "tar://"
OF_FILE: Final = ""  # tars are named from the folder of the file that names them
STAMPED: Final = pa.struct(
    [
        ("uri", pa.utf8()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("size", pa.int64()),  # of the tar
        ("mtime", pa.int64()),  # of the tar, in nanoseconds
    ]
)
STAMPED_OBJECT: Final = pa.struct([*list(STAMPED)[:-1], ("etag", pa.utf8())])  # of a member of a tar on a store
_FOUND: Final = ("uri", "offset", "length", "size", "mtime", "etag")  # of a member
_AMBIGUOUS: Final = -1  # a member that cannot be read: a link, or there twice
References = tuple[tuple[str, str], ...]  # column, and the folder that its tars are named from, or OF_FILE


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Index:
    """The members of one tar, sorted by the digest of their names."""

    high: NDArray[np.uint64]  # [M], as the next three
    low: NDArray[np.uint64]
    starts: NDArray[np.int64]  # _AMBIGUOUS for one that cannot be read
    sizes: NDArray[np.int64]

    def find(self, name: str) -> tuple[int, int] | None:
        """Return where a member lies, and its size; None if there is none."""
        high, low = _digest(name)
        at = int(np.searchsorted(self.high, np.uint64(high)))
        while at < len(self.high) and int(self.high[at]) == high:
            if int(self.low[at]) == low:
                return int(self.starts[at]), int(self.sizes[at])
            at += 1
        return None


class _Tar(NamedTuple):
    """One tar that texts name."""

    path: str  # or its URI, for messages
    uri: str  # as references spell it
    facts: ObjectStat
    members: _Index


def need_references(what: str, references: object) -> References:
    """Return the columns of references that a user named, as a frozen value.

    Args:
        what: the source, for messages.
        references: column -> folder; that mapping as pairs; or columns alone, whose tars are named from each file's folder.

    Raises:
        SourceError: it is none.
    """
    given = tuple(references.items()) if isinstance(references, Mapping) else references
    if isinstance(given, list | tuple) and given and all(isinstance(each, str) for each in given):
        given = tuple((each, OF_FILE) for each in given)
    if not _are_pairs(given):
        msg = f"{what}: references={shown(references)}. Give the folder that the tars of each column are named from: "
        msg += '{"image": "/data"}, or ["image"] for tars that are named from the folder of the file itself'
        raise SourceError(msg)
    return tuple((name, absolute(folder) if folder else OF_FILE) for name, folder in given)


def tars_key(references: References, folder: str) -> str:
    """Return a key of all tars that references may name: it changes with their names, sizes and times.

    Args:
        references: the columns.
        folder: of the files that name them.
    """
    facts: list[str | int] = []
    for root in sorted({_root(folder, where) for _, where in references}):
        facts += [each for found in sorted(_tars_below(root)) for each in found]
    return content_key("tars", *facts)


def with_references(schema: pa.Schema, references: References, folder: str, rows: pa.Table, what: str) -> pa.Schema:
    """Return a schema whose columns of texts are references.

    Args:
        schema: as the rows have it.
        references: the columns.
        folder: of the files that name the tars.
        rows: some of them, whose members say what they are.
        what: the source, for messages.

    Raises:
        SourceError: a column is missing, or holds no texts.
    """
    for name, where in references:
        at = schema.get_field_index(name)
        if at < 0 or not _is_text(schema.field(at).type):
            found = "is missing" if at < 0 else f"is {schema.field(at).type}"
            msg = f"{what}: column {name!r} {found}; references are texts such as tar://shard.tar#0001.jpg, or lists of them"
            msg += ". Correct references="
            raise SourceError(msg)
        kinds = {
            kind_of(text.rpartition("#")[2].lower()) for text in _texts(rows[name].combine_chunks()) if text is not None
        }
        kind = kinds.pop() if len(kinds) == 1 else MemberKind.BYTES
        stamped = _stamped(_root(folder, where))
        held = pa.list_(stamped) if is_list(schema.field(at).type) else stamped
        marked = {SEMANTIC: SEMANTICS.get(kind, SEMANTICS[MemberKind.BYTES]).encode()}
        schema = schema.set(at, pa.field(name, held, metadata=marked))
    return schema


def with_texts(schema: pa.Schema, references: References) -> pa.Schema:
    """Return the schema that rows have before their references are resolved."""
    for name, _ in references:
        at = schema.get_field_index(name)
        schema = schema.set(at, pa.field(name, pa.list_(pa.utf8()) if is_list(schema.field(at).type) else pa.utf8()))
    return schema


@final
class TarLinks:
    """Resolves the references of one file.

    Args:
        references: the columns.
        folder: of the file.
        base: that references are relative to, where they lie below it.
        schema: of the rows with their references.
    """

    def __init__(self, references: References, folder: str, base: str, schema: pa.Schema) -> None:
        self._schema, self._base = schema, base
        self._roots = {name: _root(folder, where) for name, where in references}
        self._known: dict[tuple[str, str], _Tar | str] = {}

    def resolved(self, batch: pa.RecordBatch, refused: Refused) -> pa.RecordBatch:
        """Return rows with references in place of texts; rows whose references lead nowhere are refused.

        Raises:
            SourceError: a row is refused and may not be left out, or a tar cannot be read.
        """
        wrong: dict[int, str] = {}
        arrays = []
        for field in self._schema:
            values = batch.column(field.name)
            if field.name in self._roots:
                values = self._column(field, values, wrong)
            arrays.append(values)
        for row in sorted(wrong):
            [values] = batch.slice(row, 1).to_pylist()
            refused.row(f"row {shown(values, 80)}", wrong[row], json.dumps(values, default=str, ensure_ascii=False))
        return without_rows(pa.RecordBatch.from_arrays(arrays, schema=self._schema), wrong)

    def _column(self, field: pa.Field, values: pa.Array, wrong: dict[int, str]) -> pa.Array:
        flat, owners = flattened(values) if is_list(values.type) else (values, np.arange(len(values)))
        found = []
        for row, text in zip(owners.tolist(), flat.to_pylist(), strict=True):  # 3 us per reference
            each = None if text is None else self._find(text, self._roots[field.name])
            if isinstance(each, str):
                wrong.setdefault(row, f"{field.name} {shown(text)} {each}")
                each = None
            found.append(each)
        stamped = list(_stamped(self._roots[field.name]))
        places = [_FOUND.index(kind.name) for kind in stamped]
        said = (None if each is None else tuple(each[k] for k in places) for each in found)
        made = pa.array(said, pa.struct(stamped))
        if not is_list(values.type):
            return made
        counts = np.bincount(owners, minlength=len(values))
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), made, mask=values.is_null())

    def _find(self, text: str, root: str) -> tuple[Any, ...] | str:
        """The reference that a text stands for, or what is wrong with it."""
        tar, mark, member = text.removeprefix(SCHEME).partition("#")
        if not mark or not tar or not member:
            return "names no member of a tar; it would be tar://shard.tar#0001.jpg"
        known = self._known.get((root, tar))
        if known is None:
            known = self._known[root, tar] = self._opened(root, tar)
        if isinstance(known, str):
            return known
        member_at = known.members.find(member.removeprefix("./"))
        if member_at is None:
            return f"is not in {cut(known.path)}. Correct it, or leave the row out"
        if member_at[0] == _AMBIGUOUS:
            return f"is a link in {cut(known.path)}, or there twice, so its bytes are unclear. Write the tar again"
        return known.uri, *member_at, known.facts.size, known.facts.modified_ns, known.facts.etag

    def _opened(self, root: str, tar: str) -> _Tar | str:
        """The tar that texts name, or what is wrong with it."""
        is_file = maps(root)
        if scheme_of(tar) if is_file else tar.startswith("/"):
            of = "a tar on a store" if is_file else "a file of this machine"
            return f"names {of}, and references= gives {cut(printable(root))}. Correct one of them"
        try:
            uri = joined(root, tar)
        except SourceError as error:
            return f"names no tar: {error}"
        path = printable(uri)
        if is_compressed(uri):
            return f"lies in {cut(path)}, which is compressed: no offset leads into it. Uncompress it"
        try:
            facts = look(uri)
        except AwayError:
            raise
        except SourceError as error:
            return f"lies in {error}; or correct references="
        return _Tar(path, _relative(uri, self._base), facts, _INDEXED[is_file](uri, facts))


def _root(folder: str, where: str) -> str:
    """The folder, or the URI, that tars are named from."""
    return where or os.path.join(folder, "")  # noqa: PTH118


def _stamped(root: str) -> pa.StructType:
    """What a reference says: files are told apart by their time, objects by their etag."""
    return STAMPED if maps(root) else STAMPED_OBJECT


def _relative(uri: str, base: str) -> str:
    """The name of a tar below a base; elsewhere its path or URI."""
    (root, key), (of_base, start) = parse_uri(uri), parse_uri(base)
    prefix = f"{start.rstrip('/')}/" if start else ""
    return reference_to(key[len(prefix) :]) if root == of_base and key.startswith(prefix) else uri


def _members_of(path: str, seen: ObjectStat) -> _Index:
    """The members of a tar as it is at one time."""
    digests, spans = [], []
    with open_tar(path, seen) as tar:
        for member in members(tar):
            digests.append(_digest(member.name.removeprefix("./")))
            spans.append((_AMBIGUOUS if member.fault else member.start, member.size))
    digests_M2 = np.array(digests, np.uint64).reshape(-1, 2)
    spans_M2 = np.array(spans, np.int64).reshape(-1, 2)
    order = np.lexsort((digests_M2[:, 1], digests_M2[:, 0]))
    digests_M2, spans_M2 = digests_M2[order], spans_M2[order]
    twice = np.flatnonzero((digests_M2[1:] == digests_M2[:-1]).all(axis=1))
    spans_M2[twice, 0] = _AMBIGUOUS  # the first of them is the one that is found
    columns = (*digests_M2.T, *spans_M2.T)
    return _Index(*(np.ascontiguousarray(column) for column in columns))


_INDEXED: Final = {
    True: lru_cache(32)(_members_of),
    False: lru_cache(512)(_members_of),
}  # an object costs requests again


def _digest(name: str) -> tuple[int, int]:
    found = xxhash.xxh3_128_intdigest(name.encode("utf-8", "surrogateescape"))
    return found >> 64, found & ((1 << 64) - 1)


def _tars_below(root: str) -> Iterator[tuple[str, int, int]]:
    """The tars below a folder or a URI: name, size and mark."""
    if scheme_of(root) in WEB:
        msg = (
            f"references=: the tars are named from {cut(printable(root))}, and a web server does not say which there are. Put "
            "them on an object store, or write references as struct<uri, offset, length> into Parquet"
        )
        raise SourceError(msg)
    store, key = store_of(root)
    prefix = f"{key.rstrip('/')}/" if key else ""
    for name, facts in store.list(prefix, PLAIN):
        yield name[len(prefix) :], facts.size, facts.mark


def _is_text(kind: pa.DataType) -> bool:
    return is_text(kind.value_type if is_list(kind) else kind)


def _texts(values: pa.Array) -> Sequence[str | None]:
    found: Sequence[str | None] = (flattened(values)[0] if is_list(values.type) else values).to_pylist()
    return found


def _are_pairs(value: object) -> TypeGuard[Sequence[Sequence[str]]]:
    pair = 2
    return isinstance(value, list | tuple) and all(
        isinstance(each, list | tuple) and len(each) == pair and all(isinstance(text, str) for text in each)
        for each in value
    )
