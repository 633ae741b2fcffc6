"""How registration learns what objects are like: by lists where they are cheaper, with the pins that looks give."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spiral_stream as sp
from spiral_stream import use_storage
from spiral_stream.catalog.relation import pin as object_looks
from spiral_stream.catalog.relation.pin import Looks
from spiral_stream.errors import SourceError
from spiral_stream.sources import Pin
from spiral_stream.sources.pins import NOT_THERE, Collected
from spiral_stream.sources.references.policy import Reach
from spiral_stream.storage.faults import AwayError
from spiral_stream.storage.local import Memory
from spiral_stream.storage.open import store_of
from spiral_stream.storage.store import Get, Got, ObjectStat
from spiral_stream.threads import Workers
from tests.fixtures import stores
from tests.fixtures.fault_proxy import fault_proxy


class Counted:
    """What was asked of a store in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks, self.listed = 0, 0
        self.lists: list[str] = []
        self.fault: SourceError | None = None
        self.etag = ""
        read, found = Memory.read, Memory.list

        def reading(store: Memory, wanted: Sequence[Get]) -> list[Got | SourceError]:
            self.looks += len(wanted)
            return read(store, wanted)

        def listing(store: Memory, prefix: str) -> Iterator[tuple[str, ObjectStat]]:
            self.lists.append(prefix)
            for key, facts in found(store, prefix):
                if self.fault is not None:
                    raise self.fault
                self.listed += 1
                yield key, ObjectStat(facts.size, f"{facts.etag}{self.etag}")

        monkeypatch.setattr(Memory, "read", reading)
        monkeypatch.setattr(Memory, "list", listing)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    monkeypatch.setattr(object_looks, "WORTH", 8)
    return Counted(monkeypatch)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """40 objects in each of two folders."""
    found = f"memory://{tmp_path.name}"
    for at in range(80):
        store_of(found)[0].put(f"all/{at // 40}/{at:02}.jpg", bytes(at))
    return found


def pins(names: Sequence[str], folder: str = "", rows: int = 80) -> dict[str, Pin]:
    with Workers(2, "looks") as pool:
        return looks_of(pool, folder, rows).pins(names)


def looks_of(pool: Workers, folder: str, rows: int) -> Looks:
    return Looks(pool, Reach(folder), Reach(folder), rows, Collected(), lambda _: None)


def named(uri: str, *numbers: int) -> list[str]:
    return [f"{uri}/all/{at // 40}/{at:02}.jpg" for at in numbers]


def test_many_objects_of_a_folder_are_listed_and_one_of_them_looked_at(counted: Counted, uri: str) -> None:
    names = named(uri, *np.random.default_rng(1).permutation(80).tolist())
    found = pins(names)
    assert (counted.lists, counted.listed, counted.looks) == (["all/"], 80, 1)
    assert [found[name].size for name in names] == [int(name[-6:-4]) for name in names]
    object_looks.WORTH, worth = 1000, object_looks.WORTH  # type: ignore[misc]
    try:
        assert pins(names) == found
    finally:
        object_looks.WORTH = worth  # type: ignore[misc]
    assert (counted.lists, counted.looks) == (["all/"], 81)


def test_relative_references_are_listed_too(counted: Counted, uri: str) -> None:
    found = pins([f"0/{at:02}.jpg" for at in range(20)], f"{uri}/all")
    assert [pin.size for pin in found.values()] == list(range(20))
    assert (counted.lists, counted.looks) == (["all/0/"], 1)
    both = {"0/07.jpg": found["0/07.jpg"], "/no/file": NOT_THERE}
    assert pins(["0/07.jpg", "/no/file"], f"{uri}/all") == both


def test_few_objects_are_looked_at(counted: Counted, uri: str) -> None:
    assert [pin.size for pin in pins(named(uri, 1, 50, 2, 77)).values()] == [1, 50, 2, 77]
    assert (counted.lists, counted.looks) == ([], 4)


def test_a_folder_is_listed_once_whatever_batches_name_of_it(counted: Counted, uri: str) -> None:
    with Workers(2, "looks") as pool:
        looks = looks_of(pool, "", 80)
        for batch in (range(20), range(20, 80), range(3)):
            assert [pin.size for pin in looks.pins(named(uri, *batch)).values()] == list(batch)
    assert counted.lists == ["all/0/", "all/1/"]
    assert counted.looks == 2


def test_a_list_ends_where_it_brings_far_more_than_there_are_rows(
    counted: Counted, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_looks, "LEAST", 10)
    found = pins(named(uri, *range(0, 80, 5)), rows=5)
    assert [pin.size for pin in found.values()] == list(range(0, 80, 5))
    assert (counted.listed, counted.looks) == (30, 1 + 10)


def test_what_is_missing_is_looked_at_and_no_file(counted: Counted, uri: str) -> None:
    names = [*named(uri, *range(12)), f"{uri}/all/0/none.jpg"]
    assert pins(names)[names[-1]] == NOT_THERE
    assert (len(counted.lists), counted.looks) == (1, 2)


def test_a_store_whose_lists_say_other_etags_is_looked_at(counted: Counted, uri: str) -> None:
    right = pins(named(uri, 1, 2, 3))
    counted.etag = "-listed"
    assert pins(named(uri, *range(30))).items() >= right.items()
    assert counted.looks == 3 + 1 + 30


def test_without_the_right_to_list_objects_are_looked_at_and_a_store_that_is_away_is_named(
    counted: Counted, uri: str
) -> None:
    counted.fault = SourceError("may not be listed")
    assert [pin.size for pin in pins(named(uri, *range(20))).values()] == list(range(20))
    assert counted.looks == 20
    counted.fault = AwayError("the store does not answer")
    with pytest.raises(AwayError, match="does not answer"):
        pins(named(uri, *range(20)))


def test_a_table_of_references_costs_a_request_per_page(s3_endpoint: str, tmp_path: Path) -> None:
    uri = f"s3://{stores.new_bucket(s3_endpoint)}"
    use_storage("looks", prefix=uri, **stores.options(s3_endpoint))
    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(lambda at: store_of(uri)[0].put(f"images/{at % 3}/{at}.jpg", bytes(at)), range(40)):
            pass
    at = np.random.default_rng(2).permutation(40)
    rows = pa.table({"id": at, "image": [f"{uri}/images/{each % 3}/{each}.jpg" for each in at.tolist()]})
    pq.write_table(rows, tmp_path / "rows.parquet")
    versions = []
    with fault_proxy(s3_endpoint) as proxy:
        use_storage("looks", prefix=uri, **stores.options(proxy.address))
        for worth in (36, 1000):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(object_looks, "WORTH", worth)
                catalog = sp.connect(str(tmp_path / str(worth)))
                catalog.register(
                    "r", sp.Parquet(str(tmp_path / "rows.parquet")), identity="id", semantic={"image": "image/jpeg-ref"}
                )
            counts = proxy.counts()
            versions.append((catalog.entry("r").manifest().pins, catalog.entry("r").manifest().data_version))
            assert {name: counts.get(name, 0) for name in ("GET", "HEAD")} == (
                {"GET": 1, "HEAD": 1} if worth == 36 else {"GET": 0, "HEAD": 40}
            )
            proxy.set()
    use_storage("looks", prefix=uri)
    assert versions[0] == versions[1]
