"""What every token field keeps: each byte of its batch and no other, in one piece or by several threads."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import Pad, PadMask, ShiftedLabels
from spiral_stream.errors import DataError, PlanError
from spiral_stream.fields import CuSeqlens, FieldSpec, Labels, Positions, Segments
from spiral_stream.fields.ragged import Ragged
from spiral_stream.fields.sequence import SequenceLayout, TokenField
from tests.fixtures.tokens import SENTINEL, Drawn, drawn, filled, ragged

FIELDS: list[TokenField] = [
    Pad("t", pad_value=7),
    Pad("t", dtype="int32"),
    PadMask("t"),
    PadMask("t", dtype="bool"),
    ShiftedLabels("t"),
    Labels("t", dtype="int32"),
    Segments("t"),
    Positions("t"),
]


@given(batch=drawn(), field=st.sampled_from(FIELDS), cut=st.integers(0, 4))
def test_ranges_of_rows_filled_alone_equal_the_whole(batch: Drawn, field: TokenField, cut: int) -> None:
    whole = filled(field, batch.tokens, batch.placed)
    cut = min(cut, batch.placed.B)

    for first, last in ((0, cut), (cut, batch.placed.B)):
        part, pieces = batch.placed.part(first, last)
        tokens = batch.tokens.take(np.arange(pieces.start, pieces.stop))
        assert len(tokens) == len(part.rows)
        np.testing.assert_array_equal(filled(field, tokens, part), whole[first:last])


@given(batch=drawn(), field=st.sampled_from(FIELDS))
def test_tokens_and_places_are_left_as_they_were(batch: Drawn, field: TokenField) -> None:
    values = [v.copy() for v in batch.values]
    places = [getattr(batch.placed, n).copy() for n in ("rows", "starts", "offsets", "lengths")]

    filled(field, batch.tokens, batch.placed)

    assert all((a == b).all() for a, b in zip(values, batch.values, strict=True))
    for was, name in zip(places, ("rows", "starts", "offsets", "lengths"), strict=True):
        np.testing.assert_array_equal(was, getattr(batch.placed, name))


FAR = st.one_of(st.integers(-(2**63), -1), st.integers(200, 2**63 - 1))


@given(
    batch=drawn().filter(lambda batch: len(batch.placed.rows) > 0),
    field=st.sampled_from(FIELDS),
    name=st.sampled_from(["rows", "starts", "offsets", "lengths"]),
    at=st.integers(0, 20),
    value=FAR,
)
def test_a_piece_outside_is_refused_and_nothing_written(
    batch: Drawn, field: TokenField, name: str, at: int, value: int
) -> None:
    array = getattr(batch.placed, name).copy()
    at %= len(array)
    array[at] = value
    wrong = replace(batch.placed, **{name: array})
    out_BT = np.empty((wrong.B, wrong.T), dtype=field.dtype)
    out_BT.view(np.uint8)[...] = SENTINEL

    with pytest.raises(ValueError, match=rf"piece {at}: (its row is outside|it is outside|its sequence is shorter)"):
        field.fill_tokens(batch.tokens, wrong, out_BT)
    assert (out_BT.view(np.uint8) == SENTINEL).all()


def test_threads_fill_one_batch_together() -> None:
    draw = np.random.default_rng(5)
    lengths = draw.integers(0, 900, 600)
    values = draw.integers(0, 50_000, int(lengths.sum())).astype(np.uint16)
    tokens = Ragged.of_flat(values, np.concatenate([[0], np.cumsum(lengths)]))
    placed = SequenceLayout.at_row_starts(lengths, 896 + 5)
    whole = filled(Pad("t"), tokens, placed)
    out_BT = np.full_like(whole, -1)

    def fill(first: int) -> None:
        part, pieces = placed.part(first, first + 50)
        Pad("t").fill_tokens(tokens.take(np.arange(pieces.start, pieces.stop)), part, out_BT[first : first + 50])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(fill, range(0, 600, 50)))
    np.testing.assert_array_equal(out_BT, whole)
    for i in (0, 299, 599):
        begin = int(lengths[:i].sum())
        assert whole[i, : lengths[i]].tolist() == values[begin : begin + lengths[i]].tolist()
        assert not whole[i, lengths[i] :].any()


def places(**changed: list[int] | int) -> SequenceLayout:
    found: dict[str, list[int] | int] = {
        "rows": [0, 0, 1],
        "starts": [0, 2, 0],
        "offsets": [0, 0, 0],
        "lengths": [2, 2, 2],
        "B": 2,
        "T": 4,
    }
    found |= changed
    return SequenceLayout(**{k: np.array(v, dtype=np.int64) if isinstance(v, list) else v for k, v in found.items()})


@pytest.mark.parametrize(
    ("placed", "says"),
    [
        (places(starts=[0, 1, 0]), "piece 1: it overlaps the piece in front of it"),
        (places(starts=[2, 0, 0]), "piece 1: it overlaps the piece in front of it"),
        (places(rows=[1, 0, 1]), "piece 1: its row is outside the batch, or before that of the piece in front"),
        (places(rows=[0, 0, 2]), "piece 2: its row is outside the batch"),
        (places(starts=[0, 3, 0]), "piece 1: it is outside its row"),
        (places(lengths=[2, 2, 3]), "piece 2: its sequence is shorter"),
        (places(offsets=[0, 0, 1]), "piece 2: its sequence is shorter"),
        (places(rows=[0, 0], starts=[0, 2], offsets=[0, 0], lengths=[2, 2]), "the arrays differ in length"),
    ],
)
def test_placements_that_cannot_be_are_named(placed: SequenceLayout, says: str) -> None:
    tokens = ragged([np.array([1, 2], dtype=np.uint16)] * 3)

    with pytest.raises(ValueError, match=says):
        filled(Pad("t"), tokens, placed)


def test_a_sequence_off_its_alignment_is_refused() -> None:
    tokens = ragged([np.array([1, 2, 3], dtype=np.uint32)])
    tokens = replace(tokens, addresses=tokens.addresses + np.uint64(2))

    with pytest.raises(ValueError, match="piece 0: its sequence is not aligned to its items"):
        filled(Pad("t"), tokens, SequenceLayout.at_row_starts(np.array([2]), 2))


def test_item_sizes_other_than_integers_have_are_refused() -> None:
    tokens = ragged([np.array([1, 2, 3], dtype=np.uint32)])
    tokens = replace(tokens, item_bytes=np.array([3], dtype=np.uint8))

    with pytest.raises(ValueError, match="piece 0: its items are not of 1, 2, 4 or 8 bytes"):
        filled(Pad("t"), tokens, SequenceLayout.at_row_starts(np.array([2]), 2))


def test_places_are_int64() -> None:
    with pytest.raises(ValueError, match=r"lengths is int32 of shape \[2\]. Give int64 of shape \[2\]"):
        SequenceLayout.at_row_starts(np.array([1, 2], dtype=np.int32), 4)


@pytest.mark.parametrize(
    ("dtype", "kind", "value"),
    [
        ("int32", "uint32", 2**31),
        ("int32", "uint64", 2**31),
        ("int32", "int64", -(2**31) - 1),
        ("int64", "uint64", 2**63),
    ],
)
@pytest.mark.parametrize("field", [Pad, ShiftedLabels, Labels])
def test_a_token_that_does_not_fit_is_refused_by_its_row(field: type[Pad], dtype: str, kind: str, value: int) -> None:
    wrong = np.array([1] * 40 + [value], dtype=kind)
    tokens = ragged([np.array([1, 2], dtype=kind), wrong, wrong])

    with pytest.raises(DataError, match=f"a token does not fit dtype {dtype}; .* Ask for int64") as caught:
        filled(field("t", dtype=dtype), tokens, SequenceLayout.at_row_starts(np.array([2, 41, 41]), 48))
    assert caught.value.row == 1


@pytest.mark.parametrize("field", [*FIELDS, CuSeqlens("t")])
@pytest.mark.parametrize("kind", [pa.list_(pa.uint16()), pa.large_list(pa.int64()), pa.list_(pa.int32())])
def test_the_spec_leaves_the_width_open(field: TokenField, kind: pa.DataType) -> None:
    dtype = "int32" if isinstance(field, CuSeqlens) else field.dtype

    assert field.spec(pa.field("t", kind)) == FieldSpec(dtype, (None,))
    assert replace(field, device="cuda").spec(pa.field("t", kind)).device == "cuda"


@pytest.mark.parametrize("field", [*FIELDS, CuSeqlens("t")])
@pytest.mark.parametrize(
    ("kind", "way_out"),
    [
        (pa.utf8(), r'not a list of integers. Map it before: \.map\(Tokenize\("t", tokenizer=\.\.\.\) >> "tokens"\)'),
        (pa.large_utf8(), r'Map it before: \.map\(Tokenize\("t"'),
        (pa.int64(), r'Name the output of a Tokenize, such as "tokens"'),
        (pa.list_(pa.utf8()), "or a stored column of type list<int32>"),
        (pa.list_(pa.int32(), 4), r'need no padding: use Stack\("t"\)'),
    ],
)
def test_other_columns_are_refused_with_the_way_out(field: TokenField, kind: pa.DataType, way_out: str) -> None:
    with pytest.raises(PlanError, match=way_out):
        field.spec(pa.field("t", kind))


def test_they_are_not_filled_from_values_alone() -> None:
    with pytest.raises(TypeError, match="Call fill_tokens"):
        Pad("t").fill(pa.array([[1]]), None)


def test_an_empty_batch_is_an_empty_array() -> None:
    nothing = np.empty(0, dtype=np.int64)

    assert filled(Pad("t"), ragged([]), SequenceLayout.at_row_starts(nothing, 128)).shape == (0, 128)
    assert filled(
        Pad("t"), ragged([np.empty(0, np.uint16)]), SequenceLayout.at_row_starts(np.zeros(1, np.int64), 0)
    ).shape == (
        1,
        0,
    )
