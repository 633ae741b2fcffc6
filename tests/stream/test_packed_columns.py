"""Columns of one sample packed with a width each: inputs and targets share the rows, the samples and the segment numbers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.batching import Setting
from spiral_stream.errors import BindError, DataError, PlanError
from spiral_stream.testing import ChapterSamples, check_formation
from tests.fixtures.examples import few
from tests.fixtures.packed_columns import (
    FIELDS,
    WIDTHS,
    drawn_table,
    make_catalog,
    packed,
    plan,
    policies,
)
from tests.fixtures.texts import TOKENIZER, tokenizer

pytestmark = [pytest.mark.usefixtures("no_threads_left"), pytest.mark.timeout(600)]

FEW = few(6, 60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
MANY = few(60, 400, deadline=None)
Row = list[int]  # numbers of samples, in the order in which they joined


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("packed"))


# ---- the same in plain Python


def plain_rows(lengths: Sequence[Sequence[int]], policy: sp.batching.Packed) -> list[Row]:
    """First fit and best fit as they are told: of each sample one length per column."""
    widths = list(policy.widths.values())
    rows: list[Row] = []
    turns: list[int] = []  # when each row took a sample last

    def free(row: Row) -> list[int]:
        return [width - sum(lengths[at][c] for at in row) for c, width in enumerate(widths)]

    def has_room(row: Row, sample: int) -> bool:
        few_enough = policy.max_segments is None or len(row) < policy.max_segments
        return few_enough and all(n <= room for n, room in zip(lengths[sample], free(row), strict=True))

    order = list(range(len(lengths)))
    best = policy.strategy == "best_fit"
    if best and len(widths) > 1:
        order.sort(key=lambda at: -sum((n * 2**28 // w) ** 2 for n, w in zip(lengths[at], widths, strict=True)))
    elif best:
        order.sort(key=lambda at: -lengths[at][0])
    for turn, sample in enumerate(order):
        fits = [at for at, row in enumerate(rows) if has_room(row, sample)]
        if best:
            fits.sort(
                key=lambda at: (min(n * 2**30 // w for n, w in zip(free(rows[at]), widths, strict=True)), -turns[at])
            )
        if not fits:
            rows.append([])
            turns.append(0)
        at = fits[0] if fits else len(rows) - 1
        rows[at].append(sample)
        turns[at] = turn
    return rows


@MANY
@given(data=st.data(), columns=st.integers(1, 5), batch_size=st.none() | st.integers(1, 4), multi=st.booleans())
def test_a_former_packs_columns_as_the_plain_algorithm_does(
    data: st.DataObject, columns: int, batch_size: int | None, multi: bool
) -> None:
    widths = data.draw(st.lists(st.sampled_from([1, 7, 8, 24, 1000, 2**24 - 1]), min_size=columns, max_size=columns))
    count = data.draw(st.integers(0, 40))
    share = data.draw(st.sampled_from([0.2, 0.6, 1.0]))
    lengths = [data.draw(st.tuples(*(st.integers(0, int(width * share)) for width in widths))) for _ in range(count)]
    policy = sp.batching.Packed(
        {f"c{at}": width for at, width in enumerate(widths)},
        data.draw(st.sampled_from(["best_fit", "first_fit"])),
        data.draw(st.none() | st.integers(1, 3)),
        8 if multi else 64,
    )
    chapter = ChapterSamples(
        np.array(lengths, dtype=np.int64).reshape(count, columns).T, np.zeros(count, dtype=np.int32)
    )

    out = check_formation(policy, chapter, chapter.setting(batch_size=batch_size))

    delivered = sorted(sample for batch in out.batches for sample in batch.samples.tolist())
    assert delivered == list(range(count))
    for batch in out.batches:
        assert batch.packing is not None
        assert batch.packing.lengths.T.tolist() == [list(lengths[at]) for at in batch.samples.tolist()]
        assert batch.width == sum(widths)
    if not multi:
        found = [
            batch.samples[batch.packing.rows == row].tolist()  # type: ignore[union-attr]  # it is packed
            for batch in out.batches
            for row in range(batch.rows)
        ]
        assert sorted(found) == sorted(plain_rows(lengths, policy))


@MANY
@given(data=st.data(), batch_size=st.integers(1, 4))
def test_one_column_with_a_width_of_its_own_is_packed_as_without_a_name(data: st.DataObject, batch_size: int) -> None:
    lengths = np.array(data.draw(st.lists(st.integers(0, 24), max_size=60)), dtype=np.int64)
    own = {
        "strategy": data.draw(st.sampled_from(["best_fit", "first_fit"])),
        "max_segments": data.draw(st.none() | st.integers(1, 3)),
        "window_size": data.draw(st.sampled_from([4, 16, 64])),
    }
    streams, setting = np.zeros(len(lengths), dtype=np.int32), Setting(5, len(lengths), batch_size=batch_size)

    one = check_formation(sp.batching.Packed(24, **own), ChapterSamples(lengths, streams), setting)
    named = check_formation(sp.batching.Packed({"tokens": 24}, **own), ChapterSamples(lengths[None], streams), setting)

    for a, b in zip(one.batches, named.batches, strict=True):
        assert a.packing is not None
        assert b.packing is not None
        assert (a.samples == b.samples).all()
        assert (a.lengths == b.lengths).all()
        for name in ("rows", "starts", "offsets", "lengths"):
            assert (getattr(a.packing, name) == np.atleast_2d(getattr(b.packing, name))[0]).all()


def test_hundreds_of_rows_are_looked_at_in_runs_and_the_fullest_is_found() -> None:
    rng = np.random.default_rng(4)
    lengths = np.stack([rng.integers(300, 700, 800), rng.integers(0, 256, 800)])
    for strategy in ("best_fit", "first_fit"):
        policy = sp.batching.Packed({"a": 1000, "b": 256}, strategy)
        chapter = ChapterSamples(lengths, np.zeros(800, dtype=np.int32))
        out = check_formation(policy, chapter, chapter.setting())
        found = [batch.samples.tolist() for batch in out.batches]
        assert len(found) > 380  # 256 of them are a run
        assert sorted(found) == sorted(plain_rows(lengths.T.tolist(), policy))


# ---- at the door


def read(catalog: sp.Catalog, name: str, policy: sp.batching.Packed, **options: Any) -> list[dict[str, Any]]:
    with plan(catalog, name, policy, **options).to_numpy() as stream:
        return list(stream)


def pieces_of(batch: Mapping[str, Any], row: int, column: str) -> dict[int, list[int]]:
    """The tokens of each segment of a row."""
    segments, tokens = batch[f"{column}_segment_ids"][row], batch[column][row]
    return {int(number): tokens[segments == number].tolist() for number in np.unique(segments[segments > 0])}


@FEW
@given(drawn=policies())
def test_every_sample_comes_once_and_is_the_same_segment_in_every_column(
    catalog: sp.Catalog, drawn: tuple[str, dict[str, Any]]
) -> None:
    name, own = drawn
    policy = sp.batching.Packed(**own)
    table, seen = {row["key"]: row for row in drawn_table(name).to_pylist()}, []
    for batch in read(catalog, name, policy):
        for row, keys in enumerate(batch["key"]):
            seen += keys
            counted = [key for key in keys if table[key]["inputs"] or table[key]["targets"]]
            assert len(keys) <= (policy.max_segments or len(keys))
            for column, width in policy.widths.items():
                assert batch[column].shape[1] == width
                expected = {at: table[key][column][:width] for at, key in enumerate(counted, 1)}
                assert pieces_of(batch, row, column) == {at: each for at, each in expected.items() if each}
                assert (batch[column][row][batch[f"{column}_segment_ids"][row] == 0] == -1).all()
                ranges = [n for each in expected.values() for n in range(len(each))]
                positions = batch[f"{column}_positions"][row]
                assert positions.tolist() == ranges + [0] * (width - len(ranges))
    above = {
        key for key, row in table.items() if any(len(row[column]) > width for column, width in policy.widths.items())
    }
    assert sorted(seen) == sorted(set(table) - (above if policy.oversize == "drop" else set()))


@FEW
@given(drawn=policies())
def test_a_state_is_small_however_rows_are_packed(catalog: sp.Catalog, drawn: tuple[str, dict[str, Any]]) -> None:
    name, own = drawn
    with plan(catalog, name, sp.batching.Packed(**own)).to_numpy() as stream:
        next(iter(stream))
        assert len(json.dumps(stream.state_dict())) < 2_000


@FEW
@given(drawn=policies(), batch_size=st.integers(1, 3))
def test_rows_are_those_of_the_plain_algorithm(
    catalog: sp.Catalog, drawn: tuple[str, dict[str, Any]], batch_size: int
) -> None:
    name, own = drawn
    policy = sp.batching.Packed(**{**own, "oversize": "truncate", "window_size": 200})
    table = drawn_table(name).to_pylist()
    lengths = [[min(len(row[column]), width) for column, width in policy.widths.items()] for row in table]

    batches = read(catalog, name, policy, order=sp.Sequential(), batch_size=1)

    assert sorted(keys for batch in batches for keys in batch["key"]) == sorted(plain_rows(lengths, policy))
    assert len(read(catalog, name, policy, order=sp.Sequential(), batch_size=batch_size)) <= len(batches)


def test_stored_lengths_form_the_same_batches_and_a_wrong_one_is_named(catalog: sp.Catalog) -> None:
    stated = {"inputs": sp.col("n_inputs"), "targets": "n_targets"}
    one = read(catalog, "above", packed(oversize="truncate"))
    other = read(catalog, "above", packed(oversize="truncate", length=stated))

    assert [batch["key"] for batch in one] == [batch["key"] for batch in other]
    assert all((a["targets"] == b["targets"]).all() for a, b in zip(one, other, strict=True))
    with pytest.raises(DataError, match=r"length='wrong' says \d tokens, and 'targets' has \d\. Mend that column"):
        read(catalog, "long", packed(length={**stated, "targets": "wrong"}))


def test_labels_and_borders_are_of_each_column(catalog: sp.Catalog) -> None:
    for batch in read(catalog, "deep", packed()):
        for column, width in WIDTHS.items():
            tokens, segments = batch[column], batch[f"{column}_segment_ids"]
            first = np.diff(segments, axis=1, prepend=segments[:, :1]) != 0  # of every piece but a row's first
            assert (batch[f"{column}_labels"] == np.where((tokens == -1) | first, -100, tokens)).all()
            begins = np.diff(segments.astype(np.int64) + 100 * np.arange(len(segments))[:, None], axis=1) != 0
            rows, places = np.nonzero(begins)
            borders = {*(rows * width + places + 1).tolist(), *range(0, segments.size + 1, width)}
            assert set(batch[f"{column}_cu"].tolist()) == borders


# As Grain 0.2.18 gives them: FirstFitPackIterDataset(length_struct={"inputs": 16, "targets": 8}, num_packing_bins=12,
# shuffle_bins=False) of the samples below. Recorded from the package, which is no dependency of the tests.
GRAIN_LENGTHS: Final = {
    "inputs": [9, 7, 4, 8, 3, 2, 9, 6, 5, 1, 8, 3],
    "targets": [4, 3, 2, 5, 1, 1, 4, 5, 2, 3, 3, 2],
}
GRAIN_ROWS: Final = [
    {
        "inputs": [0, 1, 2, 3, 4, 5, 6, 7, 8, 100, 101, 102, 103, 104, 105, 106],
        "targets": [0, 1, 2, 3, 100, 101, 102, 0],
        "inputs_segment_ids": [1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2],
        "inputs_positions": [0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2, 3, 4, 5, 6],
        "targets_segment_ids": [1, 1, 1, 1, 2, 2, 2, 0],
        "targets_positions": [0, 1, 2, 3, 0, 1, 2, 0],
    },
    {
        "inputs": [200, 201, 202, 203, 300, 301, 302, 303, 304, 305, 306, 307, 400, 401, 402, 0],
        "targets": [200, 201, 300, 301, 302, 303, 304, 400],
        "inputs_segment_ids": [1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 0],
        "inputs_positions": [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 0],
        "targets_segment_ids": [1, 1, 2, 2, 2, 2, 2, 3],
        "targets_positions": [0, 1, 0, 1, 2, 3, 4, 0],
    },
    {
        "inputs": [500, 501, 600, 601, 602, 603, 604, 605, 606, 607, 608, 800, 801, 802, 803, 804],
        "targets": [500, 600, 601, 602, 603, 800, 801, 0],
        "inputs_segment_ids": [1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3],
        "inputs_positions": [0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2, 3, 4],
        "targets_segment_ids": [1, 2, 2, 2, 2, 3, 3, 0],
        "targets_positions": [0, 0, 1, 2, 3, 0, 1, 0],
    },
    {
        "inputs": [700, 701, 702, 703, 704, 705, 900, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        "targets": [700, 701, 702, 703, 704, 900, 901, 902],
        "inputs_segment_ids": [1, 1, 1, 1, 1, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        "inputs_positions": [0, 1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        "targets_segment_ids": [1, 1, 1, 1, 1, 2, 2, 2],
        "targets_positions": [0, 1, 2, 3, 4, 0, 1, 2],
    },
    {
        "inputs": [1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007, 1100, 1101, 1102, 0, 0, 0, 0, 0],
        "targets": [1000, 1001, 1002, 1100, 1101, 0, 0, 0],
        "inputs_segment_ids": [1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 0, 0, 0, 0, 0],
        "inputs_positions": [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 0, 0, 0, 0, 0],
        "targets_segment_ids": [1, 1, 1, 2, 2, 0, 0, 0],
        "targets_positions": [0, 1, 2, 0, 1, 0, 0, 0],
    },
]


def test_rows_have_the_samples_segments_and_positions_of_grain(tmp_path: Path) -> None:
    table: dict[str, Any] = {"key": range(12)}
    for column, lengths in GRAIN_LENGTHS.items():
        table[column] = pa.array(
            [[100 * key + at for at in range(n)] for key, n in enumerate(lengths)], pa.list_(pa.int64())
        )
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("samples", sp.Arrow(pa.table(table)), identity="key")
    names = [f"{column}{end}" for column in WIDTHS for end in ("", "_segment_ids", "_positions")]
    fields = {column: sp.Pad(column) for column in WIDTHS}
    fields |= {name: each for name, each in FIELDS.items() if name in names and name not in WIDTHS}

    (batch,) = read(
        catalog, "samples", packed(strategy="first_fit"), order=sp.Sequential(), batch_size=5, fields=fields
    )

    assert {name: (each.shape[1:], str(each.dtype)) for name, each in batch.items()} == {
        name: ((WIDTHS[name.split("_")[0]],), "int32" if "_" in name else "int64") for name in names
    }
    found = [{name: batch[name][row].tolist() for name in names} for row in range(len(batch["inputs"]))]
    assert sorted(found, key=json.dumps) == sorted(GRAIN_ROWS, key=json.dumps)


def test_a_sample_that_cannot_be_read_leaves_its_places_empty_in_every_column(tmp_path: Path) -> None:
    inputs, targets = [[1, 2], [3, 4], [5]], [[1], [2, None], [3]]
    table = pa.table({"key": range(3), "inputs": inputs, "targets": targets})
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("samples", sp.Arrow(table), identity="key")
    sampled = catalog.table("samples").sample(order=sp.Sequential())
    fields = {name: each for name, each in FIELDS.items() if not name.endswith("cu")}
    own = packed(strategy="first_fit")
    made = sampled.collate(batch_size=1, formation=own, fields=fields, last=sp.KeepPartial, on_error="skip")
    with made.to_numpy() as stream:
        (batch,) = list(stream)
    assert batch["key"] == [[0, 2]]
    assert batch["inputs_segment_ids"][0, :5].tolist() == [1, 1, 0, 0, 2]
    assert batch["targets_segment_ids"][0, :4].tolist() == [1, 0, 0, 2]


def test_merged_batches_pad_partial_and_torch(catalog: sp.Catalog) -> None:
    own = packed(strategy="first_fit")
    single = read(catalog, "long", own, last=sp.batching.PadPartial)
    assert {len(batch["inputs"]) for batch in single} == {2}
    with plan(catalog, "long", own, last=sp.batching.PadPartial).to_torch().bind(merge=2) as stream:
        merged = next(iter(stream))
    for name in ("inputs", "targets", "targets_segment_ids"):
        assert (merged[name].numpy() == np.concatenate([single[0][name], single[1][name]])).all()


def test_explain_tells_the_width_and_the_fill_of_every_column(catalog: sp.Catalog) -> None:
    with plan(catalog, "long", packed(length={name: f"n_{name}" for name in WIDTHS})).to_numpy() as stream:
        facts = stream.explain().to_dict()["batch"]
        batches = list(stream)
    rows = sum(len(batch["inputs"]) for batch in batches)
    assert facts["packing"] == "best_fit into rows of inputs 16, targets 8, any number of segments a row"
    assert facts["lengths"] == "stored as n_inputs, n_targets"
    assert facts["T"]["text"] == "inputs 16, targets 8"
    assert facts["T"]["figures"]["targets"]["value"] == 8
    assert [each["column"] for each in facts["columns"]] == ["inputs", "targets"]
    for each, (column, width) in zip(facts["columns"], WIDTHS.items(), strict=True):
        filled = sum(int((batch[f"{column}_segment_ids"] > 0).sum()) for batch in batches)
        assert each["T"]["value"] == width
        assert each["filled"]["operands"] == [filled, rows * width]


def test_samples_are_shown_column_by_column(catalog: sp.Catalog) -> None:
    with plan(catalog, "deep", packed()).to_numpy() as stream:
        batch = stream.batch(0)
        for sheet in (stream.show(count=1), stream.show(batch=batch, count=1)):
            texts = dict(sheet.tiles[0].texts)
            for column in WIDTHS:
                ids = [[n for _, part in each.pieces for n in part] for each in texts[column]]
                assert [each for each in ids if each] == list(pieces_of(batch, 0, column).values())


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("formation", [None, sp.WindowedBucket(64, [], sp.BatchBudget(max_tokens=200))])
def test_columns_that_are_padded_are_shown_to_their_own_ends(catalog: sp.Catalog, formation: Any, mask: bool) -> None:
    fields: dict[str, Any] = {column: FIELDS[column] for column in WIDTHS}
    fields |= {f"{column}_mask": sp.PadMask(column) for column in WIDTHS if mask}
    table = {row["key"]: row for row in drawn_table("long").to_pylist()}
    options = {"formation": formation, "fields": {**fields, "key": sp.List("key")}}
    with plan(catalog, "long", packed(), **options).to_numpy() as stream:
        for sheet in (stream.show(count=2), stream.show(batch=stream.batch(0), count=2)):
            for tile, key in zip(sheet.tiles, stream.batch(0)["key"], strict=False):
                for column, documents in tile.texts:
                    shown = [n for each in documents for _, part in each.pieces for n in part]
                    assert shown == table[key][column]


def test_the_order_of_the_columns_says_nothing_and_a_saved_plan_reads_back(catalog: sp.Catalog) -> None:
    turned = dict(reversed(WIDTHS.items()))
    one, other = (plan(catalog, "long", packed(max_tokens=each)) for each in (WIDTHS, turned))

    assert packed() == packed(max_tokens=turned) == packed(max_tokens={name: np.int64(n) for name, n in WIDTHS.items()})
    with one.to_numpy() as a, other.to_numpy() as b:
        assert a.fingerprint == b.fingerprint
        catalog.save_stream("packed", one.to_numpy())
        with catalog.open_stream("packed") as again:
            assert again.fingerprint == a.fingerprint


# ---- what is refused


@pytest.mark.parametrize(
    ("own", "way_out"),
    [
        ({"max_tokens": {}}, r"max_tokens=\{\}\. Give one for each token column, by name"),
        ({"max_tokens": {"inputs": 0}}, r"max_tokens of 'inputs' is 0\. Give an integer in \[1, 16777215\]$"),
        ({"max_tokens": {"inputs": "16"}}, r"max_tokens of 'inputs' is '16'\. Give an integer"),
        ({"max_tokens": {1: 16}}, r"Give one for each token column, by name"),
        ({"max_tokens": (16, 8)}, r"Give one for each token column, by name"),
        ({"max_tokens": [16, 8]}, r"or one for each token column: \{'inputs': 512"),
        ({"max_tokens": {f"c{n}": 8 for n in range(17)}}, r"names 17 columns\. Give at most 16"),
        ({"oversize": "split"}, r"oversize='split' cuts samples.*Give .*oversize='truncate', 'drop' or 'raise'"),
        ({"strategy": "concat_and_split"}, r"'concat_and_split' cuts samples.*Give strategy='best_fit' or 'first_fit'"),
        ({"length": "n"}, r"each column has a max_tokens of its own\. Give length=\{'inputs': col\('...'\), 'targets'"),
        ({"max_tokens": 16, "length": {"a": "n"}}, r"max_tokens is one for all columns\. Give length=col\('...'\)"),
        ({"length": {"inputs": "n"}}, r"length is given for 'inputs', and max_tokens for .* Give both for the same"),
        ({"length": {"inputs": "n", "targets": None}}, r"Give both for the same columns, or leave length out"),
        ({"length": {"inputs": "n", "targets": 3}}, r"Give a column that says how many tokens"),
    ],
)
def test_a_wrong_parameter_is_refused_at_birth(own: dict[str, Any], way_out: str) -> None:
    with pytest.raises(PlanError, match=way_out):
        packed(**own)


@pytest.mark.parametrize(
    ("own", "fields", "way_out"),
    [
        (
            {"max_tokens": {"inputs": 16}},
            {},
            r"a field reads 'targets'\. Give it a width too: max_tokens=\{\.\.\., 'targets'",
        ),
        (
            {"max_tokens": {**WIDTHS, "more": 9}},
            {},
            r"'more', and no field reads it\. Add one, for example Pad\('more'\)",
        ),
        ({}, {"inputs": sp.Pad("inputs", also="targets")}, r"each column places of its own\. Leave also out"),
        ({}, {"inputs": sp.Pad("inputs", length=16)}, r"Leave length out"),
        (
            {},
            {"targets": sp.Pad("targets", pad_to_multiple_of=3)},
            r"of 'targets' is 8.* multiple of 3.* 'targets': 9 or 6",
        ),
        (
            {"length": {"inputs": "n_inputs", "targets": "quality"}},
            {},
            r"length='quality' is double\. Give a column of whole",
        ),
    ],
)
def test_fields_that_do_not_fit_are_refused(
    catalog: sp.Catalog, own: dict[str, Any], fields: dict[str, Any], way_out: str
) -> None:
    with pytest.raises(PlanError, match=way_out):
        plan(catalog, "long", packed(**own), fields={**FIELDS, **fields})


def test_each_column_keeps_to_its_own_multiple(catalog: sp.Catalog) -> None:
    fields = {
        **FIELDS,
        "inputs": sp.Pad("inputs", pad_to_multiple_of=16),
        "targets": sp.Pad("targets", pad_to_multiple_of=8),
    }
    assert read(catalog, "long", packed(), fields=fields)[0]["targets"].shape == (2, 8)


def test_a_sample_above_a_width_is_named_with_its_column(catalog: sp.Catalog) -> None:
    way_out = r"\d+ tokens in '(inputs|targets)', but a row holds \d+ of it.* choose oversize='truncate' or 'drop'"
    with pytest.raises(DataError, match=way_out):
        read(catalog, "above", packed())


def test_columns_that_differ_under_one_width_name_the_other_way(catalog: sp.Catalog) -> None:
    with pytest.raises(DataError, match=r"width of its own \(max_tokens=\{'inputs': 16, 'targets': 16\}\)"):
        read(catalog, "long", sp.batching.Packed(16))


def test_ranks_that_would_tokenize_again_are_told_of_lengths_by_column(tmp_path: Path, caches: Path) -> None:
    table = pa.table({"key": range(4), "inputs": ["a b"] * 4, "targets": ["c"] * 4})
    own = sp.connect(str(tmp_path / "catalog"))
    own.register("texts", sp.Arrow(table), identity="key")
    own.register_tokenizer(TOKENIZER, tokenizer())
    sampled = own.table("texts").sample(order=sp.Sequential())
    for column in WIDTHS:
        sampled = sampled.map(sp.Tokenize(column, tokenizer=TOKENIZER) >> f"{column}_ids")
    made = sampled.collate(
        batch_size=2,
        formation=sp.batching.Packed({f"{column}_ids": width for column, width in WIDTHS.items()}),
        fields={column: sp.Pad(f"{column}_ids") for column in WIDTHS},
    )
    way_out = r'Packed\(length=\{"inputs_ids": col\("\.\.\."\), "targets_ids": col\("\.\.\."\)\}\)'
    with pytest.raises(BindError, match=way_out), made.to_numpy().bind(data_parallel_world_size=2) as stream:
        list(stream)
