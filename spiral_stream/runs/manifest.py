"""`SeenManifest`: a record of what a run saw, small enough to keep beside a model, that others can check.

The root is SHA-256 over the sorted, distinct SHA-256 digests of all identities, end to end: a plain hash of a sorted list, no
Merkle tree. So it is equal for the same set of samples, whatever ranks, order or number of passes delivered them, and one
sample more or less changes it. An identity is the relation's name and the values of its identity columns.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, final

import pyarrow as pa

from spiral_stream.integrity.seal import sealed_json
from spiral_stream.relational.engine import sorted_digests
from spiral_stream.runs.identities import joined, texts
from spiral_stream.runs.leg import Leg
from spiral_stream.runs.opened_leg import OpenedLegs
from spiral_stream.runs.rows_seen import RELATION, TIMES, assembled_table, counted_rows, row_tables

VERSION: Final = 1
_BYTES: Final = 32  # of SHA-256
_COLUMN: Final = pa.schema([("text", pa.large_string())])


@final
@dataclass(frozen=True, slots=True)
class SeenManifest:
    """What a run saw, as a record.

    Attributes:
        plans: fingerprints of the plans.
        data: the data version of every relation; several where it changed during the run.
        batches: ranges that were delivered: epoch, first batch and end, ranks and merge, attempt.
        edits: what the run skips, what it was rebased to, and the shares that it decided on, of each state.
        counts: what was seen of each stream.
        distinct: how many different rows that is.
        root: 64 hex digits over all identities.
        not_recorded: what it says nothing of.

    Examples:
        >>> len(stream.seen().manifest().root)
        64
    """

    plans: tuple[str, ...]
    data: Mapping[str, tuple[str, ...]]
    batches: tuple[Mapping[str, Any], ...]
    edits: tuple[Mapping[str, Any], ...]
    counts: tuple[Mapping[str, Any], ...]
    distinct: int
    root: str
    not_recorded: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values.

        Examples:
            >>> stream.seen().manifest().to_dict()["spiral_manifest"]
            1
        """
        return {
            "spiral_manifest": VERSION,
            "plans": list(self.plans),
            "data": {name: list(versions) for name, versions in self.data.items()},
            "batches": [dict(each) for each in self.batches],
            "edits": [dict(each) for each in self.edits],
            "counts": [dict(each) for each in self.counts],
            "distinct": self.distinct,
            "root": self.root,
            "not_recorded": list(self.not_recorded),
        }

    def to_bytes(self) -> bytes:
        """Return it as a JSON file with a checksum of its own, the same for the same values."""
        return sealed_json(self.to_dict())


def manifest_of(
    legs: Sequence[Leg], opened: OpenedLegs, counts: Sequence[Mapping[str, Any]], not_recorded: Sequence[str]
) -> SeenManifest:
    """Make the manifest of legs.

    Args:
        legs: in the order of the run.
        opened: opens them.
        counts: what was seen of each stream.
        not_recorded: what it says nothing of.
    """
    plans, ranges = dict[str, None](), list[Mapping[str, Any]]()
    data = dict[str, dict[str, None]]()
    edits = list[Mapping[str, Any]]()
    for leg in legs:
        if not leg.known:
            continue
        found = opened.of(leg)
        plans[found.stages.fingerprint] = None
        for name, version in found.stages.data_versions.items():
            data.setdefault(name, {})[version] = None
        ranges.append(
            {
                "attempt": leg.attempt,
                "epoch": leg.epoch,
                "first": leg.first,
                "end": found.end,
                "world_size": leg.world_size,
                "merge": leg.merge,
            }
        )
        lists = found.saved.lists()
        edit: dict[str, Any] = {name: lists[name] for name in ("rebase", "skips", "decided") if name in lists}
        if edit and edit not in edits:
            edits.append(edit)
    root, distinct = root_of(legs, opened)
    versions = {name: tuple(data[name]) for name in sorted(data)}
    return SeenManifest(
        tuple(plans), versions, tuple(ranges), tuple(edits), tuple(counts), distinct, root, tuple(not_recorded)
    )


def root_of(legs: Sequence[Leg], opened: OpenedLegs) -> tuple[str, int]:
    """Return the root over the identities that legs delivered, and how many different ones there are."""
    counted, made = counted_rows(legs, opened)

    def batches() -> Iterator[pa.RecordBatch]:
        for table in chain(row_tables(counted), assembled_table(made)):
            said = texts([table[name] for name in table.column_names if name not in (RELATION, TIMES)])
            relation = table[RELATION].combine_chunks().cast(pa.large_string())
            yield pa.record_batch([joined([relation, said], "\n")], schema=_COLUMN)

    digests = sorted_digests(pa.RecordBatchReader.from_batches(_COLUMN, batches()))
    root = hashlib.sha256()
    for chunk in digests.chunks:
        fixed = chunk.cast(pa.binary(_BYTES))
        root.update(fixed.buffers()[1].slice(fixed.offset * _BYTES, len(fixed) * _BYTES))
    return root.hexdigest(), len(digests)
