"""What kind of source a path is, is told from names; what cannot be told is asked for."""

from pathlib import Path
from typing import Any

import pytest

from spiral_stream import ImageFolder, Lance, Parquet
from spiral_stream.errors import SourceError
from spiral_stream.sources import VideoFolder
from spiral_stream.sources import detect as guessed
from spiral_stream.sources.detect import source_at


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
        (["x/1.tar", "x/1.json"], "x", "webdataset"),
        ([], "a.npy", "tokens"),
        (["x/cat/1.jpg", "x/cat/1.txt"], "x", "image_folder"),
        ([], "a.vortex", "vortex"),
    ],
)
def test_names_of_files_tell_kinds(tmp_path: Path, files: list[str], path: str, kind: str) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()

    assert guessed.suggested(str(tmp_path / path)) == kind


@pytest.mark.parametrize("path", ["a", "a.exe", ".", "a.gz"])
def test_what_cannot_be_told_is_asked_for(tmp_path: Path, path: Any) -> None:
    with pytest.raises(SourceError, match=r"cannot be told from its name\. Give the kind: .*image_folder, "):
        source_at(str(tmp_path / path))


def test_an_unknown_kind_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"'excel' is no kind of source\. Give one of .*lance.* installed package"):
        source_at(str(tmp_path), "excel")


def test_a_kind_that_is_given_counts(tmp_path: Path) -> None:
    assert source_at(str(tmp_path / "a.parquet"), "lance") == Lance(str(tmp_path / "a.parquet"))


SPLITS = [
    (["data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"], "huggingface"),
    (["default/train/0000.parquet", "default/validation/0000.parquet"], "huggingface"),
    (["train_sft-00000-of-00001.parquet", "test_sft-00000-of-00001.parquet"], "huggingface"),
    (["train.parquet", "dev.parquet", "README.md"], "huggingface"),
    (
        ["train.jsonl", "test.jsonl.gz"],
        r"several splits: test, train\. Give those of one, such as .*/test\*\.jsonl\.gz; or .*jsonl",
    ),
    (["train-000.tar", "val-000.tar"], r"several splits: train, validation"),
    (
        ["train/index.json", "train/shard.00000.mds", "val/index.json", "val/shard.00000.mds"],
        r"such as .*/train; or .*mds",
    ),
    (["Training/cat/1.jpg", "Testing/cat/1.jpg"], r"such as .*/Testing; or the kind, image_folder"),
    (["year=2024/0000.parquet", "year=2025/0000.parquet"], "parquet"),
    (["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"], "parquet"),
    (["trainer.csv", "tests.csv", "develop.csv"], "csv"),
    (["train.jsonl", "test.txt"], "jsonl"),
]


@pytest.mark.parametrize(("files", "said"), SPLITS, ids=[files[0] for files, _ in SPLITS])
def test_files_of_several_splits_are_no_relation_unless_that_is_said(
    tmp_path: Path, files: list[str], said: str
) -> None:
    for file in files:
        (tmp_path / "x" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "x" / file).touch()
    if said.isidentifier():
        assert guessed.suggested(str(tmp_path / "x")) == said
    else:
        with pytest.raises(SourceError, match=said):
            source_at(str(tmp_path / "x"))


def test_a_pattern_that_names_several_splits_is_asked_about_too(tmp_path: Path) -> None:
    for file in ("train-0.parquet", "test-0.parquet"):
        (tmp_path / file).touch()
    with pytest.raises(SourceError, match=r"such as .*/test\*\.parquet; or the kind, parquet, which takes all"):
        source_at(str(tmp_path / "*.parquet"))
    assert type(source_at(str(tmp_path / "train*.parquet"))) is Parquet
    assert type(source_at(str(tmp_path / "*.parquet"), "parquet")) is Parquet
