import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.errors import SourceError
from spiral_stream.sources.tar.headers import Member, members
from spiral_stream.sources.tar.stream import open_tar
from tests.fixtures.examples import few

FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)


def written(path: Path, files: list[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT, mode: str = "w") -> Path:
    with tarfile.open(path, mode, format=form) as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1.5  # a fraction makes pax records
            tar.addfile(info, io.BytesIO(data))
    return path


def read(path: Path) -> list[Member]:
    with open_tar(str(path)) as tar:
        return list(members(tar))


@pytest.mark.parametrize("form", FORMATS)
@few(10, 25)
@given(
    files=st.lists(
        st.tuples(
            st.text("abcé/.-_", min_size=1, max_size=300).filter(lambda n: n.strip("/.")), st.binary(max_size=2000)
        ),
        max_size=12,
    )
)
def test_members_lie_where_tarfile_finds_them(tmp_path_factory: pytest.TempPathFactory, form: int, files: list) -> None:
    files = [(name.strip("/"), data) for name, data in files]
    if form == tarfile.USTAR_FORMAT:
        files = [(name[:90].strip("/").encode("ascii", "replace").decode() or "x", data) for name, data in files]
    path = written(tmp_path_factory.mktemp("t") / "a.tar", files, form)

    with tarfile.open(path) as tar:
        expected = [(each.name, each.offset_data, each.size) for each in tar]
    assert [(each.name, each.start, each.size) for each in read(path)] == expected
    data = path.read_bytes()
    assert [data[each.start : each.start + each.size] for each in read(path)] == [each for _, each in files]


@pytest.mark.parametrize(
    ("ending", "mode"), [("tar.gz", "w:gz"), ("tgz", "w:gz"), ("tar.bz2", "w:bz2"), ("tar.xz", "w:xz")]
)
def test_compressed_tars_are_read_in_one_pass(tmp_path: Path, ending: str, mode: str) -> None:
    files = [(f"{k}.txt", bytes([k]) * k * 700) for k in range(9)]
    path = written(tmp_path / f"a.{ending}", files, mode=mode)
    with open_tar(str(path)) as tar:
        assert [(each.name, tar.at(each.start, each.size)) for each in members(tar)] == files
    assert [each.name for each in read(path)] == [name for name, _ in files]  # the payload passed over


def test_zstd_tars_are_read(tmp_path: Path) -> None:
    import pyarrow as pa

    plain = written(tmp_path / "a.tar", [("1.txt", b"one")]).read_bytes()
    with pa.output_stream(tmp_path / "a.tar.zst", compression="zstd") as out:
        out.write(plain)
    with open_tar(str(tmp_path / "a.tar.zst")) as tar:
        assert [tar.at(each.start, each.size) for each in members(tar)] == [b"one"]


def test_folders_are_passed_over_and_links_carry_a_fault(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, kind in (
            ("d", tarfile.DIRTYPE),
            ("h.jpg", tarfile.LNKTYPE),
            ("s.jpg", tarfile.SYMTYPE),
            ("f", tarfile.FIFOTYPE),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "a.jpg"
            tar.addfile(info)

    found = {each.name: each.fault or "" for each in read(tmp_path / "a.tar")}
    assert list(found) == ["h.jpg", "s.jpg", "f"]
    assert "a hard link to 'a.jpg'" in found["h.jpg"]
    assert "--hard-dereference" in found["h.jpg"]
    assert "a symbolic link" in found["s.jpg"]
    assert "a FIFO" in found["f"]


def test_sizes_beyond_octal_digits_are_read(tmp_path: Path) -> None:
    info = tarfile.TarInfo("big.bin")
    info.size = 9 << 30
    with (tmp_path / "a.tar").open("wb") as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        file.truncate(512 + (9 << 30) + 1024)  # a file with a hole
    [found] = read(tmp_path / "a.tar")
    assert (found.start, found.size) == (512, 9 << 30)


@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
@pytest.mark.parametrize("left", [0, 100, 512, 700, 2048, 2500, 3072])
def test_a_tar_cut_short_is_named_wherever_it_is_cut(tmp_path: Path, left: int, ending: str) -> None:
    data = written(
        tmp_path / "a.tar", [("1.jpg", b"x" * 1000), ("2.jpg", b"y" * 1000)], tarfile.USTAR_FORMAT
    ).read_bytes()
    path = tmp_path / f"cut.{ending}"
    if ending == "tar":
        path.write_bytes(data[:left])
    else:
        import gzip

        path.write_bytes(gzip.compress(data[:left]))
    with pytest.raises(SourceError, match=r"cut\.tar.*(cut short|is empty|is no tar)") as error:
        read(path)
    assert "Fetch" in str(error.value)


def test_a_member_that_reaches_past_the_end_is_named_with_its_place(tmp_path: Path) -> None:
    data = written(
        tmp_path / "a.tar", [("1.jpg", b"x" * 10), ("2.jpg", b"y" * 5000)], tarfile.USTAR_FORMAT
    ).read_bytes()
    (tmp_path / "a.tar").write_bytes(data[:3000])
    with pytest.raises(
        SourceError,
        match=r"3,536 of the 5,000 bytes of its last member are missing \('2.jpg', which begins at byte 1,024",
    ):
        read(tmp_path / "a.tar")


def test_a_compressed_tar_cut_short_or_damaged_is_named(tmp_path: Path) -> None:
    data = written(
        tmp_path / "a.tar.gz", [(f"{k}.bin", bytes(range(256)) * 40) for k in range(20)], mode="w:gz"
    ).read_bytes()
    (tmp_path / "a.tar.gz").write_bytes(data[: len(data) // 2])
    with pytest.raises(SourceError, match=r"a\.tar\.gz.*cut short"):
        read(tmp_path / "a.tar.gz")
    (tmp_path / "a.tar.gz").write_bytes(data[:300] + bytes(100) + data[400:])
    with pytest.raises(SourceError, match=r"a\.tar\.gz.*damaged"):
        read(tmp_path / "a.tar.gz")


def test_a_flipped_bit_in_a_header_is_found(tmp_path: Path) -> None:
    data = bytearray(written(tmp_path / "a.tar", [("1.jpg", b"x"), ("2.jpg", b"y")], tarfile.USTAR_FORMAT).read_bytes())
    data[1024] ^= 1
    (tmp_path / "a.tar").write_bytes(data)
    with pytest.raises(SourceError, match="no header at byte 1,024"):
        read(tmp_path / "a.tar")


def test_what_is_no_tar_is_refused_and_a_compressed_one_by_another_name_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"no tar at all" * 100)
    with pytest.raises(SourceError, match="is no tar"):
        read(tmp_path / "a.tar")
    written(tmp_path / "b.tar", [("1.txt", b"1" * 10_000)], mode="w:gz")
    with pytest.raises(SourceError, match=r"compressed with gzip.*Rename it to \.\.\.\.tar\.gz"):
        read(tmp_path / "b.tar")


def test_tars_in_one_file_are_refused_since_readers_see_the_first_only(tmp_path: Path) -> None:
    one = written(tmp_path / "a.tar", [("1.jpg", b"x")], tarfile.USTAR_FORMAT).read_bytes()
    for first in (one[:2048], one):
        (tmp_path / "a.tar").write_bytes(first + one)
        with pytest.raises(SourceError, match="goes on after the mark of its end"):
            read(tmp_path / "a.tar")


def test_sparse_members_are_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("s.bin")
    info.type = tarfile.GNUTYPE_SPARSE
    (tmp_path / "a.tar").write_bytes(info.tobuf() + bytes(1024))
    with pytest.raises(SourceError, match=r"'s\.bin' at byte 0 is sparse.*without --sparse"):
        read(tmp_path / "a.tar")
    info = tarfile.TarInfo("p.bin")
    info.pax_headers = {"GNU.sparse.major": "1"}
    (tmp_path / "b.tar").write_bytes(info.tobuf(tarfile.PAX_FORMAT) + bytes(1024))
    with pytest.raises(SourceError, match="is sparse"):
        read(tmp_path / "b.tar")


@pytest.mark.parametrize("records", [b"xx path=a\n", b"99 path=a\n", b"8 path=\n", b"7 path\n"])
def test_damaged_pax_records_are_refused(tmp_path: Path, records: bytes) -> None:
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, len(records)
    body = info.tobuf(tarfile.USTAR_FORMAT) + records.ljust(512, b"\0") + tarfile.TarInfo("x").tobuf() + bytes(1024)
    (tmp_path / "a.tar").write_bytes(body)
    if records == b"8 path=\n":  # an empty value takes the header's own away
        assert [each.name for each in read(tmp_path / "a.tar")] == [""]
        return
    with pytest.raises(SourceError, match="pax records of the header at byte 0 are damaged"):
        read(tmp_path / "a.tar")


@few(20, 60)
@given(at=st.integers(0, 6000), change=st.integers(1, 255))
def test_whatever_byte_is_changed_a_tar_is_read_or_refused_by_name(
    tmp_path_factory: pytest.TempPathFactory, at: int, change: int
) -> None:
    folder = tmp_path_factory.mktemp("t")
    data = bytearray(written(folder / "a.tar", [(f"{'n' * 120}{k}.jpg", b"x" * 600) for k in range(3)]).read_bytes())
    data[at % len(data)] ^= change
    (folder / "a.tar").write_bytes(data)
    try:
        read(folder / "a.tar")
    except SourceError as error:
        assert "a.tar" in str(error)  # noqa: PT017
