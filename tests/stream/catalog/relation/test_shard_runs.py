"""Runs of the shard column: those of a loop over all rows, whatever was read before."""

from itertools import groupby

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.catalog.relation.manifest import build_manifest, shard_runs
from spiral_stream.sources import MemoryReader, Unit

FORMS = ["text", "large", "dictionary", "integer", "coded integer"]


def reader_of(units: list[list[int]], form: str, keys: list[str]) -> MemoryReader:
    values = [value for unit in units for value in unit]
    numbers = pa.array(values, pa.int32())
    texts = pa.array([f"s{value}" for value in values], pa.large_utf8() if form == "large" else pa.utf8())
    column = {
        "dictionary": texts.dictionary_encode(),
        "integer": numbers,
        "coded integer": numbers.dictionary_encode(),
    }.get(form, texts)
    facts = [
        Unit(f"u{k}", len(unit), None, key, (len(unit),) if unit else ())
        for k, (unit, key) in enumerate(zip(units, keys, strict=True))
    ]
    return MemoryReader(pa.table({"shard": column}), facts, "")


UNITS = st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=5).filter(any)


@given(units=UNITS, form=st.sampled_from(FORMS), data=st.data())
def test_runs_are_those_of_a_loop_and_the_same_where_units_are_known(
    units: list[list[int]], form: str, data: st.DataObject
) -> None:
    keys = [f"{k:032x}" for k in range(len(units))]
    reader = reader_of(units, form, keys)
    values = [value if "integer" in form else f"s{value}" for unit in units for value in unit]
    expected = [(len(list(rows)), str(value)) for value, rows in groupby(values)]
    starts, names = shard_runs(reader, "shard", reader.units(), None)
    ends = [*starts.tolist()[1:], len(values)]

    assert [
        (end - begin, name) for begin, end, name in zip(starts.tolist(), ends, names.to_pylist(), strict=True)
    ] == expected

    order = data.draw(st.permutations(range(len(units))).map(lambda order: order[: max(1, len(order) - 1)]))
    if any(units[k] for k in order):
        before = build_manifest(reader_of([units[k] for k in order], form, [keys[k] for k in order]), "shard")
        again = shard_runs(reader, "shard", reader.units(), before.known_runs())
        assert (again[0].tolist(), again[1].to_pylist()) == (starts.tolist(), names.to_pylist())


def test_a_unit_that_is_known_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    units = [[0, 0, 1], [1, 2]]
    reader = reader_of(units, "text", ["a" * 32, "b" * 32])
    before = build_manifest(reader, "shard")

    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(MemoryReader, "scan", never)
    starts, names = shard_runs(reader, "shard", reader.units(), before.known_runs())

    assert (starts.tolist(), names.to_pylist()) == ([0, 2, 4], ["s0", "s1", "s2"])
