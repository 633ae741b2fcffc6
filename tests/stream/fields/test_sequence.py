"""What every token field keeps: each byte of its batch and no other, in one piece or by several threads."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import Pad, PadMask, ShiftedLabels
from spiral_stream.errors import DataError, PlanError
from spiral_stream.fields import CuSeqlens, FieldSpec, Labels, Positions, Segments
from spiral_stream.fields.ragged import MOST_FIELDS, Ragged
from spiral_stream.fields.sequence import SequenceLayout, TokenField, specs_of
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


@given(batch=drawn(), fields=st.lists(st.sampled_from(FIELDS), max_size=6))
def test_fields_that_are_written_together_are_those_that_are_written_alone(
    batch: Drawn, fields: list[TokenField]
) -> None:
    outs = tuple(np.full((batch.placed.B, batch.placed.T), 99, field.dtype) for field in fields)

    assert batch.placed.write(batch.tokens, specs_of(fields), outs) < 0

    for field, out_BT in zip(fields, outs, strict=True):
        np.testing.assert_array_equal(out_BT, filled(field, batch.tokens, batch.placed))


@given(batch=drawn(packed=False))
def test_sequences_that_begin_their_rows_need_no_places(batch: Drawn) -> None:
    placed = SequenceLayout.at_row_starts(batch.tokens.lengths, int(batch.tokens.lengths.max(initial=0)))
    outs = tuple(np.full((placed.B, placed.T), 99, field.dtype) for field in FIELDS)

    assert batch.tokens.write(specs_of(FIELDS), outs, placed.B, placed.T, placed.lengths) < 0

    for field, out_BT in zip(FIELDS, outs, strict=True):
        np.testing.assert_array_equal(out_BT, filled(field, batch.tokens, placed))


def test_what_does_not_fit_together_is_refused_and_nothing_is_written() -> None:
    tokens = ragged([np.array([1, 2], np.uint16), np.array([3], np.uint16)])
    good, short, other = np.full((2, 2), 9), np.full((2, 1), 9), np.full((2, 2), 9, np.int32)
    spec = specs_of([Pad("t")])

    for specs, outs in (
        (spec * 2, (good, short)),
        (spec * 2, (good, other)),
        (spec, (good, good)),
        (spec[:2], (good,)),
    ):
        with pytest.raises(ValueError, match=r"the arrays differ in length|not three numbers for each"):
            tokens.write(specs, outs, 2, 2, tokens.lengths)
    with pytest.raises(ValueError, match="more fields than one call takes"):
        tokens.write(spec * (MOST_FIELDS + 1), (good,) * (MOST_FIELDS + 1), 2, 2, tokens.lengths)
    with pytest.raises(ValueError, match="piece 1: its row is outside the batch"):
        tokens.write(spec, (good[:1],), 1, 2, tokens.lengths)
    assert (good == 9).all()
    assert (short == 9).all()


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


# ---- uint16: what int64 would hold, or an error that names the row; nothing wraps around

MOST = 2**16 - 1
IGNORED = st.sampled_from([MOST, 0, 7, 300])


def alike(narrow: TokenField, wide: TokenField, batch: Drawn) -> None:
    """The field of uint16 holds what that of int64 holds."""
    found = filled(narrow, batch.tokens, batch.placed)

    assert found.dtype == np.uint16
    np.testing.assert_array_equal(found, filled(wide, batch.tokens, batch.placed))


def first_wrong(batch: Drawn, written: Any, wrong: Any) -> int | None:
    """The first sequence that writes a token that does not fit."""
    return next(
        (number for _, start, piece, number in batch.pieces() if any(map(wrong, written(piece, start)))),
        None,
    )


def refused_at(field: TokenField, batch: Drawn, row: int) -> None:
    with pytest.raises(
        DataError, match=r"a token does not fit dtype uint16, which holds ids from 0 to 65,535"
    ) as caught:
        filled(field, batch.tokens, batch.placed)
    assert caught.value.row == row


@given(batch=drawn(limit=MOST), value=st.integers(0, MOST))
def test_ids_are_those_of_int64_or_the_first_row_with_another_is_named(batch: Drawn, value: int) -> None:
    field = Pad("t", dtype="uint16", pad_value=value)
    row = first_wrong(batch, lambda piece, _: piece, lambda token: token < 0)

    if row is None:
        alike(field, Pad("t", pad_value=value), batch)
    else:
        refused_at(field, batch, row)


@given(batch=drawn(limit=400), shifted=st.booleans(), ignore=IGNORED)
def test_labels_are_those_of_int64_and_no_id_is_ignored_by_chance(batch: Drawn, shifted: bool, ignore: int) -> None:
    kind = ShiftedLabels if shifted else Labels
    field = kind("t", dtype="uint16", ignore_index=ignore)
    row = first_wrong(
        batch,
        lambda piece, start: piece[1:] if shifted or start else piece,
        lambda token: token < 0 or token == ignore,
    )

    if row is None:
        alike(field, kind("t", ignore_index=ignore), batch)
    else:
        refused_at(field, batch, row)


@given(batch=drawn(), kind=st.sampled_from([Segments, Positions]))
def test_segments_and_positions_are_those_of_int64(batch: Drawn, kind: Any) -> None:
    alike(kind("t", dtype="uint16"), kind("t", dtype="int64"), batch)


VALUES = (200, MOST, MOST + 1, 2**16 + 5, 2**31, 2**32, 2**32 + 1, 2**63, -1, -(2**15), -(2**40))
KINDS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@pytest.mark.parametrize(
    ("kind", "value"),
    [(kind, value) for kind in KINDS for value in VALUES if np.iinfo(kind).min <= value <= np.iinfo(kind).max],
)
def test_every_integer_type_is_written_or_refused(kind: str, value: int) -> None:
    batch = ragged([np.array([1, 2], kind), np.array([3] * 40 + [value] + [4] * 40, kind)])
    layout = SequenceLayout.at_row_starts(np.array([2, 81]), 96)
    if 0 <= value <= MOST:
        assert filled(Pad("t", dtype="uint16"), batch, layout)[1, 40] == value
        return
    for field in (Pad("t", dtype="uint16"), Labels("t", dtype="uint16", ignore_index=MOST)):
        with pytest.raises(DataError, match=r'Give .*dtype="int(32|64)"') as caught:
            filled(field, batch, layout)
        assert caught.value.row == 1


def test_positions_and_segments_beyond_16_bits_are_refused() -> None:
    tokens = Ragged.of_flat(np.zeros(2**16 + 1, np.uint8), np.array([0, 2**16 + 1]))
    positions, most = Positions("t", dtype="uint16"), SequenceLayout.at_row_starts(np.array([2**16]), 2**16)

    np.testing.assert_array_equal(filled(positions, tokens, most)[0], np.arange(2**16))
    with pytest.raises(DataError, match=r'more than 65,536 tokens.* Give dtype="int32", or "int64"'):
        filled(positions, tokens, SequenceLayout.at_row_starts(np.array([2**16 + 1]), 2**16 + 1))

    counts = np.arange(2**16)
    pieces = Ragged.of_flat(np.zeros(2**16, np.uint8), np.arange(2**16 + 1))
    ones, zeros = np.ones(2**16, np.int64), np.zeros(2**16, np.int64)
    row = SequenceLayout(zeros, counts, zeros, ones, 1, 2**16)
    with pytest.raises(DataError, match=r'more than 65,535 pieces.* Give dtype="int32"') as caught:
        filled(Segments("t", dtype="uint16"), pieces, row)
    assert caught.value.row == MOST


@pytest.mark.parametrize("given", ["uint16", np.uint16, np.dtype("uint16"), pa.uint16()])
def test_the_dtype_is_that_of_any_library_and_the_spec_says_what_torch_gets(given: Any) -> None:
    field = Pad("t", dtype=given)

    assert field == Pad("t", dtype="uint16")
    assert field.spec(pa.field("t", pa.list_(pa.int32()))) == FieldSpec("uint16", (None,), widened="int64")
    assert Pad("t", dtype="int32").spec(pa.field("t", pa.list_(pa.int32()))) == FieldSpec("int32", (None,))


@pytest.mark.parametrize("kind", [ShiftedLabels, Labels])
def test_labels_without_a_sign_have_no_negative_ignore_index(kind: Any) -> None:
    with pytest.raises(
        PlanError, match=r"ignore_index=-100\. Give a number that is no id, such as ignore_index=65_535, to the"
    ):
        kind("t", dtype="uint16")
    with pytest.raises(PlanError, match=r"ignore_index=65536\. Give an integer that fits uint16"):
        kind("t", dtype="uint16", ignore_index=2**16)


@pytest.mark.parametrize("value", [-1, 2**16, 0.5])
def test_a_pad_value_fits_uint16(value: Any) -> None:
    with pytest.raises(PlanError, match=f"pad_value={value}. Give an integer that fits uint16"):
        Pad("t", dtype="uint16", pad_value=value)


def test_other_rows_than_tokens_are_refused() -> None:
    with pytest.raises(PlanError, match=r"dtype='uint16' is of token ids, .* Give int32, or int64"):
        Pad("t", dtype="uint16").spec(pa.field("t", pa.list_(pa.list_(pa.int32(), 4))))


def test_masked_labels_keep_what_the_mask_says() -> None:
    tokens, mask = ragged([np.array([5, 6, 7], np.uint16)]), ragged([np.array([1, 0, 1], np.uint8)])
    layout, field = (
        SequenceLayout.at_row_starts(np.array([3]), 4),
        Labels("t", dtype="uint16", ignore_index=MOST, mask="m"),
    )
    out_BT = filled(field, tokens, layout)

    field.ignore(mask, tokens, layout, out_BT)
    assert out_BT.tolist() == [[5, MOST, 7, MOST]]
