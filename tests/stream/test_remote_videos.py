"""Clips of videos on an object store and a web server are those of local files, bit for bit; requests are counted."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream import use_storage
from spiral_stream.cache.kinds import probes
from spiral_stream.semantic import H264_REF
from spiral_stream.storage.objects import Objects
from spiral_stream.storage.open import store_of
from tests.fixtures import stores
from tests.fixtures.videos import Made, write_tar, write_video

RANGE = pa.struct([("uri", pa.utf8()), ("offset", pa.int64()), ("length", pa.int64())])
MADE = {
    "front": Made(frames=120, width=320, height=240, gop=30, faststart=True, audio="aac"),
    "end": Made(frames=120, width=320, height=240, gop=30, audio="aac", first=200),
    "open": Made(frames=60, gop=12, open_gop=True, first=400),
    "refresh": Made(frames=60, options=(("x264-params", "intra-refresh=1:keyint=20"),), first=600),
    "fragments": Made(frames=60, mux=(("movflags", "frag_keyframe+empty_moov"),), first=700),
}
START_MS, DURATION_MS = 1_000, 1_000


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("videos")
    found = {name: write_video(folder / f"{name}.mp4", made) for name, made in MADE.items()}
    return found | {"stream": write_video(folder / "stream.ts", Made(frames=60, first=800))}


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Requests to stores while it lasts, by kind; and bytes that came."""
    counts: Counter[str] = Counter()
    get, head = Objects.get_range, Objects.head

    async def counted(self: Objects, key: str, start: int, stop: int | None, *args: Any) -> Any:
        found = await get(self, key, start, stop, *args)
        if start == stop:  # a look
            return found
        counts["get"] += 1
        counts["in work"] += threading.current_thread().name.startswith("spiral-work")
        counts["bytes"] += len(found[1] or b"")
        return found

    async def looked(self: Objects, key: str) -> Any:
        counts["head"] += 1
        return await head(self, key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Objects, "get_range", counted)
        patch.setattr(Objects, "head", looked)
        yield counts


def register(folder: Path, name: str, references: list[Any], kind: pa.DataType, copies: int = 1) -> sp.Catalog:
    rows = len(references) * copies
    table = pa.table(
        {
            "id": np.arange(rows),
            "clip": pa.array(references * copies, kind),
            "start_time_ms": [START_MS - 250 * (at // len(references)) for at in range(rows)],
            "duration_ms": [DURATION_MS] * rows,
        }
    )
    catalog = sp.connect(str(folder / "catalog"))
    catalog.register(name, sp.Arrow(table), identity="id", semantic={"clip": H264_REF})
    return catalog


def plan(catalog: sp.Catalog, name: str, *, cached: bool = False, **field: Any) -> Any:
    stack = sp.Stack("clip", decode="h264", **{"sequence_length": 8, "crop": (48, 64), **field})
    order = sp.GlobalShuffle(seed=5)
    relation = catalog.table(name).cache(clip=sp.Frames(shorter_side=80)) if cached else catalog.table(name)
    sampled = relation.sample(identity="id", order=order, epoch=0)
    return sampled.collate(batch_size=2, fields={"x": stack, "id": sp.Stack("id")}, last=sp.KeepPartial)


def batches(made: Any, **options: Any) -> list[Any]:
    with made.to_numpy(**options) as stream:
        return [{name: np.array(each[name]) for name in ("x", "id")} for each in stream]


def need_same(left: list[Any], right: list[Any]) -> None:
    assert len(left) == len(right) > 0
    for one, other in zip(left, right, strict=True):
        for name in ("x", "id"):
            np.testing.assert_array_equal(one[name], other[name])


def put(uri: str, path: Path) -> str:
    store, key = store_of(uri)
    store.put(key, path.read_bytes())
    return uri


@pytest.mark.parametrize(
    "field",
    [
        pytest.param({}, marks=pytest.mark.slow, id="uniform"),
        pytest.param({"stride": 2, "random_start": True}, id="random"),
    ],
)
def test_clips_on_s3_have_the_frames_of_local_files(
    videos: dict[str, Path], tmp_path: Path, caches: Path, bucket: str, field: dict[str, Any]
) -> None:
    local = register(tmp_path, "local", [str(path) for path in videos.values()], pa.utf8(), copies=2)
    uris = [put(f"{bucket}/{path.name}", path) for path in videos.values()]
    remote = register(tmp_path, "remote", uris, pa.utf8(), copies=2)
    found = batches(plan(remote, "remote", **field), prefetch=3)
    need_same(found, batches(plan(local, "local", **field)))
    with plan(remote, "remote", **field).to_numpy() as stream:
        stream.materialize()
    need_same(batches(plan(remote, "remote", **field)), found)
    kept = [plan(catalog, name, cached=True, **field) for catalog, name in ((remote, "remote"), (local, "local"))]
    need_same(batches(kept[0]), batches(kept[1]))  # fetched, and made in the form of the cache
    with kept[0].to_numpy() as stream:
        stream.materialize()
    need_same(batches(kept[0]), batches(kept[1]))


def test_members_of_tars_and_web_servers_too(
    videos: dict[str, Path], tmp_path: Path, caches: Path, bucket: str
) -> None:
    places = write_tar(tmp_path / "all.tar", list(videos.values())[:2])
    named = [{"uri": str(tmp_path / "all.tar"), "offset": at, "length": size} for at, size in places]
    local = batches(plan(register(tmp_path, "local", named, RANGE), "local"))
    put(f"{bucket}/all.tar", tmp_path / "all.tar")
    there = [each | {"uri": f"{bucket}/all.tar"} for each in named]
    need_same(batches(plan(register(tmp_path, "s3", there, RANGE), "s3")), local)
    with stores.web_server(tmp_path) as address:
        use_storage("web", prefix=address, allow_http="true")
        there = [each | {"uri": f"{address}/all.tar"} for each in named]
        need_same(batches(plan(register(tmp_path, "web", there, RANGE), "web")), local)
        use_storage("web", prefix=address)


def test_an_index_costs_one_or_two_requests_and_a_clip_only_its_packets(
    tmp_path: Path, caches: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPIRAL_NODE_CACHE", "off")
    made = Made(frames=240, width=192, height=144, gop=24, options=(("crf", "4"), ("preset", "ultrafast")))
    for name, requests in (("front", 1), ("end", 2)):
        path = write_video(tmp_path / f"{name}.mp4", made, faststart=name == "front", first=len(name))
        size = path.stat().st_size
        uri = put(f"{bucket}/{name}.mp4", path)
        with counting() as registered:
            catalog = register(tmp_path, name, [uri], pa.utf8())
        assert registered == {"head": 1}  # the pin
        with counting() as indexed:
            sp.index_videos(catalog, name, "clip")
        assert indexed["get"] == requests
        assert not indexed["head"]
        assert indexed["bytes"] < size / 3
        probes.of_process.cache_clear()  # as another process would find it
        with counting() as streamed:
            found = batches(plan(catalog, name))
        assert streamed["get"] == 1  # two neighbouring groups of pictures
        assert not streamed["head"]
        assert not streamed["in work"]  # no thread that decodes waits
        assert streamed["bytes"] < size / 4
        local = register(tmp_path, f"local-{name}", [str(path)], pa.utf8())
        need_same(found, batches(plan(local, f"local-{name}")))


def test_an_object_that_is_replaced_is_named_and_refreshed(
    videos: dict[str, Path], tmp_path: Path, caches: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPIRAL_NODE_CACHE", "off")  # a node would have what was registered
    uri = put(f"{bucket}/a.mp4", videos["front"])
    catalog = register(tmp_path, "remote", [uri], pa.utf8())
    before = batches(plan(catalog, "remote"))
    put(uri, videos["end"])
    with pytest.raises(sp.errors.SourceError, match=r"a\.mp4 changed since registration.*catalog\.refresh"):
        batches(plan(catalog, "remote"))
    catalog.refresh("remote")
    after = batches(plan(catalog, "remote"))
    assert (before[0]["x"] != after[0]["x"]).any()
    store, key = store_of(uri)
    store.delete(key)
    with pytest.raises(sp.errors.SourceError, match=r"a\.mp4"):
        batches(plan(catalog, "remote"))


def test_a_run_goes_on_and_changes_its_ranks_over_remote_clips(
    videos: dict[str, Path], tmp_path: Path, caches: Path, bucket: str
) -> None:
    uris = [put(f"{bucket}/{name}.mp4", videos[name]) for name in ("front", "end", "open")]
    catalog = register(tmp_path, "remote", uris, pa.utf8(), copies=3)
    made = plan(catalog, "remote")
    whole = batches(made)
    with made.to_numpy() as stream:
        first = next(iter(stream))
        np.testing.assert_array_equal(first["x"], whole[0]["x"])
        state = stream.state_dict()
    with made.to_numpy(prefetch=2) as stream:
        stream.load_state_dict(state)
        need_same([{name: np.array(each[name]) for name in ("x", "id")} for each in stream], whole[1:])
    shares = []
    for rank in range(2):
        mine = catalog.table("remote").sample(
            identity="id", order=sp.GlobalShuffle(seed=5), epoch=0, assignment=sp.DataParallel(rank=rank, world_size=2)
        )
        stack = sp.Stack("clip", decode="h264", sequence_length=8, crop=(48, 64))
        fields = {"x": stack, "id": sp.Stack("id")}
        shares += batches(mine.collate(batch_size=1, fields=fields, last=sp.KeepPartial))
    by_id = {int(each["id"][at]): each["x"][at] for each in whole for at in range(len(each["id"]))}
    for each in shares:
        np.testing.assert_array_equal(each["x"][0], by_id[int(each["id"][0])])
