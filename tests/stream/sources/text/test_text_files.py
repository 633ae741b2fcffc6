import os
from collections.abc import Sequence
from pathlib import Path

import pytest

import spiral_stream as sp
from spiral_stream.errors import SourceError
from spiral_stream.sources import ImportUnit, TextFiles
from spiral_stream.sources.files import units as pieces
from spiral_stream.sources.text import text_files
from tests.fixtures.imports import read_all, rows_of


def written(folder: Path, **texts: str | bytes) -> Path:
    for name, text in texts.items():
        path = folder / name.replace("__", "/").replace("_txt", ".txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def units_of(source: TextFiles) -> Sequence[ImportUnit]:
    return source.import_pieces(source.import_units())


def test_each_file_is_a_row_with_its_text_size_and_name(tmp_path: Path) -> None:
    written(tmp_path, b__2_txt="zwei ä\r\n", a_txt="", b__c__3_txt=b"\xef\xbb\xbfdrei", readme="no")
    assert rows_of(TextFiles(tmp_path)).to_pylist() == [
        {"text": "", "size_bytes": 0, "__file__": "a.txt"},
        {"text": "zwei ä\r\n", "size_bytes": 9, "__file__": "b/2.txt"},
        {"text": "drei", "size_bytes": 7, "__file__": "b/c/3.txt"},
    ]
    assert rows_of(TextFiles(tmp_path, "read*"))["text"].to_pylist() == ["no"]


def test_many_small_files_are_few_units_and_a_new_one_changes_one_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "CUT_EVERY", 16)
    written(tmp_path, **{f"d{k % 3}__{k:04d}_txt": str(k) for k in range(400)})
    before = units_of(TextFiles(tmp_path))
    written(tmp_path, d1__0007x_txt="new")
    after = units_of(TextFiles(tmp_path))
    new = {unit.content_key for unit in after} - {unit.content_key for unit in before}

    assert 8 <= len(before) <= 80
    assert sum(len(unit.files) for unit in before) == 400
    assert len({unit.name for unit in after}) == len(after)
    assert 1 <= len(new) <= 2
    assert len(rows_of(TextFiles(tmp_path))) == 401


def test_units_and_batches_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "MOST_FILES", 10)
    monkeypatch.setattr(text_files, "BATCH_BYTES", 30)
    written(tmp_path, **{f"{k:03d}_txt": "x" * 10 for k in range(35)})
    source = TextFiles(tmp_path)
    units = units_of(source)

    assert max(len(unit.files) for unit in units) <= 10
    assert [len(b) for b in source.import_rows(units[0], text_files.SCHEMA, text_files.Refused(units[0]))][:2] == [3, 3]


def test_a_file_that_is_not_utf8_is_named_or_left_out(tmp_path: Path) -> None:
    written(tmp_path, a_txt="good", b__bad_txt="schön".encode("latin-1"))
    with pytest.raises(SourceError, match=r"b/bad\.txt, the whole text: byte 3 is .*xf6.*not UTF-8.*on_error"):
        rows_of(TextFiles(tmp_path))
    found, [_, refused] = read_all(TextFiles(tmp_path, on_error="skip"))
    assert (found["text"].to_pylist(), refused.count) == (["good"], 1)
    assert [(row.file, row.data) for row in refused.rows] == [("b/bad.txt", b"sch\xf6n")]


def test_a_file_too_large_for_a_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "FILE_BYTES", 1 << 20)
    written(tmp_path, a_txt=b"x" * ((1 << 20) + 1))
    with pytest.raises(SourceError, match=r"a\.txt has more than 1 MiB.*Leave it out, or split it"):
        rows_of(TextFiles(tmp_path))


def test_a_file_that_is_gone_when_it_is_read_is_named(tmp_path: Path) -> None:
    written(tmp_path, a_txt="x", b_txt="y")
    source = TextFiles(tmp_path)
    [unit] = units_of(source)
    (tmp_path / "b.txt").unlink()
    with pytest.raises(SourceError, match=r"b\.txt: No such file.*Restore it"):
        list(source.import_rows(unit, text_files.SCHEMA, text_files.Refused(unit)))


def test_a_folder_or_pattern_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"nothing in .* matches '\*\*/\*\.txt'\. Correct the pattern"):
        TextFiles(tmp_path).import_units()
    with pytest.raises(SourceError, match="there is none at"):
        TextFiles(tmp_path / "gone").import_units()
    with pytest.raises(SourceError, match="hdfs://bucket/texts lies in a store that is not read here"):
        TextFiles("hdfs://bucket/texts").import_units()
    for pattern in ("", "/etc/*", 3):
        with pytest.raises(SourceError, match="Give one relative to the folder"):
            TextFiles(tmp_path, pattern)  # type: ignore[arg-type]
    os.mkfifo(tmp_path / "a.txt")
    with pytest.raises(SourceError, match="a FIFO"):
        TextFiles(tmp_path).import_units()


def test_the_name_of_the_file_identifies_a_row_in_a_catalog(tmp_path: Path) -> None:
    written(tmp_path / "texts", a_txt="one", b__a_txt="two")
    catalog = sp.connect(tmp_path / "catalog")
    catalog.register("texts", sp.sources.TextFiles(tmp_path / "texts"), identity="__file__")
    found = catalog.table("texts").to_arrow().to_pydict()

    assert dict(zip(found["__file__"], found["text"], strict=True)) == {"a.txt": "one", "b/a.txt": "two"}
