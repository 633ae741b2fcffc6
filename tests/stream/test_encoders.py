"""Frozen encoders: a model is loaded once per process, called on so many rows, draws by row, and its values are kept."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spiral_stream as sp
from spiral_stream.errors import DataError, PlanError
from tests.fixtures import encoders

pytestmark = pytest.mark.usefixtures("no_threads_left")


@pytest.fixture(autouse=True)
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    monkeypatch.setenv(encoders.NOTES, str(folder))
    return folder


def materialize(relation: sp.Relation, **options: Any) -> Any:
    with relation.collate(batch_size=8, fields=encoders.FIELDS).to_numpy() as stream:
        return stream.materialize(lambda progress: None, **options)


def test_a_model_is_loaded_once_in_each_process_and_called_on_as_many_rows_as_stated(tmp_path: Path) -> None:
    catalog = encoders.make_catalog(tmp_path)
    relation = encoders.kept(catalog)

    done = materialize(relation, executor="processes", workers=2)

    assert (done.rows, done.rows_total) == (96, 96)
    loads, calls = encoders.noted("loads"), encoders.noted("calls")
    assert 1 <= len(loads) == len({pid for pid, _ in loads}) <= 2, "one per process"
    assert {pid for pid, _ in calls} == {pid for pid, _ in loads}
    assert max(int(rows) for _, rows in calls) == 16
    assert sum(int(rows) for _, rows in calls) == 96, "each row once"


def test_variants_are_the_same_whoever_makes_them_in_calls_of_any_size(tmp_path: Path) -> None:
    made = []
    for at, (executor, workers, call_rows) in enumerate(
        (("threads", 1, 5), ("threads", 3, None), ("processes", 2, 16))
    ):
        catalog = encoders.make_catalog(tmp_path / str(at))
        relation = encoders.kept(catalog, call_rows=call_rows)
        materialize(relation, executor=executor, workers=workers)
        made.append(encoders.values(relation))
    plain = encoders.values(encoders.kept(encoders.make_catalog(tmp_path / "plain")), run_seed=5)  # made in batches

    for other in (*made[1:], plain):
        assert {number: texts for number, (_, texts) in other.items()} == {
            n: texts for n, (_, texts) in made[0].items()
        }
        for number, (latents, _) in other.items():  # a kernel may add up in another order in calls of another size
            first = np.frombuffer(made[0][number][0], np.float32)
            np.testing.assert_allclose(np.frombuffer(latents, np.float32), first, rtol=0, atol=1e-5)
    texts = made[0][3][1]
    assert len(set(texts)) == 2, "two draws of one row"
    assert texts != made[0][4][1]


def test_a_training_draws_one_variant_by_sample_and_epoch(tmp_path: Path) -> None:
    catalog = encoders.make_catalog(tmp_path)
    relation = encoders.chosen(encoders.kept(catalog))
    fields = {**encoders.FIELDS, "latent": sp.Stack("latent"), "crop": sp.Stack("crop")}
    plan = relation.collate(batch_size=8, fields=fields)
    with plan.to_numpy() as stream:
        stream.materialize(lambda progress: None)
        count = len(encoders.noted("calls"))
        epochs = []
        for _ in range(2):
            crops: dict[int, int] = {}
            for batch in stream:
                at = np.arange(len(batch["id"]))
                assert np.array_equal(batch["latent"], batch["latents"][at, batch["crop"]])
                crops |= dict(zip(batch["id"].tolist(), batch["crop"].tolist(), strict=True))
            epochs.append(crops)
    assert len(encoders.noted("calls")) <= count + 4, "only the rows that are looked at again are computed"
    assert set(epochs[0].values()) == {0, 1, 2}
    assert sum(epochs[0][each] == epochs[1][each] for each in epochs[0]) < 60, "another one in each epoch"
    with plan.to_numpy().bind(rank=1, world_size=2) as other:
        batch = next(iter(other))
        assert batch["crop"].tolist() == [epochs[0][each] for each in batch["id"].tolist()]


def test_only_a_new_shard_is_encoded_and_a_changed_function_encodes_all(tmp_path: Path) -> None:
    catalog = encoders.make_catalog(tmp_path)
    materialize(encoders.kept(catalog))
    first = sum(int(rows) for _, rows in encoders.noted("calls"))
    pq.write_table(encoders.table().slice(96, 24), tmp_path / "files" / "part-9.parquet")
    catalog.refresh("photos")
    materialize(encoders.kept(catalog))
    second = sum(int(rows) for _, rows in encoders.noted("calls")) - first

    assert (first, second) == (96, 24)
    with encoders.kept(catalog, version="2").collate(batch_size=8, fields=encoders.FIELDS).to_numpy() as stream:
        assert [cache.built for cache in stream.caches()] == [0]


def test_a_saved_stream_of_an_encoder_is_the_same_one(tmp_path: Path) -> None:
    catalog = encoders.make_catalog(tmp_path)
    stream = encoders.kept(catalog).collate(batch_size=8, fields=encoders.FIELDS).to_numpy()
    catalog.save_stream("encoded", stream)
    with catalog.open_stream("encoded", trust=["tests"]) as again:
        assert again.fingerprint == stream.fingerprint
        assert np.array_equal(next(iter(again))["latents"], next(iter(stream))["latents"])
    other = encoders.kept(catalog, call_rows=3).collate(batch_size=8, fields=encoders.FIELDS).to_numpy()
    fewer = encoders.kept(catalog, draws=2, returns=pa.fixed_shape_tensor(pa.float32(), (2, 4, 3, 3)))
    assert other.fingerprint == stream.fingerprint, "the size of calls changes no value"
    assert fewer.collate(batch_size=8, fields=encoders.FIELDS).to_numpy().fingerprint != stream.fingerprint
    stream.close()


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    catalog = encoders.make_catalog(tmp_path)
    relation = encoders.kept(catalog)
    with pytest.raises(PlanError, match=r"Give draws for values that are kept, or random=True"):
        encoders.kept(catalog, random=True)
    for wrong in ({"draws": 0}, {"call_rows": 0}):
        with pytest.raises(PlanError, match="or None"):
            encoders.kept(catalog, **wrong)
    with pytest.raises(PlanError, match="Give a number above 0 with executor='ray', or None"):
        materialize(relation, gpus=1)
    with pytest.raises(PlanError, match="Give one that takes nothing and returns what is needed"):
        sp.transforms.loads("model.pt")  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"variant 2 of a sample that has 1. Give a number below that"):
        sp.transforms.take_variant(pa.array([[1], [2]]), pa.array([0, 2]))
    with pytest.raises(DataError, match="Filter it out, or make one"):
        sp.transforms.draw_variant(pa.array([[1], []]), np.array([1, 2], np.uint64))


@pytest.mark.slow
def test_tasks_of_ray_keep_the_model_and_make_the_same_values(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    catalog = encoders.make_catalog(tmp_path)
    relation = encoders.kept(catalog)
    with pytest.warns(sp.SpiralWarning, match="so its processors do the work. Connect to a cluster with GPUs"):
        materialize(relation, executor="ray", workers=2, gpus=1)
    expected = encoders.kept(encoders.make_catalog(tmp_path / "other"))
    materialize(expected)

    found, wanted = encoders.values(relation), encoders.values(expected)
    assert {n: texts for n, (_, texts) in found.items()} == {n: texts for n, (_, texts) in wanted.items()}
