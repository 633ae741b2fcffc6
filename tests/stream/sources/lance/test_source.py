import re
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

from spiral_stream import Lance
from spiral_stream.errors import SourceError
from spiral_stream.sources.lance import source as room
from spiral_stream.sources.lance.source import LanceReader


def write(path: Path, rows: int = 30, **options: object) -> lance.LanceDataset:
    table = pa.table({"id": [f"s{i:03d}" for i in range(rows)], "n": np.arange(rows)})
    return lance.write_dataset(table, str(path), **options)


def keys(source: Lance) -> dict[str, str]:
    with source.open() as reader:
        return {unit.name: unit.content_key for unit in reader.units()}


def test_a_pinned_source_reads_the_version_it_was_pinned_at(tmp_path: Path) -> None:
    write(tmp_path / "t.lance")
    pinned = Lance(str(tmp_path / "t.lance")).pinned()
    lance.dataset(str(tmp_path / "t.lance")).delete("n >= 5")

    with pinned.open() as before, Lance(str(tmp_path / "t.lance")).open() as after:
        assert sum(unit.rows for unit in before.units()) == 30
        assert sum(unit.rows for unit in after.units()) == 5


def test_only_the_fragment_with_deleted_rows_changes_its_content_key(tmp_path: Path) -> None:
    source = Lance(str(tmp_path / "t.lance"))
    write(tmp_path / "t.lance", max_rows_per_file=10)
    before = keys(source)
    lance.dataset(source.uri).delete("n = 15")
    after = keys(source)

    assert list(before) == ["fragment-00000000", "fragment-00000001", "fragment-00000002"]
    assert [before[name] == after[name] for name in before] == [True, False, True]


def test_appended_rows_make_a_new_unit_and_leave_the_others(tmp_path: Path) -> None:
    source = Lance(str(tmp_path / "t.lance"))
    write(tmp_path / "t.lance")
    before = keys(source)
    write(tmp_path / "t.lance", mode="append")
    after = keys(source)

    assert before.items() < after.items()
    assert len(after) == 2


def test_a_changed_column_type_changes_every_content_key(tmp_path: Path) -> None:
    source = Lance(str(tmp_path / "t.lance"))
    write(tmp_path / "t.lance")
    before = keys(source)
    lance.dataset(source.uri).drop_columns(["n"])

    assert keys(source).keys() == before.keys()
    assert keys(source).values() != before.values()


def test_sizes_count_packed_blobs(tmp_path: Path) -> None:
    payload = [b"x" * 100_000] * 4
    schema = pa.schema([pa.field("n", pa.int64()), lance.blob_field("b")])
    lance.write_dataset(
        pa.table([pa.array(range(4)), lance.blob_array(payload)], schema=schema), str(tmp_path / "b.lance")
    )
    with Lance(str(tmp_path / "b.lance")).open() as reader:
        assert reader.schema.field("b").type == pa.large_binary()
        assert reader.units()[0].size_bytes > 400_000


def test_a_missing_dataset_is_refused_with_what_lies_near(tmp_path: Path) -> None:
    write(tmp_path / "images.lance")
    with pytest.raises(SourceError, match=r"near it: images\.lance\. Correct the path"):
        Lance(str(tmp_path / "image.lance")).open()


def test_a_folder_that_is_no_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=f"Lance dataset {tmp_path}"):
        Lance(str(tmp_path)).open()


def test_a_version_that_is_gone_is_refused_with_those_there_are(tmp_path: Path) -> None:
    write(tmp_path / "t.lance")
    with pytest.raises(SourceError, match=r"version 7 is gone; it has 1 to 1\..*catalog\.refresh"):
        Lance(str(tmp_path / "t.lance"), version=7).open()


def test_a_damaged_file_is_a_source_error_with_the_place(tmp_path: Path) -> None:
    write(tmp_path / "t.lance")
    (file,) = (tmp_path / "t.lance" / "data").glob("*.lance")
    file.write_bytes(b"\0" * file.stat().st_size)
    with (
        Lance(str(tmp_path / "t.lance")).open() as reader,
        pytest.raises(SourceError, match="Check that the files are whole"),
    ):
        reader.fetch(np.array([1], dtype=np.uint64), ["id"])


def test_a_file_that_is_not_as_long_as_its_manifest_says_is_named_when_the_dataset_is_opened(tmp_path: Path) -> None:
    write(tmp_path / "t.lance")
    (file,) = (tmp_path / "t.lance" / "data").glob("*.lance")
    file.write_bytes(file.read_bytes() + b"more")
    with pytest.raises(SourceError, match=rf"{file.name} has [\d,]+ bytes, its manifest says [\d,]+. Restore"):
        Lance(str(tmp_path / "t.lance")).open()


Panic = type("PanicException", (BaseException,), {})  # like pyo3's, which no ``except Exception`` catches
Ended = type("Ended", (BaseException,), {})  # like Dagster's, with which it ends a step


def test_a_panic_in_lance_is_a_source_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "t.lance")

    def panic(*_: object, **__: object) -> None:
        raise Panic("index out of bounds")

    monkeypatch.setattr(lance.LanceDataset, "take", panic)
    with (
        Lance(str(tmp_path / "t.lance")).open() as reader,
        pytest.raises(SourceError, match="index out of bounds") as caught,
    ):
        reader.fetch(np.array([1], dtype=np.uint64), ["id"])

    assert isinstance(caught.value.__cause__, Panic)


@pytest.mark.parametrize("end", [KeyboardInterrupt, Ended])
def test_an_interrupt_goes_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: type[BaseException]) -> None:
    write(tmp_path / "t.lance")

    def interrupt(*_: object, **__: object) -> None:
        raise end

    monkeypatch.setattr(lance.LanceDataset, "take", interrupt)
    with Lance(str(tmp_path / "t.lance")).open() as reader, pytest.raises(end):
        reader.fetch(np.array([1], dtype=np.uint64), ["id"])


def test_scanning_ordinals_only_reads_no_file(tmp_path: Path) -> None:
    write(tmp_path / "t.lance", max_rows_per_file=10)
    with Lance(str(tmp_path / "t.lance")).open() as reader:
        for file in (tmp_path / "t.lance" / "data").glob("*.lance"):
            file.unlink()
        rows = [row for batch in reader.scan([]) for row in batch.column(0).to_pylist()]

    assert rows == list(range(30))


def test_long_fragments_are_read_in_pieces() -> None:
    assert room.pieces_of(10_000) == (4096, 4096, 1808)
    assert room.pieces_of(4096) == (4096,)
    assert room.pieces_of(0) == ()


def test_threads_may_share_a_reader(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    write(tmp_path / "t.lance", rows=500, max_rows_per_file=90)
    rng = np.random.default_rng(0)
    asked = [rng.integers(0, 500, 40).astype(np.uint64) for _ in range(24)]
    with LanceReader(Lance(str(tmp_path / "t.lance"))) as reader, ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda rows: reader.fetch(rows, ["n"])["n"].to_pylist(), asked))

    assert found == [rows.tolist() for rows in asked]


def test_home_is_expanded_and_file_uris_are_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    assert Lance("~/t.lance") == Lance(f"file://{tmp_path}/t.lance") == Lance(str(tmp_path / "t.lance"))


@pytest.mark.parametrize("name", ["*", "a`b"])
def test_a_column_that_lance_cannot_read_by_its_name_is_named_before_it_is_read(tmp_path: Path, name: str) -> None:
    lance.write_dataset(pa.table({"id": [1, 2], name: [3, 4]}), str(tmp_path / "t.lance"))

    with pytest.raises(SourceError, match=rf"a column is called '{re.escape(name)}', .*Rename it, or drop it"):
        Lance(str(tmp_path / "t.lance")).open()


def test_a_list_of_datasets_is_refused_with_the_way_out() -> None:
    for several in (["a.lance", "b.lance"], ("a.lance",)):
        with pytest.raises(
            SourceError, match=r"a source is one. Register each under a name of its own, and lay.*union"
        ):
            Lance(several)  # type: ignore[arg-type]  # what is refused


def test_a_manifest_whose_types_are_damaged_is_named(tmp_path: Path) -> None:
    """Lance panics there, with an exception that ``except Exception`` does not catch."""
    place = tmp_path / "rows.lance"
    lance.write_dataset(pa.table({"sample_id": range(30), "text": ["t"] * 30, "v": [1.0] * 30}), str(place))
    (manifest,) = (place / "_versions").glob("*.manifest")
    whole = manifest.read_bytes()
    refused = 0
    for place_of_name in (found.start() for found in re.finditer(rb"string|double|int64", whole)):
        for offset in range(5):
            damaged = bytearray(whole)
            damaged[place_of_name + offset] ^= 1 << (offset % 8)
            manifest.write_bytes(damaged)
            try:
                with Lance(str(place)).open() as reader:
                    reader.units()
            except SourceError:
                refused += 1
    assert refused >= 10
