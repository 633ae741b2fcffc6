from typing import Any

import pyarrow as pa

from spiral_assets.relations.files import by_file

FACTS = ("frames", "duration_ms", "height", "width", "milli_fps", "key_distance", "rotation")


def row(
    number: int, uri: str | None, offset: int | None, length: int | None, error: str | None = None
) -> dict[str, Any]:
    facts = dict.fromkeys(FACTS) if error else dict(zip(FACTS, (48, 2_000, 240, 320, 29_970, 12, 0), strict=True))
    return {"row": number, "uri": uri, "offset": offset, "length": length, **facts, "error": error}


SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("uri", pa.string()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
        *((name, pa.int32()) for name in FACTS),
        ("error", pa.string()),
    ]
)


def files(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    return by_file(pa.Table.from_pylist(list(rows), SCHEMA)).to_pylist()


def test_segments_of_one_file_are_one_row_and_ranges_of_a_tar_are_files_of_their_own() -> None:
    found = files(
        row(0, "b.mp4", None, None), row(1, "a.tar", 512, 90), row(2, "b.mp4", None, None), row(3, "a.tar", 1_024, 80)
    )

    assert [(each["file"], each["segments"]) for each in found] == [
        ("b.mp4", 2),
        ("a.tar[512+90]", 1),
        ("a.tar[1024+80]", 1),
    ]
    assert {name: found[0][name] for name in ("frames", "fps", "width", "key_distance")} == {
        "frames": 48,
        "fps": 29.97,
        "width": 320,
        "key_distance": 12,
    }


def test_inline_bytes_are_a_file_a_row() -> None:
    assert [each["file"] for each in files(row(4, None, None, None), row(5, None, None, None))] == ["row 4", "row 5"]


def test_a_refused_file_has_its_reason_and_no_facts() -> None:
    (found,) = files(row(0, "b.mp4", 0, 9, "no video stream"), row(1, "b.mp4", 0, 9, "no video stream"))

    assert (found["file"], found["segments"], found["error"]) == ("b.mp4[0+9]", 2, "no video stream")
    assert found["frames"] is None
    assert found["fps"] is None


def test_no_rows_are_no_files() -> None:
    assert files() == []
