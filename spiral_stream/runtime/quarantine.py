"""The quarantine table of a stream: which samples were refused, where, and why.

This room only records. `plan.bad_samples` has the policies, and `runtime.bad_samples` applies them.

Every process appends to a file of its own, so any number of processes may write at the same time. It writes one frame per
batch, with a single ``write``: a mark, a checksum of the next two values, the length and the 64-bit XXH3 digest of the
rest, and an Arrow IPC stream.

If a process is killed, an unfinished frame may be left at the end of its file, where reading stops. A damaged frame is
skipped with a warning. Old files have no frames, only the Arrow streams. A batch that is delivered again is written again;
reading keeps one row per (epoch, batch, row).

The files lie next to the caches, under the plan's fingerprint and the digest of its data versions.
"""

import os
import struct
import uuid
from pathlib import Path
from typing import Final, final

import numpy as np
import pyarrow as pa
import xxhash

from spiral_stream.errors import CacheError, DamageError, warn
from spiral_stream.integrity.faults import failed
from spiral_stream.plan.saving.fingerprint import digest
from spiral_stream.plan.verbs.maps import SampleFlatMap
from spiral_stream.planner.stages import Stages
from spiral_stream.planner.state.rebase import Rebase

_FILE: Final = ".frames"
_UNFRAMED: Final = ".arrows"  # Arrow IPC streams, end to end
_FRAME: Final = struct.Struct("<4sI16s")  # mark, checksum of the facts, facts
_FACTS: Final = struct.Struct("<QQ")  # length in bytes, digest
_AGAIN: Final = "Read those batches again, and it is written again"
_MARK: Final = b"\x93RFS"
PART: Final = "part"
_POSITION_FIELDS: Final = (("epoch", pa.int64()), ("batch", pa.int64()), ("row", pa.int32()))
_WHY: Final = (
    *(("field", pa.utf8()), ("reason", pa.utf8()), ("relation", pa.utf8())),
    *(("shard", pa.utf8()), ("reference", pa.utf8())),
)


def schema_of(stages: Stages) -> pa.Schema:
    """Return the columns of a stream's quarantine: those of the identity, then where and why a sample was refused.

    ``stream`` is the stream's name in a mixture. ``part`` is the sample's number among those that ``flat_map`` made of its
    parent. ``row`` is the place in the batch as planned. ``field`` is the batch's field, or the column of tokens. ``shard``
    is the storage shard, and ``reference`` the URI if the relation names one. Where the identity has a column of the same
    name, ours ends in ``_``.
    """
    have = stages.streams[0].node.schema()
    identity = [pa.field(name, have.field(name).type) for name in stages.identity]
    parts = [(PART, pa.int64())] if any(isinstance(step, SampleFlatMap) for step in stages.maps) else []
    more = [*parts, ("stream", pa.utf8()), *_POSITION_FIELDS, *_WHY]
    return pa.schema([*identity, *(pa.field(renamed(stages, name), kind) for name, kind in more)])


def renamed(stages: Stages, name: str) -> str:
    """Return the name of a column of ours, changed if the identity has one of this name."""
    while name in stages.identity:
        name += "_"
    return name


@final
class Quarantine:
    """The quarantine files of one stream. Make a new one after a fork: only one process may append to a file."""

    def __init__(self, root: Path, stages: Stages, rebase: Rebase | None) -> None:
        data = digest([dict(stages.data_versions), None if rebase is None else rebase.to_json()])
        self.folder = root / "quarantine" / f"{stages.fingerprint}-{data[:16]}"
        self.schema = schema_of(stages)
        self._keys = [renamed(stages, name) for name, _ in _POSITION_FIELDS]
        self._name = ""

    def append(self, rows: pa.Table) -> None:
        """Append the rows of one batch, with the columns of `schema`.

        Raises:
            CacheError: the folder cannot be written.
        """
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.schema) as writer:
            writer.write_table(rows.cast(self.schema))
        stream = sink.getvalue()
        facts = _FACTS.pack(stream.size, xxhash.xxh3_64_intdigest(stream))
        data = _FRAME.pack(_MARK, xxhash.xxh32_intdigest(facts), facts) + stream.to_pybytes()
        name = self._name or f"{os.getpid()}-{uuid.uuid4().hex}{_FILE}"
        self._name = ""  # after a failure the next batch goes to another file: nothing may follow half a frame
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                written = os.write(handle, data)
            finally:
                os.close(handle)
        except OSError as error:
            otherwise = "Make it writable, or set $SPIRAL_CACHE"
            raise failed(error, otherwise, "quarantine: cannot write under", self.folder) from error
        if written < len(data):
            msg = f"quarantine: {self.folder} took {written:,} of {len(data):,} bytes. Free some space there, and go on"
            raise CacheError(msg)
        self._name = name

    def read(self) -> pa.Table:
        """Return the rows that all processes wrote, one per (epoch, batch, row), in this order."""
        found = [self.schema.empty_table()]
        for path in sorted(self.folder.glob(f"*{_UNFRAMED}")):
            found += _streams(path)
        for path in sorted(self.folder.glob(f"*{_FILE}")):
            frames, damaged = _frames(path)
            found += [pa.ipc.open_stream(pa.py_buffer(frame)).read_all() for frame in frames]
            if damaged:
                what = (
                    f"quarantine: {path} is damaged in {damaged} places; what it said of refused samples there is lost"
                )
                warn(f"{what}. {_AGAIN}")
        table = pa.concat_tables(found).sort_by([(name, "ascending") for name in self._keys])
        positions_R3 = np.column_stack([table[name].to_numpy().astype(np.int64) for name in self._keys])
        fresh = np.ones(len(table), dtype=np.bool_)
        fresh[1:] = (positions_R3[1:] != positions_R3[:-1]).any(axis=1)
        return table.filter(pa.array(fresh))


def verify_quarantine(path: Path) -> bool:
    """Verify a file of a quarantine; return False if it has no frames to verify it by.

    Raises:
        DamageError: the file is not what was written.
    """
    if path.suffix != _FILE:
        return False
    if damaged := _frames(path)[1]:
        msg = f"{path} is damaged in {damaged} places; what it said of refused samples there is lost. {_AGAIN}"
        raise DamageError(msg)
    return True


def _frames(path: Path) -> tuple[list[bytes], int]:
    """Return the sound frames of a file, up to an unfinished one, and in how many places it is damaged."""
    found: list[bytes] = []
    data = path.read_bytes()
    at = damaged = 0
    while len(data) - at >= _FRAME.size:
        mark, check, facts = _FRAME.unpack_from(data, at)
        size, digest = _FACTS.unpack(facts)
        begun = mark == _MARK and check == xxhash.xxh32_intdigest(facts)
        frame = data[at + _FRAME.size :][: size if begun else 0]
        if begun and len(frame) == size and xxhash.xxh3_64_intdigest(frame) == digest:
            found.append(frame)
            at += _FRAME.size + size
            continue
        after = data.find(_MARK, at + 1)
        if after < 0:
            damaged += not begun or len(frame) == size  # else the end of the frame was never written
            break
        damaged, at = damaged + 1, after
    return found, damaged


def _streams(path: Path) -> list[pa.Table]:
    """Return the batches of a file without frames, up to an unfinished one."""
    source, out = pa.BufferReader(path.read_bytes()), []
    while source.tell() < source.size():
        try:
            out.append(pa.ipc.open_stream(source).read_all())
        except (pa.ArrowInvalid, OSError):
            break
    return out
