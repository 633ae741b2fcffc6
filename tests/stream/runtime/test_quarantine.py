"""The quarantine on disk: many writers, torn ends, rows that are said again."""

import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.errors import CacheError, SpiralWarning
from spiral_stream.runtime import quarantine
from spiral_stream.runtime.quarantine import Quarantine
from tests.fixtures.damaged import catalog, image_plan
from tests.fixtures.examples import few
from tests.fixtures.inner import stages_of
from tests.fixtures.mutations import COUNTS, mutated_bytes
from tests.fixtures.texts import documents, make_catalog, tokenized


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Any:
    rows = catalog(tmp_path_factory.mktemp("images"), "images", whole=True).table("rows")
    with image_plan(rows).to_numpy() as stream:
        yield stages_of(stream)


def rows(kept: Quarantine, places: list[tuple[int, int, int]]) -> pa.Table:
    """One row a place (epoch, batch, row)."""
    out = [
        dict.fromkeys(kept.schema.names)
        | {"sample_id": str(place), "epoch": place[0], "batch": place[1], "row": place[2], "reason": "bad"}
        for place in places
    ]
    return pa.Table.from_pylist(out, kept.schema)


_places = st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 3))


@few(10, 25)
@given(batches=st.lists(st.tuples(st.integers(0, 2), st.lists(_places, min_size=1, unique=True)), max_size=8))
def test_what_several_writers_say_is_read_once_in_order(
    tmp_path_factory: pytest.TempPathFactory, stages: Any, batches: list[Any]
) -> None:
    root = tmp_path_factory.mktemp("root")
    writers = [Quarantine(root, stages, None) for _ in range(3)]
    for writer, places in batches:
        writers[writer].append(rows(writers[writer], places))

    table = writers[0].read()
    found = list(zip(*(table[name].to_pylist() for name in ("epoch", "batch", "row")), strict=True))
    assert found == sorted({place for _, places in batches for place in places})
    assert table["sample_id"].to_pylist() == [str(place) for place in found]
    assert table.schema == writers[0].schema
    assert len(list(writers[0].folder.glob("*"))) == len({writer for writer, _ in batches}) if batches else True


def test_a_torn_end_loses_its_own_batch_only(tmp_path: Path, stages: Any) -> None:
    kept = Quarantine(tmp_path, stages, None)
    for batch in range(3):
        kept.append(rows(kept, [(0, batch, 0)]))
    (path,) = kept.folder.glob("*")
    whole = path.read_bytes()
    size = len(whole) // 3
    for length in range(0, len(whole) + 1, 7):
        path.write_bytes(whole[:length])
        found = kept.read()["batch"].to_pylist()
        assert found == [*range(len(found))]
        assert length // size <= len(found) <= -(-length // size)
    other = Quarantine(tmp_path, stages, None)  # a process that came after writes elsewhere
    path.write_bytes(whole[: size + size // 2])
    other.append(rows(other, [(0, 7, 0)]))
    assert kept.read()["batch"].to_pylist() == [0, 7]


def test_plans_and_data_have_a_quarantine_each(tmp_path: Path) -> None:
    texts = make_catalog(tmp_path, {"a": 9})
    fields = {"ids": sp.Pad("tokens")}

    def folder(policy: str) -> Path:
        plan = tokenized(texts.table("a"), sp.Sequential(), stored=True).collate(
            batch_size=3, fields=fields, on_error=policy
        )
        with plan.to_numpy() as stream:
            return Quarantine(tmp_path, stages_of(stream), None).folder

    before = {folder("skip"), folder("substitute")}
    texts.drop("a")
    texts.register("a", sp.Arrow(documents("a", 10)), identity="sample_id", shard="storage_shard")
    assert len(before | {folder("skip"), folder("substitute")}) == 4


def test_names_of_the_identity_stay_theirs(tmp_path: Path) -> None:
    table = pa.table({"row": ["x", "y", "z"], "epoch": [1, 2, 3], "value": [1, None, 3]})
    made = sp.connect(str(tmp_path / "catalog"))
    made.register("odd", sp.Arrow(table), identity=["row", "epoch"])
    sampled = made.table("odd").sample(identity=["row", "epoch"], order=sp.Sequential())
    with sampled.collate(batch_size=3, fields={"v": sp.Stack("value")}, on_error="skip").to_numpy() as stream:
        assert [batch["v"].tolist() for batch in stream] == [[1, 3]]
        (found,) = stream.quarantine().to_pylist()
    assert (found["row"], found["epoch"], found["row_"], found["epoch_"], found["batch"]) == ("y", 2, 1, 0, 0)


def test_a_folder_that_cannot_be_written_is_said_so(
    tmp_path: Path, stages: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "quarantine").write_text("in the way")
    kept = Quarantine(tmp_path, stages, None)
    with pytest.raises(CacheError, match=r"quarantine: cannot write under .*Make it writable, or set \$SPIRAL_CACHE"):
        kept.append(rows(kept, [(0, 0, 0)]))
    (tmp_path / "quarantine").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(quarantine.os, "write", lambda handle, data: len(data) - 1)
        with pytest.raises(CacheError, match=r"took [\d,]+ of [\d,]+ bytes. Free some space there"):
            kept.append(rows(kept, [(0, 0, 0)]))
    kept.append(rows(kept, [(0, 1, 0)]))
    assert len(kept.read()) == 1


@pytest.mark.parametrize("count", COUNTS)
def test_no_mutation_of_a_quarantine_tells_of_other_samples(count: int, tmp_path: Path, stages: Any) -> None:
    kept = Quarantine(tmp_path, stages, None)
    for batch in range(4):
        kept.append(rows(kept, [(0, batch, row) for row in range(3)]))
    sound = kept.read().to_pylist()
    (file,) = kept.folder.iterdir()
    data = file.read_bytes()
    for seed in range(count):
        mutated = mutated_bytes(data, seed)
        file.write_bytes(mutated)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", SpiralWarning)
            found = kept.read().to_pylist()
        assert [row for row in found if row not in sound] == [], f"seed {seed}"
        assert len(found) == len(sound) or said or len(mutated) < len(data), f"seed {seed}"  # a torn end is no damage


def test_a_quarantine_from_before_there_were_frames_is_read(tmp_path: Path, stages: Any) -> None:
    kept, old = Quarantine(tmp_path, stages, None), rows(Quarantine(tmp_path, stages, None), [(0, 0, 0)])
    kept.append(rows(kept, [(0, 1, 0)]))
    with (kept.folder / "1-old.arrows").open("wb") as file, pa.ipc.new_stream(file, kept.schema) as writer:
        writer.write_table(old)

    assert kept.read()["batch"].to_pylist() == [0, 1]
