from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.batching import Composition, Membership, Packed, Setting, Window, _packing
from spiral_stream.batching.packing import STRATEGIES
from spiral_stream.errors import DataError, PlanError
from tests.fixtures.examples import few

quick = few(40, 100, deadline=None, derandomize=True)

Piece = tuple[int, int, int]  # sample, offset, length
Row = list[Piece]


@dataclass(frozen=True)
class Case:
    policy: Packed
    batch_size: int | None
    lengths: list[int]
    key: int

    @property
    def rows_a_batch(self) -> int:
        return self.batch_size or 1


@st.composite
def cases(draw: st.DrawFn, strategies: Sequence[str] = STRATEGIES, least: int = 0) -> Case:
    width = draw(st.integers(1, 24))
    policy = Packed(
        width,
        draw(st.sampled_from(strategies)),
        draw(st.none() | st.integers(1, 4)),
        draw(st.integers(1, 6) | st.integers(7, 30)),
        "split",
    )
    most, fewest = draw(st.sampled_from([1, width, 4 * width])), draw(st.sampled_from([0, 20]))
    lengths = draw(st.lists(st.integers(least, most), min_size=fewest, max_size=80))
    return Case(policy, draw(st.none() | st.integers(1, 5)), lengths, draw(st.integers(0, 2**64 - 1)))


def windows(case: Case, *, strided: bool = False) -> list[tuple[int, list[Membership]]]:
    """What each call gave, and the room after it; fed as a driver feeds it."""
    size = len(case.lengths)
    lengths = np.array(case.lengths, dtype=np.int64)
    samples, streams = np.arange(size), np.zeros(size, dtype=np.int32)
    if strided:
        lengths, samples = np.repeat(lengths, 3)[::3], np.stack((samples, samples), axis=1)[:, 0]
    for array in (lengths, samples, streams):
        array.flags.writeable = False
    former = case.policy.former(Setting(key=case.key, size=size, batch_size=case.batch_size))
    calls, at = [], 0
    while at < size or not calls:
        part = slice(at, at + former.room)
        at = min(at + former.room, size)
        formed = former.form(Window(samples[part], streams[part], lengths[part]), final=at == size)
        calls.append((former.room, formed))
    return calls


def batches(case: Case) -> list[Membership]:
    return [batch for _, formed in windows(case) for batch in formed]


def rows_of(batch: Membership) -> list[Row]:
    assert batch.packing is not None
    rows: list[Row] = [[] for _ in range(batch.rows)]
    pieces = zip(batch.packing.rows, batch.samples, batch.packing.offsets, batch.packing.lengths, strict=True)
    for row, *piece in pieces:
        rows[row].append(tuple(map(int, piece)))
    return rows


def as_rows(formed: list[Membership]) -> list[Row]:
    return [row for batch in formed for row in rows_of(batch)]


# ---- the same in plain Python -----------------------------------------------------------


def has_room(policy: Packed, row: Row, length: int) -> bool:
    few = policy.max_segments is None or len(row) < policy.max_segments
    return few and sum(piece[2] for piece in row) + length <= policy.max_tokens


def first_fit(policy: Packed, pool: Row) -> list[Row]:
    rows: list[Row] = []
    for piece in pool:
        row = next((row for row in rows if has_room(policy, row, piece[2])), None)
        if row is None:
            rows.append(row := [])
        row.append(piece)
    return rows


def best_fit(policy: Packed, pool: Row) -> list[Row]:
    rows: list[Row] = []
    touched: list[int] = []  # rows, the one that took a sample last at the end
    for piece in sorted(pool, key=lambda piece: -piece[2]):
        fits = [at for at in reversed(touched) if has_room(policy, rows[at], piece[2])]
        if not fits:
            rows.append([])
        at = max(fits, key=lambda at: sum(piece[2] for piece in rows[at])) if fits else len(rows) - 1
        rows[at].append(piece)
        touched = [other for other in touched if other != at] + [at]
    return rows


def end_to_end(policy: Packed, pool: Row) -> list[Row]:
    rows: list[Row] = [[]]
    for sample, offset, length in pool:
        begin, end = offset, offset + length
        while True:
            free = policy.max_tokens - sum(piece[2] for piece in rows[-1])
            if not has_room(policy, rows[-1], min(1, end - begin)):
                rows.append([])
                free = policy.max_tokens
            rows[-1].append((sample, begin, min(end - begin, free)))
            begin += rows[-1][-1][2]
            if begin == end:
                break
    return [row for row in rows if row]


PLAIN: dict[str, Callable[[Packed, Row], list[Row]]] = {
    "first_fit": first_fit,
    "best_fit": best_fit,
    "concat_and_split": end_to_end,
}


def parts_of(case: Case) -> list[list[Piece]]:
    """The parts of each sample that are packed."""
    width = case.policy.max_tokens
    if case.policy.concatenates:
        return [[(sample, 0, length)] for sample, length in enumerate(case.lengths)]
    return [
        [(sample, at, min(width, length - at)) for at in range(0, max(length, 1), width)]
        for sample, length in enumerate(case.lengths)
    ]


def joined(rows: list[Row]) -> Row:
    """Pieces by sample and offset, with those that adjoin made one."""
    pool: Row = []
    for sample, offset, length in sorted(piece for row in rows for piece in row):
        if pool and pool[-1][0] == sample:
            pool[-1] = (sample, pool[-1][1], pool[-1][2] + length)
        else:
            pool.append((sample, offset, length))
    return pool


def emitted(case: Case, rows: list[Row], *, final: bool) -> tuple[list[Row], list[Row]]:
    """The rows that a call gives, and those that wait."""
    fill = [sum(piece[2] for piece in row) for row in rows]
    if case.policy.concatenates:
        order = list(range(len(rows)))
        closed = sum(
            at + 1 < len(rows) or fill[at] == case.policy.max_tokens or len(rows[at]) == case.policy.max_segments
            for at in order
        )
        count = closed // case.rows_a_batch * case.rows_a_batch
    else:
        order = sorted(range(len(rows)), key=lambda at: -fill[at])
        count = max(0, len(rows) - 1) // case.rows_a_batch * case.rows_a_batch
    count = len(rows) if final else count
    return [rows[at] for at in order[:count]], [rows[at] for at in order[count:]]


def plain_windows(case: Case) -> list[list[Row]]:
    """The rows that each call gives, in any order."""
    parts, calls, at = parts_of(case), [], 0
    waiting: list[Row] = []
    while at < len(parts) or not calls:
        old = joined(waiting) if case.policy.concatenates else sorted(piece for row in waiting for piece in row)
        waits = len({piece[0] for piece in old})
        room = min(case.policy.window_size, max(case.policy.window_size - waits, waits // 8, 1))
        pool = old + [piece for some in parts[at : at + room] for piece in some]
        at = min(at + room, len(parts))
        given, waiting = emitted(case, PLAIN[case.policy.strategy](case.policy, pool), final=at == len(parts))
        calls.append(given)
    return calls


# ---- laws -------------------------------------------------------------------------------


@quick
@given(case=cases())
def test_cover_every_token_is_delivered_once_and_every_empty_sample_too(case: Case) -> None:
    pieces = sorted(piece for row in as_rows(batches(case)) for piece in row)

    ends = dict.fromkeys(range(len(case.lengths)), 0)
    for sample, offset, length in pieces:
        assert offset == ends[sample]
        assert length > 0 or case.lengths[sample] == 0
        ends[sample] += length
    assert list(ends.values()) == case.lengths
    assert {sample for sample, _, _ in pieces} == set(range(len(case.lengths)))
    assert sum(length == 0 for _, _, length in pieces) == case.lengths.count(0)


@quick
@given(case=cases())
def test_rows_hold_their_pieces_without_hole_overlap_or_excess(case: Case) -> None:
    for batch in batches(case):
        packing = batch.packing
        assert packing is not None
        assert batch.width == case.policy.max_tokens
        assert np.array_equal(batch.lengths, packing.lengths)
        assert {a.dtype for a in (batch.samples, packing.rows, packing.starts, packing.offsets)} == {np.dtype(np.int64)}
        assert np.all(np.diff(packing.rows) >= 0)
        assert set(packing.rows.tolist()) == set(range(batch.rows))
        for row in range(batch.rows):
            mine = packing.rows == row
            ends = np.cumsum(packing.lengths[mine])
            assert packing.starts[mine].tolist() == [0, *ends[:-1].tolist()]
            assert ends[-1] <= batch.width
            assert np.count_nonzero(mine) <= (case.policy.max_segments or len(ends))


@quick
@given(case=cases())
def test_every_call_gives_the_rows_of_the_plain_algorithm(case: Case) -> None:
    found = [as_rows(formed) for _, formed in windows(case)]

    plain = plain_windows(case)
    if case.policy.concatenates:
        assert found == plain
    else:
        assert [sorted(rows) for rows in found] == [sorted(rows) for rows in plain]


@quick
@given(case=cases())
def test_bounded_the_pool_always_takes_a_sample_and_is_a_window_unless_that_fills_no_batch(case: Case) -> None:
    delivered: set[int] = set()
    fed = 0
    rooms = [case.policy.window_size]
    for room, formed in windows(case):
        fed = min(fed + rooms[-1], len(case.lengths))
        delivered |= {piece[0] for row in as_rows(formed) for piece in row}
        assert 1 <= room <= case.policy.window_size
        waits = fed - len(delivered)
        assert room <= max(case.policy.window_size - waits, waits // 8, 1)  # a pool that fills no batch grows
        rooms.append(room)
    assert rooms[-1] == case.policy.window_size


@quick
@given(case=cases())
def test_a_batch_is_short_only_at_the_end(case: Case) -> None:
    calls = windows(case)
    for at, (_, formed) in enumerate(calls):
        sizes = [batch.rows for batch in formed]
        assert all(size == case.rows_a_batch for size in (sizes[:-1] if at + 1 == len(calls) else sizes))
        assert all(1 <= size <= case.rows_a_batch for size in sizes)


@quick
@given(case=cases(["concat_and_split"], least=1))
def test_rows_of_samples_end_to_end_do_not_depend_on_the_windows(case: Case) -> None:
    wide = replace(case, policy=replace(case.policy, window_size=1_000), batch_size=1)
    narrow = replace(case, policy=replace(case.policy, window_size=case.policy.max_tokens + 2), batch_size=1)

    rows = as_rows(batches(narrow))

    assert rows == as_rows(batches(wide))
    laid = [(sample, token) for row in rows for sample, offset, n in row for token in range(offset, offset + n)]
    assert laid == [(sample, token) for sample, n in enumerate(case.lengths) for token in range(n)]


@quick
@given(case=cases())
def test_pure_the_same_batches_from_any_array_layout(case: Case) -> None:
    first, again = (
        [(room, [rows_of(batch) for batch in formed]) for room, formed in windows(case, strided=strided)]
        for strided in (False, True)
    )

    assert first == again


@pytest.mark.parametrize("best", [False, True])
@pytest.mark.parametrize("width", [63, 64, 4_096, 5_000, 300_000, 2**24 - 1])
def test_the_kernel_finds_the_row_at_every_width(width: int, best: bool) -> None:
    rng = np.random.default_rng(width)
    lengths = np.concatenate((rng.integers(0, width, 150, endpoint=True), rng.integers(0, width // 9, 150)))
    case = Case(Packed(width, "best_fit" if best else "first_fit", 7), 1, lengths.tolist(), 0)

    assert sorted(as_rows(batches(case))) == sorted(plain_windows(case)[0])


# ---- examples ---------------------------------------------------------------------------


def lognormal(count: int, seed: int = 0) -> list[int]:
    """Lengths of documents: mean 390 with rows of 2,048."""
    draws = np.random.default_rng(seed).lognormal(5.55, 0.95, count)
    lengths: list[int] = np.clip(draws, 1, 2_048).astype(np.int64).tolist()
    return lengths


def test_the_three_strategies_on_six_samples() -> None:
    lengths = [6, 5, 4, 4, 3, 2]
    rows = {name: sorted(as_rows(batches(Case(Packed(10, name), 4, lengths, 1)))) for name in STRATEGIES}

    assert rows["first_fit"] == [[(0, 0, 6), (2, 0, 4)], [(1, 0, 5), (3, 0, 4)], [(4, 0, 3), (5, 0, 2)]]
    assert rows["best_fit"] == [[(0, 0, 6), (2, 0, 4)], [(1, 0, 5), (3, 0, 4)], [(4, 0, 3), (5, 0, 2)]]
    assert rows["concat_and_split"] == [
        [(0, 0, 6), (1, 0, 4)],
        [(1, 4, 1), (2, 0, 4), (3, 0, 4), (4, 0, 1)],
        [(4, 1, 2), (5, 0, 2)],
    ]


def test_empty_samples_stay_with_the_sample_before_where_samples_lie_end_to_end() -> None:
    rows = as_rows(batches(Case(Packed(4, "concat_and_split"), None, [0, 4, 0, 0, 2, 0], 1)))

    assert rows == [[(0, 0, 0), (1, 0, 4), (2, 0, 0), (3, 0, 0)], [(4, 0, 2), (5, 0, 0)]]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_chapter_of_empty_samples_is_rows_of_padding_that_name_them(strategy: str) -> None:
    found = batches(Case(Packed(4, strategy, max_segments=2), 2, [0, 0, 0], 1))

    assert [batch.rows for batch in found] == [2]
    assert sorted(as_rows(found)) == [[(0, 0, 0), (1, 0, 0)], [(2, 0, 0)]]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_empty_chapter_and_a_window_that_a_filter_emptied_give_no_batch(strategy: str) -> None:
    former = Packed(4, strategy).former(Setting(key=1, size=9))
    none = np.empty(0, dtype=np.int64)
    nothing = Window(none, none.astype(np.int32), none)

    assert former.form(nothing, final=False) == []
    assert former.form(nothing, final=True) == []
    assert former.room == 8_192


def test_a_long_sample_goes_on_in_the_next_batch() -> None:
    found = batches(Case(Packed(4, "concat_and_split"), 2, [1, 18, 1], 1))

    assert [rows_of(batch) for batch in found] == [
        [[(0, 0, 1), (1, 0, 3)], [(1, 3, 4)]],
        [[(1, 7, 4)], [(1, 11, 4)]],
        [[(1, 15, 3), (2, 0, 1)]],
    ]


def test_every_window_has_its_own_order() -> None:
    calls = windows(Case(Packed(8, window_size=100), 1, [8] * 300, 1))

    first, second = ([row[0][0] for row in as_rows(formed)] for _, formed in calls[:2])

    assert len(first) == len(second) == 99
    assert np.argsort(first).tolist() != np.argsort(second).tolist()


def test_a_pool_that_makes_no_batch_waits_for_more() -> None:
    calls = windows(Case(Packed(4, "concat_and_split", window_size=2), 3, [4, 2, 2, 1], 1))

    assert [(room, as_rows(formed)) for room, formed in calls] == [
        (1, []),
        (1, []),
        (2, [[(0, 0, 4)], [(1, 0, 2), (2, 0, 2)], [(3, 0, 1)]]),
    ]


def test_long_samples_do_not_come_first_and_the_key_decides() -> None:
    case = Case(Packed(2_048, window_size=4_096), 8, lognormal(4_096), 1)
    found, other = batches(case), batches(replace(case, key=2))

    longest = [max(piece[2] for piece in row) for row in as_rows(found)]

    assert abs(np.mean(longest[: len(longest) // 2]) / np.mean(longest) - 1) < 0.1
    assert as_rows(found) != as_rows(other)
    assert sorted(as_rows(found)) == sorted(as_rows(other))


@pytest.mark.parametrize(
    ("strategy", "least"), [("best_fit", 0.999), ("first_fit", 0.99), ("concat_and_split", 0.9999)]
)
@pytest.mark.parametrize("batch_size", [1, 64])
def test_rows_of_documents_are_full(strategy: str, least: float, batch_size: int) -> None:
    case = Case(Packed(2_048, strategy), batch_size, lognormal(40_000), 3)
    found = batches(case)

    assert sum(case.lengths) / (2_048 * sum(batch.rows for batch in found)) >= least


def test_a_sample_above_a_row_is_named() -> None:
    former = Packed(8).former(Setting(key=1, size=9))
    window = Window(np.array([4, 6, 7]), np.zeros(3, dtype=np.int32), np.array([8, 9, 10]))

    with pytest.raises(
        DataError, match=r"9 tokens, but a row holds 8\. Raise max_tokens, .* or choose oversize='split'"
    ) as found:
        former.form(window, final=True)

    assert found.value.sample == 6


def test_what_becomes_of_samples_above_a_row() -> None:
    window = Window(np.array([4, 6, 7]), np.zeros(3, dtype=np.int32), np.array([8, 9, 20]))
    rows, tallies = {}, {}
    for oversize in ("truncate", "drop", "split"):
        former = Packed(8, oversize=oversize).former(Setting(key=1, size=9))
        rows[oversize] = sorted(as_rows(former.form(window, final=True)))
        tallies[oversize] = (former.tally.truncated, former.tally.dropped, former.tally.first.tolist())

    assert rows["truncate"] == [[(4, 0, 8)], [(6, 0, 8)], [(7, 0, 8)]]
    assert rows["drop"] == [[(4, 0, 8)]]
    assert rows["split"] == [[(4, 0, 8)], [(6, 0, 8)], [(7, 0, 8)], [(7, 8, 8)], [(7, 16, 4), (6, 8, 1)]]
    assert tallies == {"truncate": (2, 0, []), "drop": (0, 2, [6, 7]), "split": (0, 0, [])}


def test_the_way_samples_are_cut_is_always_written_out() -> None:
    assert Packed(8).oversize == "raise"
    assert Packed(8, "concat_and_split") == Packed(8, "concat_and_split", oversize="split")
    assert Packed(8).needs_lengths
    assert Packed(8).with_composition(None) == Packed(8)


# ---- bad input --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "way_out"),
    [
        ({"max_tokens": 0}, r"max_tokens is 0\. Give an integer in \[1, 16777215\], or one for each token column"),
        ({"max_tokens": 2**24}, r"max_tokens is 16777216\. Give an integer in \[1, 16777215\]"),
        ({"max_tokens": 2048.0}, r"max_tokens is 2048\.0\. Give an integer"),
        ({"window_size": True}, r"window_size is True\. Give an integer in \[1, 4194304\]"),
        ({"max_segments": 0}, r"max_segments is 0\. Give an integer in .*, or None for any number"),
        ({"strategy": "worst_fit"}, r"'worst_fit'\. Give one of best_fit, first_fit, concat_and_split"),
        ({"oversize": "alone"}, r"'alone'\. Give one of raise, truncate, drop, split"),
        ({"strategy": "concat_and_split", "oversize": "drop"}, r"Leave oversize out, or filter on the length"),
    ],
)
def test_a_wrong_parameter_is_refused_at_birth(wrong: dict[str, object], way_out: str) -> None:
    with pytest.raises(PlanError, match=way_out):
        Packed(**{"max_tokens": 2_048, **wrong})


@pytest.mark.parametrize(
    ("width", "way_out"), [(1_000, r"Give max_tokens=1024 or 896"), (100, r"Give max_tokens=128$")]
)
def test_a_width_that_no_field_can_have_is_refused(width: int, way_out: str) -> None:
    with pytest.raises(PlanError, match=way_out):
        Packed(width).former(Setting(key=1, size=9, multiple=128))


def test_a_composition_is_refused() -> None:
    class Stratified(Composition):
        pass

    with pytest.raises(PlanError, match=r"composition=Stratified with Packed.* or use WindowedBucket"):
        Packed(8).with_composition(Stratified())


def test_a_window_without_lengths_is_refused() -> None:
    former = Packed(8).former(Setting(key=1, size=9))

    with pytest.raises(PlanError, match=r"no lengths\. Give a field with a length, such as Pad"):
        former.form(Window(np.arange(3), np.zeros(3, dtype=np.int32)), final=True)


def test_the_kernel_refuses_what_would_leave_its_arrays() -> None:
    lengths, out, short = np.array([3, 9, 2]), np.empty(9, dtype=np.int64), np.empty(2, dtype=np.int64)

    with pytest.raises(ValueError, match=r"a length is not in \[0, width\]"):
        _packing.fit(lengths, np.array([8]), out, out.copy(), 0, True)
    with pytest.raises(ValueError, match=r"a length is not in \[0, width\]"):
        _packing.fit(-lengths, np.array([9]), out, out.copy(), 0, False)
    with pytest.raises(ValueError, match="too short"):
        _packing.fit(lengths, np.array([9]), out, short, 0, True)
    with pytest.raises(ValueError, match="a width is out of range"):
        _packing.fit(lengths, np.array([2**24]), out, out.copy(), 0, True)
    with pytest.raises(ValueError, match="too short"):
        _packing.cut(lengths, 1, 0, *(out.copy() for _ in range(5)))
    with pytest.raises(ValueError, match=r"a length is not in \[0, 2\*\*40\]"):
        _packing.cut(-lengths, 4, 0, *(out.copy() for _ in range(5)))
