"""What kind of source a path is, is told from names; what cannot be told is asked for."""

from pathlib import Path
from typing import Any

import pytest

from spiral_stream.errors import SourceError
from spiral_stream.sources import guessed
from spiral_stream.sources.folder import ImageFolder, VideoFolder
from spiral_stream.sources.guessed import source_at
from spiral_stream.sources.lance import Lance
from spiral_stream.sources.parquet import Parquet


@pytest.mark.parametrize(
    ("files", "path", "kind"),
    [
        ([], "a.lance", Lance),
        ([], "a.lance/", Lance),
        (["x/_versions/1.manifest"], "x", Lance),
        ([], "part-*.parquet", Parquet),
        (["x/y/1.parquet", "x/README.txt"], "x", Parquet),
        (["x/cat/1.JPG", "x/dog/2.png"], "x", ImageFolder),
        (["x/cat/1.mp4"], "x", VideoFolder),
    ],
)
def test_names_of_files_tell(tmp_path: Path, files: list[str], path: str, kind: type) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()

    assert type(source_at(str(tmp_path / path))) is kind


@pytest.mark.parametrize(
    ("files", "path", "kind"),
    [
        ([], "a.jsonl", "jsonl"),
        ([], "a.jsonl.zst", "jsonl"),
        ([], "A.TSV.GZ", "csv"),
        ([], "train-{000..010}.tar", "webdataset"),
        (["x/index.json", "x/shard.00000.mds"], "x", "mds"),
        (["x/state.json", "x/data-00000-of-00001.arrow"], "x", "huggingface"),
        (["x/notes.txt"], "x", "text_files"),
        (["x/1.tar", "x/1.json"], "x", "jsonl"),
        ([], "a.vortex", "vortex"),
    ],
)
def test_names_of_files_tell_kinds(tmp_path: Path, files: list[str], path: str, kind: str) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()

    assert guessed._told(str(tmp_path / path)) == kind


@pytest.mark.parametrize("path", ["a", "a.bin", ".", "a.gz"])
def test_what_cannot_be_told_is_asked_for(tmp_path: Path, path: Any) -> None:
    with pytest.raises(SourceError, match=r"cannot be told from its name\. Give the kind: .*image_folder, .*lance, "):
        source_at(str(tmp_path / path))


def test_an_unknown_kind_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"'excel' is no kind of source\. Give one of .*lance.* installed package"):
        source_at(str(tmp_path), "excel")


def test_a_kind_that_is_given_counts(tmp_path: Path) -> None:
    assert source_at(str(tmp_path / "a.parquet"), "lance") == Lance(str(tmp_path / "a.parquet"))
