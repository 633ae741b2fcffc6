"""Gathering in C: the values of the plain loops, and refusals instead of crashes."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from spiral_stream.derived import _gather, _rows
from spiral_stream.derived.kinds.gather import located
from tests.fixtures.named_shards import shard_places

WORDS = np.zeros(3, np.uint64)


def words(*values: int) -> NDArray[np.uint64]:
    return np.array(values, np.uint64)


def starts_of(sizes: list[int]) -> NDArray[np.uint64]:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.uint64)


@given(st.lists(st.integers(0, 5), max_size=40), st.data())
def test_every_row_is_found_in_its_shard(sizes: list[int], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, sum(sizes) - 1), max_size=20) if sum(sizes) else st.just([]))

    shards, offsets = located(starts_of(sizes), words(*rows))

    wanted = shard_places(sizes, rows)
    assert (shards.dtype, offsets.dtype) == (np.int64, np.uint64)
    assert shards.tolist() == wanted[0].tolist()
    assert offsets.tolist() == wanted[1].tolist()


@pytest.mark.parametrize(
    ("starts", "row"), [([0, 3, 7], 7), ([0, 3, 7], 2**64 - 1), ([0], 0), ([0, 0], 0), ([5, 9], 4), ([5], 3)]
)
def test_a_row_that_no_shard_has_is_refused(starts: list[int], row: int) -> None:
    with pytest.raises(ValueError, match="beyond the last shard, or before the first"):
        located(words(*starts), words(row))


def test_starts_that_do_not_rise_stay_inside() -> None:
    shards, _ = located(words(0, 9, 1, 5, 3, 20), np.arange(20, dtype=np.uint64))

    assert int(shards.min()) >= 0
    assert int(shards.max()) < 5


@pytest.mark.parametrize(
    ("starts", "rows", "shards", "offsets"),
    [(WORDS[:0], WORDS, WORDS, WORDS), (WORDS, WORDS, WORDS[:2], WORDS), (WORDS, WORDS, WORDS, WORDS[:2])],
)
def test_arrays_of_unequal_length_are_not_located(starts: Any, rows: Any, shards: Any, offsets: Any) -> None:
    with pytest.raises(ValueError, match="arrays of unequal length"):
        _gather.locate(starts, rows, shards.copy(), offsets.copy())


def addresses(of: NDArray[Any], places: list[int]) -> NDArray[np.uint64]:
    return np.uint64(of.ctypes.data) + np.array(places, np.uint64) * np.uint64(of.strides[0])


@given(
    width=st.sampled_from([1, 2, 3, 4, 7, 8, 16, 130, 400]),
    places=st.lists(st.integers(0, 30), max_size=60),
    seed=st.integers(0, 9),
)
def test_values_of_every_width_are_copied_in_order(width: int, places: list[int], seed: int) -> None:
    memory = np.random.default_rng(seed).integers(0, 256, (31, width), np.uint8)
    out = np.zeros(len(places) * width, np.uint8)

    _gather.copy(addresses(memory, places), width, out)

    assert np.array_equal(out.reshape(-1, width), memory[places])


@pytest.mark.parametrize(
    ("count", "width", "size"),
    [(2, 4, 7), (2, 4, 9), (2, 0, 0), (2, -1, 2), (4, 1 << 62, 0), (2, 1 << 62, 0), (8, 1 << 61, 0), (0, 8, 8)],
)
def test_a_place_of_another_size_is_refused(count: int, width: int, size: int) -> None:
    memory = np.zeros(64, np.uint8)

    with pytest.raises(ValueError, match="out has another size"):
        _gather.copy(addresses(memory, [0] * count), width, bytearray(size))


@given(
    ends=st.lists(st.integers(0, 9), min_size=2, max_size=20).map(lambda sizes: np.cumsum([0, *sizes]).astype("<i8")),
    item=st.sampled_from([1, 2, 8]),
    data=st.data(),
)
def test_spans_are_those_between_neighbouring_ends(ends: NDArray[Any], item: int, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, len(ends) - 2), max_size=30))
    memory = np.random.default_rng(1).integers(0, 256, int(ends[-1]) * item, np.uint8)
    begins, sizes = np.zeros(len(rows), np.uint64), np.zeros(len(rows), np.int64)
    base = np.full(len(rows), memory.ctypes.data, np.uint64)

    _gather.spans(addresses(ends, rows), base, np.full(len(rows), item), begins, sizes)

    assert sizes.tolist() == [int(ends[row + 1] - ends[row]) * item for row in rows]
    assert (begins - base).tolist() == [int(ends[row]) * item for row in rows]
    out = np.zeros(int(sizes.sum()), np.uint8)
    _gather.copy_spans(begins, sizes, out)
    wanted = [memory[int(ends[row]) * item : int(ends[row + 1]) * item].tobytes() for row in rows]
    assert out.tobytes() == b"".join(wanted)


@pytest.mark.parametrize("short", range(5))
def test_spans_of_unequal_length_are_refused(short: int) -> None:
    ends = np.zeros(2, np.int64)
    given_all = [addresses(ends, [0, 0]), words(0, 0), np.ones(2, np.int64), words(0, 0), np.zeros(2, np.int64)]
    given_all[short] = given_all[short][:1].copy()

    with pytest.raises(ValueError, match="arrays of unequal length"):
        _gather.spans(*given_all)


@pytest.mark.parametrize(
    ("sizes", "room"), [([4, 5], 8), ([4, 3], 8), ([-1, 9], 8), ([2**62, 2**62], 8), ([9, -1], 8), ([], 1)]
)
def test_spans_that_do_not_fill_their_place_are_refused(sizes: list[int], room: int) -> None:
    memory = np.zeros(64, np.uint8)

    with pytest.raises(ValueError, match="out has another size"):
        _gather.copy_spans(addresses(memory, [0] * len(sizes)), np.array(sizes, np.int64), bytearray(room))


def test_as_many_sizes_as_addresses_are_asked_for() -> None:
    with pytest.raises(ValueError, match="arrays of unequal length"):
        _gather.copy_spans(words(0, 0), np.zeros(1, np.int64), bytearray(0))


@given(
    bases=st.lists(st.integers(0, 2**63), min_size=1, max_size=5),
    width=st.sampled_from([1, 8, 130]),
    places=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2**40)), max_size=30),
)
def test_addresses_are_counted_from_where_a_shard_begins(
    bases: list[int], width: int, places: list[tuple[int, int]]
) -> None:
    shards = np.array([shard % len(bases) for shard, _ in places], np.int64)
    out = np.zeros(len(places), np.uint64)

    _gather.addresses(words(*bases), shards, words(*(offset for _, offset in places)), width, out)

    assert out.tolist() == [
        bases[shard] + offset * width for shard, (_, offset) in zip(shards.tolist(), places, strict=True)
    ]


@pytest.mark.parametrize("shard", [1, -1])
def test_an_address_of_a_shard_that_is_not_there_is_refused(shard: int) -> None:
    with pytest.raises(ValueError, match="a shard beyond the last"):
        _gather.addresses(words(7), np.array([shard]), words(0), 8, words(0))


ODD = np.zeros(12, np.uint8)
CALLS: dict[str, list[Any]] = {
    "locate": [WORDS, WORDS, WORDS, WORDS],
    "addresses": [WORDS[:0], WORDS[:0], WORDS[:0], 8, WORDS[:0]],
    "spans": [WORDS[:0], WORDS[:0], WORDS[:0], WORDS[:0], WORDS[:0]],
    "copy": [WORDS[:0], 8, bytearray(0)],
    "copy_spans": [WORDS[:0], WORDS[:0], bytearray(0)],
}
PLACES = [(name, k) for name, given in CALLS.items() for k, each in enumerate(given) if isinstance(each, np.ndarray)]


@pytest.mark.parametrize(("name", "at"), PLACES)
def test_arrays_that_are_no_words_are_refused(name: str, at: int) -> None:
    given_all = [each.copy() if isinstance(each, np.ndarray) else each for each in CALLS[name]]
    given_all[at] = ODD

    with pytest.raises(ValueError, match="8 bytes each"):
        getattr(_gather, name)(*given_all)


@pytest.mark.parametrize(("name", "at"), [("locate", 2), ("locate", 3), ("addresses", 4), ("spans", 3), ("spans", 4)])
def test_a_place_that_is_read_only_or_scattered_is_refused(name: str, at: int) -> None:
    for bad in (np.zeros(0, np.uint64).tobytes(), np.zeros(8, np.uint64)[::2]):
        given_all = [each.copy() if isinstance(each, np.ndarray) else each for each in CALLS[name]]
        given_all[at] = bad
        with pytest.raises((BufferError, ValueError)):
            getattr(_gather, name)(*given_all)


def rows_of(*columns: tuple[Any, ...]) -> Any:
    return _rows.Rows(list(columns))


@pytest.mark.parametrize(
    ("shards", "offsets", "outs", "words_of_refusal"),
    [
        ([2], [0], [bytearray(4)], "a shard beyond the last"),
        ([-1], [0], [bytearray(4)], "a shard beyond the last"),
        ([0], [0, 0], [bytearray(4)], "as many shards as offsets"),
        ([0], [0], [], "as many outputs as columns"),
        ([0], [0], [bytearray(5)], "5 bytes for 1 rows of 4"),
    ],
)
def test_rows_that_do_not_fit_are_not_copied(
    shards: list[int], offsets: list[int], outs: list[Any], words_of_refusal: str
) -> None:
    memory = np.zeros(8, np.uint8)
    rows = rows_of((4, words(memory.ctypes.data, memory.ctypes.data), None, None, ()))

    with pytest.raises(ValueError, match=words_of_refusal):
        rows.fill(np.array(shards, np.int64), words(*offsets), outs)


@pytest.mark.parametrize(
    ("columns", "words_of_refusal"),
    [
        ([(4, words(1, 1), None, None, ()), (4, words(1), None, None, ())], "tables of one length"),
        ([(0, words(1, 1), words(1), np.ones(2, np.int64), ())], "tables of one length"),
        ([(4, bytearray(9), None, None, ())], "tables of one length"),
        ([(-1, words(1), None, None, ())], "a width below 0"),
    ],
)
def test_columns_of_unequal_tables_are_refused(columns: list[tuple[Any, ...]], words_of_refusal: str) -> None:
    with pytest.raises(ValueError, match=words_of_refusal):
        rows_of(*columns)


def test_a_column_that_is_not_mapped_is_named_and_nothing_is_copied() -> None:
    memory, out = np.arange(4, dtype=np.uint32), np.zeros(1, np.uint32)
    first, second = words(memory.ctypes.data), words(0)
    rows = rows_of((4, first, None, None, ()), (4, second, None, None, ()))
    asked = np.zeros(1, np.int64), words(3)

    assert rows.fill(*asked, [out, out.copy()]) == 1
    assert out[0] == 0
    rows.refresh(1, (4, first, None, None, ()))
    assert rows.fill(*asked, [out, out]) == -1
    assert out[0] == 3
    with pytest.raises(IndexError, match="column 2 of 2"):
        rows.refresh(2, (4, first, None, None, ()))
    with pytest.raises(ValueError, match="another one than before"):
        rows.refresh(0, (8, first, None, None, ()))


def test_bytes_that_are_no_text_are_refused() -> None:
    memory, ends = np.full(4, 255, np.uint8), np.array([0, 3], np.int64)
    rows = rows_of((0, words(memory.ctypes.data), words(ends.ctypes.data), np.ones(1, np.int64), ()))

    with pytest.raises(UnicodeDecodeError):
        rows.fill(np.zeros(1, np.int64), words(0), [None])
