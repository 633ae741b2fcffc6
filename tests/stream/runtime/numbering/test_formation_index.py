import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.errors import CacheError, DamageError, SpiralWarning
from spiral_stream.runtime.numbering.formation_index import FormationIndex, verify_index
from tests.fixtures.mutations import COUNTS, mutated_bytes


@given(records=st.lists(st.tuples(*[st.integers(0, 2**40)] * 3), max_size=20), torn=st.integers(0, 23))
def test_the_index_gives_back_what_was_entered(
    tmp_path_factory: pytest.TempPathFactory, records: list[tuple[int, int, int]], torn: int
) -> None:
    file = tmp_path_factory.mktemp("index") / "deep" / "epoch-0.index"
    index = FormationIndex(file)
    assert index.read() == {}
    for record in records:
        index.append(*record)
    if records:
        with file.open("ab") as out:
            out.write(b"\1" * torn)  # a writer that was killed

    assert index.read() == {(lane, chapter): batches for lane, chapter, batches in records}


def test_an_index_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match=r"Make the folder writable, or set \$SPIRAL_CACHE"):
        FormationIndex(tmp_path / "file" / "epoch-0.index").append(0, 0, 1)


def test_a_torn_record_of_the_index_is_forgotten_and_the_next_one_read(tmp_path: Path) -> None:
    index = FormationIndex(tmp_path / "epoch-0.index")
    index.append(0, 0, 7)
    index.append(0, 1, 5)
    file = tmp_path / "epoch-0.index"
    file.write_bytes(file.read_bytes()[:-11])

    assert index.read() == {(0, 0): 7}
    index.append(1, 4, 9)
    assert index.read() == {(0, 0): 7, (1, 4): 9}


@pytest.mark.parametrize("count", COUNTS)
def test_no_mutation_of_the_index_gives_another_number_of_batches(count: int, tmp_path: Path) -> None:
    file = tmp_path / "epoch-0.index"
    sound = {(lane, chapter): 3 * chapter + lane for lane in range(2) for chapter in range(9)}
    for (lane, chapter), batches in sound.items():
        FormationIndex(file).append(lane, chapter, batches)
    data = file.read_bytes()
    for seed in range(count):
        mutated = mutated_bytes(data, seed)
        file.write_bytes(mutated)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", SpiralWarning)
            found = FormationIndex(file).read()
        assert found.items() <= sound.items(), f"seed {seed}"
        # zeros, and an end that is missing, are what a killed writer leaves: those chapters are counted again
        assert len(found) == len(sound) or said or len(mutated) < len(data) or 0 in mutated[31::32], f"seed {seed}"


def test_damaged_records_are_set_aside_with_a_warning_and_sound_ones_stay(tmp_path: Path) -> None:
    file = tmp_path / "epoch-0.index"
    for chapter in range(5):
        FormationIndex(file).append(0, chapter, 10 + chapter)
    data = bytearray(file.read_bytes())
    data[2 * 32 + 16] ^= 1
    file.write_bytes(data)
    with pytest.warns(
        SpiralWarning, match=r"1 records of .*epoch-0\.index are damaged.*counted again when they are needed"
    ):
        found = FormationIndex(file).read()

    assert found == {(0, 0): 10, (0, 1): 11, (0, 3): 13, (0, 4): 14}
    assert FormationIndex(file).read() == found
    assert (tmp_path / ".damaged-epoch-0.index").read_bytes() == bytes(data)


def test_damaged_records_fail_verification_and_torn_ones_do_not(tmp_path: Path) -> None:
    file = tmp_path / "epoch-0.index"
    for chapter in range(3):
        FormationIndex(file).append(0, chapter, chapter)
    whole = file.read_bytes()
    file.write_bytes(whole[:-5])
    assert verify_index(file)

    file.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    with pytest.raises(DamageError, match="1 records fail their checks"):
        verify_index(file)


@given(before=st.lists(st.integers(0, 99), max_size=8, unique=True), after=st.lists(st.integers(100, 199), max_size=8))
def test_news_is_what_others_appended_since(
    tmp_path_factory: pytest.TempPathFactory, before: list[int], after: list[int]
) -> None:
    file = tmp_path_factory.mktemp("index") / "epoch-0.index"
    one, other = FormationIndex(file), FormationIndex(file)
    for chapter in before:
        other.append(0, chapter, chapter + 1)
    assert one.read() == {(0, chapter): chapter + 1 for chapter in before}
    assert one.news() == {}
    for chapter in after:
        other.append(1, chapter, 7)

    assert one.news() == {(1, chapter): 7 for chapter in after}
    assert one.news() == {}
    assert one.folder == file.parent
