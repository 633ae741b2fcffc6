"""A reference reaches regular files only, below the base where it is confined, as they were when registered."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spiral_stream.errors import DataError, SourceError
from spiral_stream.sources.pins import Collected, Pins, pin_of
from spiral_stream.sources.references.policy import Reach, reach_of

STEPS = ("", ".", "..", "sub", "in", "out", "up", "base", "elsewhere", "based")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three folders, ``base`` among them, with links from each into the others."""
    top = tmp_path_factory.mktemp("reach")
    for folder in ("base", "base/sub", "elsewhere", "based"):
        (top / folder).mkdir()
        (top / folder / "a").write_bytes(folder.encode())
    for name, target in (("in", "sub"), ("out", "../elsewhere"), ("up", ".."), ("link", "../elsewhere/a")):
        (top / "base" / name).symlink_to(target)
    (top / "elsewhere" / "in").symlink_to("../base/sub")
    return top


def calls(reach: Reach) -> list[Callable[[str], tuple[str, tuple[int, int] | None, int]]]:
    """Both ways to a file, each to its path, device and inode, and size; what is opened is closed again."""

    def looked(uri: str) -> tuple[str, tuple[int, int] | None, int]:
        path, facts = reach.stat(uri, 4)
        return path, facts.inode, facts.size

    def opened(uri: str) -> tuple[str, tuple[int, int] | None, int]:
        handle, path, facts = reach.open(uri, 4)
        os.close(handle)
        return path, (facts.st_dev, facts.st_ino), facts.st_size

    return [looked, opened]


@given(steps=st.lists(st.sampled_from(STEPS), max_size=5), name=st.sampled_from(["a", "link"]), rooted=st.booleans())
@example(steps=["..", "based"], name="a", rooted=False)  # begins as the base does
def test_a_confined_reference_reaches_exactly_the_files_whose_real_place_is_below_the_base(
    steps: list[str], name: str, rooted: bool, tree: Path
) -> None:
    base = tree / "base"
    uri = "/".join([*([str(base)] if rooted else []), *(step for step in steps if step), name])
    file = base / uri
    inside = file.is_file() and Path(os.path.realpath(file)).is_relative_to(base)
    descriptors = len(list(Path("/dev/fd").iterdir()))

    for free in calls(Reach(str(base))):
        if file.is_file():
            assert Path(free(uri)[0]).samefile(file)
    for confined in calls(Reach(str(base), confined=True)):
        if inside:
            assert confined(uri)[1] == (file.stat().st_dev, file.stat().st_ino)
        else:
            with pytest.raises(SourceError) as caught:
                confined(uri)
            assert caught.value.row == 4
    assert len(list(Path("/dev/fd").iterdir())) == descriptors


def test_a_base_that_is_a_link_confines_to_what_it_links_to(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tree / "base")
    for call in calls(Reach(str(tmp_path / "link"), confined=True)):
        assert call("in/a")[2] == len("base/sub")
        with pytest.raises(SourceError, match=r"which is .*elsewhere/a\) lies outside .*/link, .*allow_outside=True"):
            call("out/a")


@pytest.mark.parametrize(
    ("uri", "kind", "way_out"),
    [
        ("a\0b", DataError, "holds a NUL character.*Correct it, or filter the row out"),
        ("hdfs://b/a", SourceError, "a store that is not read.*Copy it, or register local paths"),
        ("file://host/a", SourceError, "names a file of host host.*Give file:///path"),
        ("gone", SourceError, "gone: No such file.*Restore the file, or filter its rows out"),
        ("sub", SourceError, "sub: it is a folder, not a file. Restore the file"),
    ],
)
def test_what_cannot_be_read_carries_its_row_and_the_way_out(
    uri: str, kind: type[DataError | SourceError], way_out: str, tree: Path
) -> None:
    for call in calls(reach_of(str(tree / "base"))):
        with pytest.raises(kind, match=way_out) as caught:
            call(uri)
        assert caught.value.row == 4


def test_a_name_below_a_store_may_begin_as_the_scheme_of_files_does() -> None:
    reach = Reach("memory://bucket/base")

    assert reach.object_of("file:1.jpg", 4) == "memory://bucket/base/file:1.jpg"
    assert reach.object_of("file:///data/1.jpg", 4) is None


def test_a_file_is_read_only_as_it_was_pinned(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    with Collected() as collected:
        collected.add(["a"], [pin_of(Reach(str(tmp_path)).stat("a", 0)[1])])
        collected.write(tmp_path / "pins")
    reach = reach_of(Reach(str(tmp_path), pins=Pins(tmp_path / "pins", "r")))
    for call in calls(reach):
        assert call("a")[0] == str(tmp_path / "a")
    (tmp_path / "a").write_bytes(b"22")
    for call in calls(reach):
        with pytest.raises(SourceError, match=r'a changed since registration.*catalog\.refresh\("r"\)'):
            call("a")
