"""The quarantine table of a stream: which samples were refused, where, and why.

Every process appends to a file of its own, so any number may write at a time: one frame per batch, in one ``write``
each: a mark, a check of the next two, the bytes and the 64-bit XXH3 digest of what follows, and an Arrow IPC stream.
What a killed process left unfinished is at the end of its file, where reading stops; a frame that is damaged is passed
over with a warning. Files from before there were frames hold the streams alone. A batch that was delivered again says
the same again; reading keeps one row of each (epoch, batch, row). Files lie under the plan's fingerprint and the digest
of its data versions, beside the caches.
"""

import os
import struct
import uuid
import warnings
from pathlib import Path
from typing import Final, final

import numpy as np
import pyarrow as pa
import xxhash

from spiral_stream.errors import CacheError, DamageError, SpiralWarning
from spiral_stream.integrity.faults import failed
from spiral_stream.plan.fingerprint import digest
from spiral_stream.plan.maps import SampleFlatMap
from spiral_stream.planner.physical import Stages
from spiral_stream.planner.rebase import Rebase

_FILE: Final = ".frames"
_UNFRAMED: Final = ".arrows"  # Arrow IPC streams, end to end
_FRAME: Final = struct.Struct("<4sI16s")  # mark, check, facts
_FACTS: Final = struct.Struct("<QQ")  # bytes, digest
_AGAIN: Final = "Read those batches again to have it written again"
_MARK: Final = b"\x93RFS"
PART: Final = "part"
_PLACE: Final = (("epoch", pa.int64()), ("batch", pa.int64()), ("row", pa.int32()))
_WHY: Final = (
    *(("field", pa.utf8()), ("reason", pa.utf8()), ("relation", pa.utf8())),
    *(("shard", pa.utf8()), ("reference", pa.utf8())),
)


def schema_of(stages: Stages) -> pa.Schema:
    """The columns of a stream's quarantine: the identity's, then what tells where and why.

    ``stream`` is the stream's name in a mixture; ``part`` which of its parent's samples one of flat_map is; ``row`` the
    place in the batch as planned; ``field`` the batch's field, or the column of tokens; ``shard`` the storage shard and
    ``reference`` the uri, where the relation names one. Of ours, a name that the identity has too ends in ``_``.
    """
    have = stages.streams[0].node.schema()
    own = [pa.field(name, have.field(name).type) for name in stages.identity]
    parts = [(PART, pa.int64())] if any(isinstance(step, SampleFlatMap) for step in stages.maps) else []
    more = [*parts, ("stream", pa.utf8()), *_PLACE, *_WHY]
    return pa.schema([*own, *(pa.field(renamed(stages, name), kind) for name, kind in more)])


def renamed(stages: Stages, name: str) -> str:
    """What a column of ours is called where the identity may have one of its name."""
    while name in stages.identity:
        name += "_"
    return name


@final
class Quarantine:
    """The files of one stream. Appending is one process's; ask `Quarantine` anew after a fork."""

    def __init__(self, root: Path, stages: Stages, rebase: Rebase | None) -> None:
        data = digest([dict(stages.data_versions), None if rebase is None else rebase.to_json()])
        self.folder = root / "quarantine" / f"{stages.fingerprint}-{data[:16]}"
        self.schema = schema_of(stages)
        self._keys = [renamed(stages, name) for name, _ in _PLACE]
        self._name = ""

    def append(self, rows: pa.Table) -> None:
        """Add rows of `schema`: those of one batch.

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
        self._name = ""  # after a failure the next goes to another file: nothing may follow half a batch
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                written = os.write(handle, data)
            finally:
                os.close(handle)
        except OSError as error:
            otherwise = "make it writable, or set $SPIRAL_CACHE"
            raise failed(error, otherwise, "quarantine: cannot write under", self.folder) from error
        if written < len(data):
            msg = f"quarantine: {self.folder} took {written:,} of {len(data):,} bytes; make room there, and go on"
            raise CacheError(msg)
        self._name = name

    def read(self) -> pa.Table:
        """All rows that any process wrote, one of each (epoch, batch, row), in that order."""
        found = [self.schema.empty_table()]
        for path in sorted(self.folder.glob(f"*{_UNFRAMED}")):
            found += _streams(path)
        for path in sorted(self.folder.glob(f"*{_FILE}")):
            frames, damaged = _frames(path)
            found += [pa.ipc.open_stream(pa.py_buffer(frame)).read_all() for frame in frames]
            if damaged:
                what = f"quarantine: {path} is damaged in {damaged} places, and what it said of refused samples there is lost"
                warnings.warn(f"{what}. {_AGAIN}", SpiralWarning, stacklevel=2)
        table = pa.concat_tables(found).sort_by([(name, "ascending") for name in self._keys])
        places_R3 = np.column_stack([table[name].to_numpy().astype(np.int64) for name in self._keys])
        fresh = np.ones(len(table), dtype=np.bool_)
        fresh[1:] = (places_R3[1:] != places_R3[:-1]).any(axis=1)
        return table.filter(pa.array(fresh))


def verify_quarantine(path: Path) -> bool:
    """Verify a file of a quarantine; returns whether it has frames to verify it by.

    Raises:
        DamageError: it is not what was written.
    """
    if path.suffix != _FILE:
        return False
    if damaged := _frames(path)[1]:
        msg = f"{path} is damaged in {damaged} places; what it said of refused samples there is lost. {_AGAIN}"
        raise DamageError(msg)
    return True


def _frames(path: Path) -> tuple[list[bytes], int]:
    """The sound frames of a file, up to one that was left unfinished, and in how many places it is damaged."""
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
            damaged += not begun or len(frame) == size  # else the end was never written
            break
        damaged, at = damaged + 1, after
    return found, damaged


def _streams(path: Path) -> list[pa.Table]:
    """The batches of a file without frames, up to one that was left unfinished."""
    source, out = pa.BufferReader(path.read_bytes()), []
    while source.tell() < source.size():
        try:
            out.append(pa.ipc.open_stream(source).read_all())
        except (pa.ArrowInvalid, OSError):
            break
    return out
