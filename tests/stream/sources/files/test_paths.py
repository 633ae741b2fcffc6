"""Which place a path or URI means, and what is said where nothing can be read there."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as spiral
from spiral_stream import sources
from spiral_stream.errors import SourceError
from spiral_stream.integrity.regular_files import open_file
from spiral_stream.sources.files.paths import (
    absolute,
    is_remote,
    local_folder,
    local_path,
    not_found,
    outside_allowed,
)

NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=8)
PATHS = st.lists(NAMES.filter(lambda name: name not in (".", "..")), min_size=1, max_size=4).map(
    lambda names: "/" + "/".join(names)
)


@given(path=PATHS)
def test_a_path_its_uri_and_its_absolute_form_name_one_file(path: str) -> None:
    uri = Path(path).as_uri()

    assert not is_remote(uri)
    assert local_path(uri) == local_path(uri.replace("file://", "file://localhost")) == local_path(path) == path
    assert absolute(uri) == absolute(absolute(path)) == path


@given(path=PATHS)
def test_a_name_that_is_no_text_survives_its_uri(path: str) -> None:
    undecodable = os.fsdecode(path.encode() + b"\xff")

    assert local_path(Path(undecodable).as_uri()) == undecodable


def test_links_are_kept_and_home_and_dots_are_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "link"))

    assert absolute("link/./a.jpg") == absolute("~/a.jpg") == f"{tmp_path}/link/a.jpg"
    assert absolute("s3://bucket/a.jpg") == "s3://bucket/a.jpg"
    with pytest.raises(SourceError, match=r"with \. or \.\. as a part"):
        absolute("s3://bucket/../a")


@pytest.mark.parametrize("call", [absolute, local_folder])
@pytest.mark.parametrize("uri", ["file://other/a.jpg", "file://[/a"])
def test_a_uri_of_another_host_is_refused(uri: str, call: object) -> None:
    with pytest.raises(SourceError, match=r"Give (file:///path, or a path|the path of a folder)"):
        call(uri)


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        ("hdfs://h/a", "lies in a store that is not read here.*Copy it, or register local paths"),
        ("tar://a.tar/b", "member of a tar.*Give struct<uri, offset, length>"),
        ("ftp://h/a", "begins with ftp://.*Give a local path, or a file:/// URI"),
    ],
)
def test_what_nothing_here_reads_is_named_with_the_way_out(uri: str, found: str) -> None:
    assert is_remote(uri)
    assert re.search(rf"^Parquet: {re.escape(uri)} .*{found}", str(not_found(uri, "Parquet")))


@pytest.mark.parametrize(("base", "asked", "allowed"), [(None, None, True), ("b", None, False), ("b", True, True)])
def test_references_may_leave_a_base_only_where_none_was_given_or_it_is_asked(
    base: str | None, asked: bool | None, allowed: bool
) -> None:
    assert outside_allowed(base, asked) is allowed
    assert outside_allowed(base, stated=False) is False
    with pytest.raises(SourceError, match=r"allow_outside='yes'\. Give True or False"):
        outside_allowed(base, "yes")  # type: ignore[arg-type]


def test_only_regular_files_are_opened_and_none_stays_open(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12")
    os.mkfifo(tmp_path / "fifo")
    handle, facts = open_file(str(tmp_path / "a"))
    os.close(handle)
    before = len(list(Path("/dev/fd").iterdir()))

    assert facts.st_size == 2
    for path, kind in ((tmp_path, "a folder"), (tmp_path / "fifo", "a FIFO"), ("/dev/null", "a device")):
        with pytest.raises(OSError, match=f"it is {kind}, not a file"):
            open_file(str(path))
    assert len(list(Path("/dev/fd").iterdir())) == before


def test_a_missing_path_is_told_with_what_lies_near(tmp_path: Path) -> None:
    (tmp_path / "images.lance").mkdir()

    near = str(not_found(str(tmp_path / "image.lance" / "data"), "Lance"))
    far = str(not_found(str(tmp_path / "xyz"), "Lance"))
    assert near.endswith("near it: images.lance. Correct the path")
    assert far.endswith(f"{tmp_path} has images.lance. Correct the path")


@pytest.mark.parametrize(
    "kind", [sources.TextFiles, sources.ImageFolder, sources.Lance, sources.HuggingFace, sources.Mds]
)
def test_a_file_where_a_folder_is_read_is_told_so(kind: type[Any], tmp_path: Path) -> None:
    file, link = tmp_path / "one.txt", tmp_path / "gone.txt"
    file.write_text("a")
    link.symlink_to("nowhere.txt")
    catalog = spiral.connect(tmp_path / "catalog")

    with pytest.raises(SourceError, match=r"one\.txt is a file, not a folder\. Give the folder"):
        catalog.register("t", kind(str(file)), identity=spiral.RowIdentity())
    with pytest.raises(SourceError, match=r"a link to nowhere\.txt, which is not there\. Correct the link"):
        catalog.register("t", kind(str(link)), identity=spiral.RowIdentity())


def test_a_name_longer_than_a_file_has_is_told_like_one_that_is_missing(tmp_path: Path) -> None:
    for path in (tmp_path / ("ä" * 200) / "rows.csv", tmp_path / "/".join("d" * 99 for _ in range(60))):
        with pytest.raises(SourceError, match=r"Csv: there is none at .*Correct the path"):
            sources.Csv(path).import_units()


def test_a_relative_path_in_a_removed_folder_says_what_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    with pytest.raises(SourceError, match=r"rows\.csv: the working folder .* was removed\. Give an absolute path"):
        sources.Csv("rows.csv")
