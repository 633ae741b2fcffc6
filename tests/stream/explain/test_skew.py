from pathlib import Path

import pytest

from spiral_stream import Catalog, List, Sequential
from tests.fixtures.programs import image_catalog
from tests.stream.explain import pictures
from tests.stream.explain.pictures import TRAIN, explained
from tests.stream.explain.words import in_words


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return pictures.make_catalog(tmp_path_factory.mktemp("explain"))


def test_skew_is_measured_where_statistics_are_and_named_where_not(catalog: Catalog, tmp_path: Path) -> None:
    (row,) = in_words(explained(catalog))["skew"]["columns"]
    table = catalog.table(TRAIN).to_arrow()
    labels, shards = table["label_id"].to_pylist(), table["storage_shard"].to_pylist()
    distances = []
    for shard in sorted(set(shards)):
        own = [label for label, where in zip(labels, shards, strict=True) if where == shard]
        distances.append(sum(abs(own.count(k) / len(own) - labels.count(k) / len(labels)) for k in set(labels)) / 2)

    assert row["column"] == "label_id"
    assert row["mean"] == pytest.approx(sum(distances) / len(distances))
    assert row["worst"].startswith(f"{sorted(set(shards))[distances.index(max(distances))]} {max(distances):.2f}")
    assert (
        in_words(explained(image_catalog(tmp_path)))["skew"]
        == 'unknown: call catalog.measure("vision.imagenet_train"), or materialize asset shard_stats of vision.imagenet_train'
    )


def test_skew_of_what_has_no_histogram_is_unknown(catalog: Catalog) -> None:
    found = explained(
        catalog,
        keep=lambda r: r.project("sample_id", "ingest_ts"),
        fields={"t": List("ingest_ts"), "s": List("sample_id")},
    )
    columns = in_words(found)["skew"]["columns"]

    assert [row["column"] for row in columns] == ["label_id", "split"]  # joined on, though not delivered
    alone = catalog.table(TRAIN).sample(order=Sequential()).collate(batch_size=4, fields={"t": List("ingest_ts")})
    columns = in_words(alone.to_numpy().explain())["skew"]["columns"]
    assert [row["column"] for row in columns] == ["split"]  # a text of few values, as sources are
