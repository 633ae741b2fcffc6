import gzip
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spiral_stream as sp
from spiral_stream.errors import SourceError
from spiral_stream.sources.files.listing import absolute_paths, common_folder, listed, listed_units
from tests.fixtures import stores
from tests.stream.sources.test_remote import put_all

SUFFIXES = (".jsonl", ".jsonl.gz")


def made(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def found(paths: object) -> tuple[str, list[str]]:
    absolute = absolute_paths(paths, "Jsonl")
    root, names = listed(absolute, "Jsonl", SUFFIXES)
    assert common_folder(absolute) == root
    return root, names


def test_a_folder_is_searched_below_for_files_of_the_kind(tmp_path: Path) -> None:
    made(tmp_path, "b/2.jsonl", "a/1.jsonl.gz", "0.jsonl", "b/readme.rst", "jsonl")
    (tmp_path / "dir.jsonl").mkdir()
    assert found(tmp_path) == (str(tmp_path), ["0.jsonl", "a/1.jsonl.gz", "b/2.jsonl"])


def test_one_file_is_called_by_its_own_name_whatever_it_ends_in(tmp_path: Path) -> None:
    made(tmp_path, "rows.txt")
    assert found(tmp_path / "rows.txt") == (str(tmp_path), ["rows.txt"])


def test_a_glob_and_a_brace_pattern_name_the_same_files(tmp_path: Path) -> None:
    made(tmp_path, *(f"{split}/part-{k:03d}.jsonl" for split in ("a", "b") for k in range(3)))
    expected = [f"{split}/part-{k:03d}.jsonl" for split in ("a", "b") for k in range(3)]
    for pattern in ("*/part-*.jsonl", "{a,b}/part-{000..002}.jsonl", "{b,a}/part-*.jsonl", "{a,b}", "**/*.jsonl"):
        assert found(tmp_path / pattern) == (str(tmp_path), expected)


def test_the_order_of_a_list_does_not_matter(tmp_path: Path) -> None:
    made(tmp_path, "x/a/1.jsonl", "x/b/2.jsonl", "x/b/3.jsonl")
    files = [str(tmp_path / "x" / name) for name in ("b/3.jsonl", "a/1.jsonl", "b/2.jsonl")]
    assert found(files) == found(files[::-1]) == (str(tmp_path / "x"), ["a/1.jsonl", "b/2.jsonl", "b/3.jsonl"])
    assert found([tmp_path / "x" / "a", tmp_path / "x" / "b" / "*.jsonl"]) == found(files)


def test_a_name_that_looks_like_a_pattern_is_the_file_of_that_name(tmp_path: Path) -> None:
    made(tmp_path, "part-{0..1}.jsonl", "part-0.jsonl", "[ab].jsonl")
    assert found(tmp_path / "part-{0..1}.jsonl")[1] == ["part-{0..1}.jsonl"]
    assert found(tmp_path / "[ab].jsonl")[1] == ["[ab].jsonl"]


def test_a_missing_member_of_a_brace_pattern_is_named(tmp_path: Path) -> None:
    made(tmp_path, "part-000.jsonl", "part-001.jsonl", "part-003.jsonl")
    with pytest.raises(
        SourceError, match=r"\{000\.\.003\}\.jsonl names .*part-002\.jsonl as number 3\. .*Correct the path"
    ):
        found(tmp_path / "part-{000..003}.jsonl")


def test_a_range_without_end_is_refused_at_the_first_file_that_is_not_there(tmp_path: Path) -> None:
    made(tmp_path, "part-0.jsonl")
    with pytest.raises(SourceError, match=r"part-1\.jsonl as number 2"):
        found(tmp_path / "part-{0..999999999999}.jsonl")


@pytest.mark.parametrize("pattern", ["trian-*.jsonl", "trian.jsonl", "{trian.jsonl,x}"])
def test_what_matches_nothing_says_what_is_near(tmp_path: Path, pattern: str) -> None:
    made(tmp_path, "train.jsonl", "train-0.jsonl")
    with pytest.raises(SourceError, match=r"Jsonl: there is none at .*near it: .*train"):
        found(tmp_path / pattern)


def test_a_folder_without_such_files_says_what_was_looked_for(tmp_path: Path) -> None:
    made(tmp_path, "0.parquet")
    with pytest.raises(SourceError, match=r"no \*\.jsonl or \*\.jsonl\.gz in or below .*Correct the path"):
        found(tmp_path)


def test_a_pattern_that_matches_folders_alone_says_how_to_name_their_files(tmp_path: Path) -> None:
    made(tmp_path, "year=1/0.jsonl")
    with pytest.raises(SourceError, match=r"matches folders only\. Write .*year=\*/\*\*/\*\.jsonl"):
        found(tmp_path / "year=*")


@pytest.mark.parametrize(("first", "second"), [("a.jsonl", "a.jsonl"), (".", "a.jsonl"), ("*.jsonl", "{a,b}.jsonl")])
def test_a_file_that_is_named_twice_is_refused(tmp_path: Path, first: str, second: str) -> None:
    made(tmp_path, "a.jsonl", "b.jsonl")
    with pytest.raises(SourceError, match=r"a\.jsonl is named twice.*Name each file once"):
        found([tmp_path / first, tmp_path / second])


@pytest.mark.parametrize("paths", [[], None, 3, {"a.jsonl"}, [3], [""], "", b"a.jsonl", "a\0b"])
def test_what_is_no_path_is_refused(paths: object) -> None:
    with pytest.raises(SourceError, match=r"Jsonl: .*(Give a|Correct)"):
        absolute_paths(paths, "Jsonl")


def test_a_remote_path_is_refused_as_such() -> None:
    with pytest.raises(SourceError, match="lies in a store that is not read here"):
        found(["hdfs://bucket/a.jsonl"])


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.jsonl")).write_text("")
    with pytest.raises(SourceError, match=r"xff\.jsonl.*is not UTF-8\. Rename it"):
        found(tmp_path)


def test_a_link_to_a_folder_is_not_followed(tmp_path: Path) -> None:
    made(tmp_path, "a/1.jsonl")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    (tmp_path / "a" / "link.jsonl").symlink_to(tmp_path / "a" / "1.jsonl")
    assert found(tmp_path)[1] == ["a/1.jsonl", "a/link.jsonl"]


def test_the_key_of_a_unit_changes_with_its_file_and_not_with_the_place(tmp_path: Path) -> None:
    made(tmp_path / "x", "1.jsonl", "2.jsonl")
    before = listed_units(str(tmp_path / "x"), "Jsonl", SUFFIXES)
    (tmp_path / "x").rename(tmp_path / "y")
    moved = listed_units(str(tmp_path / "y"), "Jsonl", SUFFIXES)
    os.utime(tmp_path / "y" / "2.jsonl", ns=(1, 1))
    after = listed_units(str(tmp_path / "y"), "Jsonl", SUFFIXES)

    assert [unit.content_key for unit in before] == [unit.content_key for unit in moved]
    assert [a.content_key == b.content_key for a, b in zip(moved, after, strict=True)] == [True, False]
    assert [(unit.name, unit.size_bytes) for unit in before] == [("1.jsonl", 7), ("2.jsonl", 7)]


def test_a_unit_that_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    with pytest.raises(SourceError, match="a FIFO, not a file"):
        listed_units(str(tmp_path), "Jsonl", SUFFIXES)


PAIRS = [
    ("shard.csv", "shard.csv.gz"),
    ("a/shard.jsonl.zst", "a/shard.jsonl.gz"),
    ("shard.tsv", "shard.tsv.zst"),
    ("shard.json", "shard.json.gz"),
    ("shard.tar", "shard.tar.gz"),
    ("shard.tgz", "shard.tar.bz2"),
    ("shard.bin", "shard.bin.xz"),
]


@pytest.mark.parametrize(("one", "other"), PAIRS)
@pytest.mark.parametrize("how", ["folder", "pattern", "list"])
def test_a_file_in_two_compressions_is_no_two_files(tmp_path: Path, one: str, other: str, how: str) -> None:
    for name in (one, other, "b.csv", "b.jsonl.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    path = {
        "folder": str(tmp_path),
        "pattern": str(tmp_path / "**" / "shard.*"),
        "list": (str(tmp_path / one), str(tmp_path / other)),
    }[how]
    suffixes = [one[one.index(".") :], other[other.index(".") :]]
    with pytest.raises(
        SourceError, match=r"are one file in two compressions, .*Remove one of them, or .* pattern, such as \*\."
    ):
        listed_units(absolute_paths(path, "Source"), "Source", suffixes)


@pytest.mark.parametrize("source", [sp.sources.Csv, sp.sources.Jsonl, sp.sources.WebDataset])
def test_what_gunzip_keeps_is_not_read_twice(tmp_path: Path, source: type, bucket: str) -> None:
    end = {"Csv": "csv", "Jsonl": "jsonl", "WebDataset": "tar"}[source.__name__]
    with gzip.open(tmp_path / f"a.{end}.gz", "wt") as file:
        file.write("id\n1\n")
    (tmp_path / f"a.{end}").write_text("id\n1\n")
    with pytest.raises(SourceError, match=rf"a\.{end} and .*a\.{end}\.gz are one file"):
        source(tmp_path).import_units()
    put_all(tmp_path, f"{bucket}/twice")
    with pytest.raises(SourceError, match=rf"twice/a\.{end} and .*a\.{end}\.gz are one file"):
        source(f"{bucket}/twice").import_units()


@pytest.mark.parametrize("target", [".", "..", "../b"])
def test_a_link_into_a_circle_is_no_further_rows(tmp_path: Path, target: str) -> None:
    for name in ("a/1.txt", "b/2.txt"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("x\n1\n")
    (tmp_path / "b" / "again").symlink_to("../a")
    assert len(sp.sources.TextFiles(tmp_path).import_units()) == 3
    (tmp_path / "a" / "again").symlink_to(target)

    for source in (sp.sources.TextFiles(tmp_path), sp.sources.Csv(tmp_path / "**" / "*.txt")):
        with pytest.raises(SourceError, match=r"again leads to a folder that it lies in.*Remove the link"):
            source.import_units()


def test_a_pattern_passes_over_no_file_that_it_names(tmp_path: Path) -> None:
    made(tmp_path, "1.csv", "2.csv/in.csv")
    pattern = sp.sources.Csv(tmp_path / "*.csv")
    assert [unit.name for unit in pattern.import_units()] == ["1.csv"]

    (tmp_path / "3.csv").symlink_to("gone.csv")
    with pytest.raises(SourceError, match=r"3\.csv: No such file or directory\. Restore it"):
        pattern.import_units()
    (tmp_path / "3.csv").unlink()
    os.mkfifo(tmp_path / "3.csv")
    with pytest.raises(SourceError, match=r"3\.csv: it is a FIFO, not a file\. Restore it"):
        pattern.import_units()


def test_a_text_whose_name_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.txt")).write_text("")
    with pytest.raises(SourceError, match=r"TextFiles: the name .*xff\.txt.*is not UTF-8\. Rename it"):
        sp.sources.TextFiles(tmp_path).import_units()


def named(source: sp.sources.Csv | sp.sources.TextFiles) -> list[str]:
    return [unit.name.rpartition("/")[2] for unit in source.import_units()]


@pytest.mark.parametrize("letters", ["a[1]", "a*b", "a?b", "{x,y}", "a{0..1}"])
def test_an_object_that_looks_like_a_pattern_is_taken_as_it_is_written(
    tmp_path: Path, letters: str, bucket: str
) -> None:
    made(tmp_path, f"{letters}.csv", f"{letters}/in.csv", "a1.csv", "x.csv")
    put_all(tmp_path, f"{bucket}/marks")

    for place in (tmp_path, f"{bucket}/marks"):
        assert named(sp.sources.Csv(f"{place}/{letters}.csv")) == [f"{letters}.csv"]
        assert named(sp.sources.Csv(f"{place}/{letters}")) == ["in.csv"]


PATTERNS = (
    "**",
    "h/**",
    "*",
    "*/*",
    "[!]x.csv",
    "[z-a].csv",
    "[^a].csv",
    "[^].csv",
    "[[].csv",
    "[a--].csv",
    ".h/*",
    "h?x/*",
)


@pytest.mark.parametrize("pattern", [*PATTERNS, "**/.*", ".*/*.csv", "**/*.csv", "[!]]x.csv", "[a/b].csv", "**b.csv"])
def test_a_pattern_means_the_same_on_a_store_and_in_a_folder(
    tmp_path: Path, pattern: str, bucket: str, recwarn: pytest.WarningsRecorder
) -> None:
    names = ("a.csv", "]x.csv", "^.csv", "-.csv", ".y.csv", "[.csv")
    made(tmp_path, *names, "h/a.csv", "h/.y.csv", "h/i/b.csv", ".h/a.csv", ".h/.y.csv", "h/.j/a.csv", "h x/a.csv")
    put_all(tmp_path, f"{bucket}/same")

    def found_at(place: object, kind: type) -> list[str] | str:
        source = kind(f"{place}/{pattern}") if kind is sp.sources.Csv else kind(f"{place}", pattern=pattern)
        try:
            return sorted(unit.path.removeprefix(f"{place}/") for unit in source.import_units())
        except SourceError as error:
            return "Correct the" if "Correct the" in str(error) else str(error)

    for kind in (sp.sources.Csv, sp.sources.TextFiles):
        assert found_at(f"{bucket}/same", kind) == found_at(tmp_path, kind)
    assert not recwarn.list


def test_an_empty_object_of_the_name_of_a_folder_is_no_file(tmp_path: Path, bucket: str) -> None:
    for folder, name in (("1", "out.csv"), ("2", "out.csv/part.csv"), ("2", "empty.csv")):
        made(tmp_path / folder, name)
    for path in (tmp_path / "1" / "out.csv", tmp_path / "2" / "empty.csv"):
        path.write_text("")
    put_all(tmp_path / "1", f"{bucket}/marked")
    put_all(tmp_path / "2", f"{bucket}/marked")

    assert named(sp.sources.Csv(f"{bucket}/marked/out.csv")) == ["part.csv"]
    assert named(sp.sources.Csv(f"{bucket}/marked")) == ["empty.csv", "part.csv"]
    assert named(sp.sources.Csv(f"{bucket}/marked/empty.csv")) == ["empty.csv"]


def test_a_bucket_with_a_dot_in_its_name_and_a_scheme_in_capitals_are_read(tmp_path: Path, s3_endpoint: str) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "a.parquet")
    bucket = f"s3://{stores.new_bucket(s3_endpoint, 'v1.2.')}"
    sp.use_storage("dotted", prefix=bucket, **stores.options(s3_endpoint))
    put_all(tmp_path, f"{bucket}/x")

    for path in (bucket, f"{bucket}/", bucket.replace("s3", "S3"), f"FILE://{tmp_path}"):
        with sp.Parquet(path).open() as reader:
            assert [unit.rows for unit in reader.units()] == [2]


@pytest.mark.parametrize("source", [sp.Parquet, sp.sources.Vortex, sp.sources.Tokens, sp.sources.WebDataset])
def test_files_of_two_buckets_are_refused(source: type, tmp_path: Path, bucket: str) -> None:
    paths = [f"{bucket}/a.parquet", "s3://another/a.parquet"]
    catalog = sp.connect(tmp_path)
    with pytest.raises(SourceError, match=r"lie in different buckets.*Register them separately"):
        catalog.register("rows", source(paths), identity=sp.RowIdentity())
