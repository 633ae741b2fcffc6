"""Small batches share a read of the source, whatever kind of field reads it, and no batch, state or order changes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.runtime import read_ahead
from spiral_stream.runtime.batch.look_up import BATCHES
from spiral_stream.runtime.columns import rows_ahead
from tests.fixtures import scenes, sounds, texts
from tests.fixtures.videos import Made, write_video

pytestmark = pytest.mark.usefixtures("no_threads_left")

ROWS = 200
SEMANTIC = {"image": "image/jpeg-ref", "photos": "image/jpeg-ref", "sound": "audio/ref", "clip": "video/h264-ref"}
PIXELS: dict[str, Any] = {"transforms": [sp.RandomResizedCrop(size=8)]}
FIELDS: dict[str, dict[str, Any]] = {
    "image": {"image": sp.Stack("image", decode="jpeg", **PIXELS)},
    "whole images": {"image": sp.Stack("image", decode="jpeg")},
    "file": {"file": sp.Stack("file", decode="jpeg", **PIXELS)},
    "photos": {"photos": sp.Stack("photos", decode="jpeg", **PIXELS), "mask": sp.PadMask("photos")},
    "sound": {"sound": sp.Stack("sound", decode="audio", sample_rate=8000, sequence_length=64)},
    "clip": {"clip": sp.Stack("clip", decode="h264", sequence_length=2, resize_shorter=24, crop=16)},
    "bytes": {"raw": sp.List("raw")},
    "long texts": {"text": sp.List("text")},
    "tokens": {"tokens": sp.Pad("tokens")},
}


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    folder = tmp_path_factory.mktemp("ahead")
    pictures = [scenes.encoded(scenes.smooth(20 + 2 * k, 24, seed=k), "JPEG") for k in range(5)]
    same = [scenes.encoded(scenes.smooth(20, 24, seed=k), "JPEG") for k in range(5)]
    for k, each in enumerate(pictures):
        (folder / f"{k}.jpg").write_bytes(each)
    film = write_video(folder / "film.mp4", Made(frames=40, width=48, height=32))
    recorded = [sounds.recording("wav", 0.1, 300.0 + 40 * k)[0] for k in range(4)]
    rows = range(ROWS)
    table = pa.table(
        {
            "n": rows,
            "image": [same[k % 5] for k in rows],
            "file": [str(folder / f"{k % 5}.jpg") for k in rows],
            "photos": [[pictures[(k + j) % 5] for j in range(k % 3)] for k in rows],
            "sound": [recorded[k % 4] for k in rows],
            "clip": [{"uri": str(film), "offset": 0, "length": film.stat().st_size} for _ in rows],
            "raw": pa.array([pictures[k % 5] for k in rows], pa.binary()),
            "text": [" ".join(f"w{(k + j) % 30}" for j in range(40 + k % 7)) for k in rows],
        }
    )
    made = sp.connect(str(folder / "catalog"))
    semantic = {**SEMANTIC, "file": "image/jpeg-ref", "raw": "image/jpeg-ref"}
    for k, some in enumerate((table, table.slice(0, 24), table.slice(24, 16), table.slice(0, 40))):
        made.register(("rows", "first", "second", "few")[k], sp.Arrow(some), identity="n", semantic=semantic)
    made.register_tokenizer(texts.TOKENIZER, texts.tokenizer())
    return made


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each call of a source was asked for."""
    found: list[int] = []
    fetch = OpenRelation.fetch

    def told(self: OpenRelation, ordinals: Any, columns: Any) -> pa.Table:
        found.append(len(ordinals))
        return fetch(self, ordinals, columns)

    monkeypatch.setattr(OpenRelation, "fetch", told)
    return found


def stream(
    catalog: sp.Catalog,
    kind: str,
    batch_size: int,
    rows: int | None = None,
    prefetch: int = 2,
    *,
    mixed: bool = False,
    few: bool = False,
) -> sp.PreparedStream:
    relation = catalog.table("few" if few else "rows")
    if mixed:
        relation = sp.mix([sp.Stream(name, catalog.table(name), repeat=1.0) for name in ("first", "second")])
    sampled = relation.sample(identity="n", order=sp.GlobalShuffle(seed=1))
    if kind == "tokens":
        sampled = sampled.map(sp.Tokenize("text", tokenizer=texts.TOKENIZER) >> "tokens")
    made: sp.PreparedStream = sampled.collate(
        batch_size=batch_size, fields={**FIELDS[kind], "n": sp.Stack("n")}
    ).to_numpy(prefetch=prefetch, read_batch_size=rows)
    return made


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    assert one.keys() == other.keys()
    return all(
        np.array_equal(one[name], other[name]) if isinstance(one[name], np.ndarray) else one[name] == other[name]
        for name in one
    )


@pytest.mark.crossed
@pytest.mark.parametrize("kind", [kind for kind in FIELDS if kind != "tokens"])
@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_small_batches_share_a_read(catalog: sp.Catalog, read: list[int], kind: str, batch_size: int) -> None:
    with stream(catalog, kind, batch_size) as made:
        len(made)  # opened, which looks at some texts
        read.clear()
        count = sum(1 for _ in made)
    assert count == ROWS // batch_size
    together = min(64, BATCHES * batch_size)
    assert max(read) <= 64
    assert sum(read) <= ROWS + 8  # some look at a first row, to know what they read
    assert len(read) <= 2 * ROWS // together + 10  # the first reads are for fewer rows; there was one for each batch


@settings(max_examples=20, deadline=None)
@given(
    kind=st.sampled_from(sorted(FIELDS)),
    size=st.integers(1, 20),
    rows=st.none() | st.integers(1, 70),
    prefetch=st.sampled_from([1, 2, 40]),
    stop=st.integers(0, 30),
    room=st.sampled_from([1 << 22, 5_000, 1]),
    mixed=st.booleans(),
)
def test_rows_that_are_read_ahead_change_no_batch_and_no_state(
    catalog: sp.Catalog, kind: str, size: int, rows: int | None, prefetch: int, stop: int, room: int, *, mixed: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_ahead, "ROWS_BYTES", room)
        with stream(catalog, kind, size, rows, prefetch, mixed=mixed, few=True) as made:
            wanted = [made.batch(number) for number in range(len(made))]  # each by itself
            found, states = list[Any](), list[Any]()
            for batch in made:
                found.append(
                    {name: np.copy(each) if isinstance(each, np.ndarray) else each for name, each in batch.items()}
                )
                states.append(made.state_dict())
                if len(found) == stop:
                    break
            found += [
                {n: np.copy(e) if isinstance(e, np.ndarray) else e for n, e in batch.items()}
                for batch in made
                if 0 < stop < len(wanted)
            ]
        assert len(found) == len(wanted)
        assert all(same(one, other) for one, other in zip(found, wanted, strict=True))
        if 0 < stop < len(wanted):
            with stream(catalog, kind, size, None, 2, mixed=mixed, few=True) as again:
                again.load_state_dict(states[stop - 1])
                assert same(next(iter(again)), wanted[stop])


def test_an_error_of_a_row_that_is_read_ahead_comes_at_its_batch(
    catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that refuses one row refuses no other batch."""
    fetch = OpenRelation.fetch

    def refusing(self: OpenRelation, ordinals: Any, columns: Any) -> pa.Table:
        if "image" in columns and 77 in np.asarray(ordinals).tolist():
            msg = "row 77 cannot be read. Mend it"
            raise sp.errors.SourceError(msg)
        return fetch(self, ordinals, columns)

    with stream(catalog, "image", 1) as made:
        numbers = [int(made.batch(k)["n"][0]) for k in range(ROWS)]
        monkeypatch.setattr(OpenRelation, "fetch", refusing)
        seen = list[int]()
        with pytest.raises(sp.errors.SourceError, match="Mend it"):
            seen.extend(int(batch["n"][0]) for batch in made)
    assert seen == numbers[: numbers.index(77)]


@pytest.mark.parametrize("size", [1_000, 1 << 20])
def test_what_is_read_ahead_is_bounded_by_bytes(tmp_path: Path, read: list[int], size: int) -> None:
    data = [scenes.encoded(scenes.smooth(20, 24, seed=k), "JPEG") for k in range(4)]
    padded = [each + bytes(size) for each in data]  # a decoder stops at the end of the image
    made = sp.connect(str(tmp_path / "catalog"))
    table = pa.table({"n": range(100), "image": [padded[k % 4] for k in range(100)]})
    made.register("rows", sp.Arrow(table), identity="n", semantic={"image": "image/jpeg-ref"})
    with stream(made, "image", 1) as small:
        assert sum(1 for _ in small) == 100
    most = read_ahead.ROWS_BYTES // (size + len(data[0]))
    assert max(read) <= max(2, min(64, most))
    assert max(read) >= min(BATCHES, most)


def test_nothing_of_what_is_read_ahead_is_held_when_its_rows_were_taken(catalog: sp.Catalog) -> None:
    groups: list[rows_ahead.RowsRead] = []

    def held() -> Iterator[int]:
        yield from (each.left for each in groups if each.table is not None)

    kept = rows_ahead.RowsRead.__init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_ahead.RowsRead, "__init__", lambda self, rows: (kept(self, rows), groups.append(self))[0])
        with stream(catalog, "image", 1) as made:
            assert sum(1 for _ in made) == ROWS
    assert groups
    assert set(held()) == {0}
