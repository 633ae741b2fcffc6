"""A stream that raised lets go of its files when its error is dropped, without the garbage collector."""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import ExitStack
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch  # noqa: F401  errors that its import keeps lead to whoever imports it first
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream import use_storage
from spiral_stream.errors import DamageError, DataError, SourceError
from spiral_stream.storage.open import store_of
from tests.fixtures import damaged, stores, streams
from tests.fixtures.examples import few
from tests.fixtures.far_processes import write_tars
from tests.fixtures.fault_proxy import fault_proxy
from tests.fixtures.open_files import mapped_below, open_below
from tests.fixtures.waits import until

pytestmark = [pytest.mark.usefixtures("no_threads_left"), pytest.mark.timeout(300)]

FEW = few(6, 300, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
ERRORS = {
    "bad sample": (DataError, "collate(..., on_error="),
    "damaged file": (DamageError, "Build that shard again with stream.m"),
    "function": (DataError, "failed: ValueError: no. Mend it"),
    "store down": (SourceError, "Check its address (endpoint) and the network"),
}


@dataclass(frozen=True)
class Failing:
    """Streams that fail in one way, over a folder with all of their files."""

    kind: str
    folder: Path
    catalog: sp.Catalog

    def stream(self, deliver: str = "numpy", *, formed: bool = False, **options: Any) -> Any:
        """A stream that raises at its first bad row."""
        rows, fields = self.catalog.table("rows"), dict[str, Any]()
        column = "jpg" if self.kind == "store down" else "image_ref"
        if self.kind != "store down":
            rows = rows.cache(image_ref=sp.Raw())
            fields["label"] = sp.Stack("label_id")
        fields["image"] = sp.Stack(column, decode="jpeg", transforms=streams.FIXED, dtype="uint8")
        sampled = rows.sample(order=sp.GlobalShuffle(seed=1))
        if self.kind == "function":
            sampled = sampled.map(failing, columns=["label_id"], name="m", returns=pa.int64())
            fields["m"] = sp.Stack("m")
        window = {"formation": sp.WindowedBucket(window_size=24)} if formed else {}
        plan = sampled.collate(batch_size=4, fields=fields, **window)
        return plan.to_torch(**options) if deliver == "torch" else plan.to_numpy(**options)

    def held(self) -> set[str]:
        """Files of the folder that this process has open or mapped; not the node's own, which all streams share."""
        return {path for path in (*open_below(self.folder), *mapped_below(self.folder)) if "/node/" not in path}


def failing(labels: pa.Array) -> pa.Array:
    """A map that fails for some rows."""
    if 3 in labels.to_pylist():
        msg = "no"
        raise ValueError(msg)
    return labels


@pytest.fixture(scope="module", params=[*ERRORS])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Failing]:
    kind, folder = request.param, tmp_path_factory.mktemp("failing")
    with pytest.MonkeyPatch.context() as patch, ExitStack() as opened:
        patch.setenv("SPIRAL_CACHE", str(folder / "prepared"))
        if kind == "store down":
            endpoint = request.getfixturevalue("s3_endpoint")
            proxy = opened.enter_context(fault_proxy(endpoint))
            patch.setenv("SPIRAL_NODE_CACHE", "off")
            catalog = remote(folder, endpoint, proxy.address)
            patch.setenv("SPIRAL_NODE_CACHE", str(folder / "node"))
            with Failing(kind, folder, catalog).stream() as stream:
                assert len(stream) == 15  # and the rest of an epoch was not read
            proxy.set(away=True)
        else:
            catalog = damaged.catalog(folder, "images", whole=kind != "bad sample")
            with Failing("whole", folder, catalog).stream() as stream:
                stream.materialize(lambda _: None)
        if kind == "damaged file":
            for path in (folder / "prepared").rglob("*.blob"):
                data = bytearray(path.read_bytes())
                data[len(data) // 2] ^= 4
                path.write_bytes(data)
        yield Failing(kind, folder, catalog)


def remote(folder: Path, endpoint: str, address: str) -> sp.Catalog:
    """A catalog of images on a store that a proxy stands before."""
    bucket = f"s3://{stores.new_bucket(endpoint)}"
    use_storage("failing", prefix=bucket, **stores.options(address) | {"client_max_retries": "0"})
    (folder / "tars").mkdir()
    write_tars(folder / "tars", 6, 10)
    for path in (folder / "tars").iterdir():
        store_of(bucket)[0].put(f"tars/{path.name}", path.read_bytes())
    catalog = sp.connect(str(folder / "catalog"))
    catalog.register("rows", sp.sources.WebDataset(f"{bucket}/tars"), identity=sp.RowIdentity())
    return catalog


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def read(stream: Any, how: str) -> None:
    """Read until the stream raises."""
    if how == "left open":
        for _ in stream:
            pass
    elif how == "one batch":
        with stream:
            for number in range(len(stream)):
                stream.batch(number)
    else:
        with stream:
            for _ in range(2):  # the second pass begins after the error
                try:
                    for _ in stream:
                        pass
                except sp.SpiralError:
                    if how == "once":
                        raise
            for _ in stream:
                pass


@FEW
@given(
    deliver=st.sampled_from(["numpy", "torch"]),
    how=st.sampled_from(["once", "again", "left open", "one batch"]),
    formed=st.booleans(),
    prefetch=st.integers(1, 6),
    threads=st.integers(1, 3),
)
def test_no_file_is_open_or_mapped_once_the_error_is_dropped(
    place: Failing, no_collection: None, deliver: str, how: str, formed: bool, prefetch: int, threads: int
) -> None:
    gc.collect()  # of an example that failed
    kind, says = ERRORS[place.kind]
    try:
        read(place.stream(deliver, formed=formed, prefetch=prefetch, threads=threads), how)
    except kind as error:
        said = str(error)
    assert says in said
    until(lambda: not place.held())  # a thread that still waits for the store ends when it answers


@pytest.mark.parametrize("place", ["store down"], indirect=True)
def test_a_copy_of_the_context_that_a_client_keeps_holds_no_file(
    place: Failing, no_collection: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, run = list[Any](), asyncio.run

    def keeping(*args: Any, **options: Any) -> Any:
        kept.append(copy_context())
        return run(*args, **options)

    monkeypatch.setattr(asyncio, "run", keeping)
    with pytest.raises(SourceError):
        read(place.stream(formed=True), "left open")
    until(lambda: not place.held())

    assert kept


def test_the_lines_of_an_error_stay_and_so_do_the_variables_of_a_function_of_the_user(tmp_path: Path) -> None:
    catalog = damaged.catalog(tmp_path, "images", whole=True)
    with pytest.raises(DataError) as kept:
        read(Failing("function", tmp_path, catalog).stream(), "once")
    cause = kept.value.__cause__
    assert cause is not None
    found = pytest.ExceptionInfo.from_exception(cause.__cause__ or cause)
    frames = {each.name: each.frame.f_locals for each in found.traceback}

    assert 3 in frames["failing"]["labels"].to_pylist()
    assert frames["_raise_first"] == {}


def test_a_stream_of_windows_that_ended_well_is_in_no_circle(tmp_path: Path, no_collection: None) -> None:
    catalog = damaged.catalog(tmp_path, "images", whole=True)
    one = Failing("whole", tmp_path, catalog)
    with one.stream(formed=True) as stream:
        stream.materialize(lambda _: None)
        assert len(list(stream)) == 15
    del stream

    assert one.held() == set()
