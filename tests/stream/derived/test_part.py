"""A part holds pieces bit for bit, and every changed, missing or foreign byte of it is named."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.derived.derivation import Derivation, Piece, ShardRows
from spiral_stream.derived.part import (
    ALIGN,
    DATA,
    SUMS,
    Written,
    aligned,
    digest_of,
    open_part,
    verify_file,
    write_part,
)
from spiral_stream.errors import DamageError
from spiral_stream.integrity.blocks import BLOCK
from spiral_stream.integrity.publish import publish_file
from tests.fixtures.named_shards import flip


@dataclass(frozen=True)
class Two(Derivation):
    """Pieces of two arrays and one number."""

    KIND: ClassVar[str] = "two"
    SUMMARY: ClassVar[tuple[str, ...]] = ("sum",)

    @property
    def columns(self) -> tuple[str, ...]:
        return ()

    @property
    def slots(self) -> Mapping[str, np.dtype[Any]]:
        return {"a": np.dtype("<i8"), "b": np.dtype("u1")}

    def facts(self) -> dict[str, object]:
        return {}

    def piece(self, shard: ShardRows) -> Piece:
        raise AssertionError(shard)


def written(folder: Path, pieces: list[Piece]) -> tuple[Path, Written]:
    """Write a part and its sums as a commit does."""
    path = folder / f"part{DATA}"
    path.touch()
    made = write_part(path, Two(), pieces)
    with publish_file(path.with_suffix(SUMS)) as sums:
        sums.write_bytes(made.sums.tobytes())
    return path, made


def digest(made: Written) -> str:
    return digest_of(made.sums.tobytes())


def piece(longs: int, small: int) -> Piece:
    return Piece({"a": np.arange(longs, dtype="<i8") * 3, "b": np.arange(small).astype("u1")}, {"sum": longs - small})


PIECES = st.lists(
    st.builds(piece, st.integers(0, 40) | st.sampled_from([8_192, 9_000]), st.integers(0, 200)), max_size=5
)


@given(PIECES)
def test_every_array_lies_where_it_was_said_and_every_block_has_its_sum(pieces: list[Piece]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, made = written(Path(folder), pieces)
        data = path.read_bytes()

        assert made.size == len(data)
        for k, each in enumerate(pieces):
            at = int(made.offsets[k])
            for j, values in enumerate(each.arrays.values()):
                assert at % ALIGN == 0
                assert made.counts[k, j] == len(values)
                assert data[at : at + values.nbytes] == values.tobytes()
                at += aligned(values.nbytes)
        assert made.summaries[:, 0].tolist() == [each.summary["sum"] for each in pieces]
        blocks = [data[at : at + BLOCK] for at in range(0, len(data), BLOCK)]
        assert made.sums.tolist() == [xxhash.xxh3_64_intdigest(block) for block in blocks]
        verify_file(path)
        assert bytes(memoryview(open_part(path, made.size, digest(made)))) == data


def test_absent_arrays_are_empty(tmp_path: Path) -> None:
    _, made = written(tmp_path, [Piece({"b": np.ones(3, "u1")}, {"sum": 0})])

    assert made.counts.tolist() == [[0, 3]]
    assert (made.size, made.offsets.tolist()) == (ALIGN, [0])


def test_an_array_of_another_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="int32"):
        written(tmp_path, [Piece({"a": np.ones(3, "<i4")}, {"sum": 0})])


@given(place=st.integers(0, 2**20), bit=st.integers(0, 7), suffix=st.sampled_from([DATA, SUMS]))
def test_one_flipped_bit_anywhere_is_found_and_the_file_named(place: int, bit: int, suffix: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, _ = written(Path(folder), [piece(9_000, 5), piece(10, 3)])
        flip(path.with_suffix(suffix), place, bit)

        with pytest.raises(DamageError, match=rf"part\{suffix} is damaged"):
            verify_file(path)


@pytest.mark.parametrize("suffix", [DATA, SUMS])
@pytest.mark.parametrize("size", [0, 1, -1])
def test_a_file_that_is_cut_or_grown_is_named_when_it_is_opened(tmp_path: Path, size: int, suffix: str) -> None:
    path, made = written(tmp_path, [piece(9_000, 5)])
    whole = path.with_suffix(suffix).read_bytes()
    path.with_suffix(suffix).write_bytes(whole + b"\0" if size == 1 else whole[:size])

    with pytest.raises(DamageError, match=rf"part\{suffix} is damaged"):
        open_part(path, made.size, digest(made))


@pytest.mark.parametrize("suffix", [DATA, SUMS])
def test_a_missing_file_is_named(tmp_path: Path, suffix: str) -> None:
    path, made = written(tmp_path, [piece(3, 5)])
    path.with_suffix(suffix).unlink()

    with pytest.raises(DamageError, match=rf"part\{suffix} is damaged: it is missing"):
        open_part(path, made.size, digest(made))


def test_a_part_in_the_place_of_another_is_named(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    path, made = written(tmp_path, [piece(3, 5)])
    other, _ = written(tmp_path / "other", [piece(3, 6)])
    for suffix in (DATA, SUMS):
        other.with_suffix(suffix).replace(path.with_suffix(suffix))

    with pytest.raises(DamageError, match="its sums are those of another part"):
        open_part(path, made.size, digest(made))
