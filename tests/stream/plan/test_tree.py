from dataclasses import replace

import pyarrow as pa
import pytest

from spiral_stream import Catalog, Raw, col
from spiral_stream.errors import PlanError
from spiral_stream.plan import nodes
from spiral_stream.plan.tree import base_scan, find, need, origin, profiles, relations_of, spine, walk
from spiral_stream.profiles import Jpeg, Original
from tests.fixtures.programs import image_catalog, image_program


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return image_catalog(tmp_path_factory.mktemp("tree"))


def test_walking_meets_inputs_before_the_verb_that_reads_them(catalog: Catalog) -> None:
    node = image_program(catalog).node
    seen = [each.VERB for each in walk(node)]

    assert seen == ["scan", "scan", "join", "filter", "sample", "collate"]
    assert [each.VERB for each in spine(node)] == ["collate", "sample", "filter", "join", "scan"]


def test_the_base_of_a_join_is_its_left_side(catalog: Catalog) -> None:
    assert base_scan(image_program(catalog).node).relation == "vision.imagenet_train"


def test_the_nearest_node_of_a_kind_is_found(catalog: Catalog) -> None:
    node = catalog.table("vision.imagenet_train").limit(3).filter(col("width") > 3).limit(2).node

    assert need(node, nodes.Limit).count == 2
    assert find(node, nodes.Sort) is None


@pytest.mark.parametrize(
    ("kind", "lacks"), [(nodes.Sample, r"no \.sample\("), (nodes.Deliver, r"no \.to_torch\(\) or a kin")]
)
def test_a_missing_verb_is_named_with_what_a_stream_needs(catalog: Catalog, kind: type[nodes.Node], lacks: str) -> None:
    with pytest.raises(PlanError, match=f"{lacks}.*; a stream needs"):
        need(catalog.table("vision.imagenet_train").node, kind)


def test_the_profile_declared_last_counts(catalog: Catalog) -> None:
    relation = catalog.table("vision.imagenet_train").cache(image_ref=Raw(8)).limit(3)

    assert profiles(relation.node) == {"image_ref": Raw(8)}
    assert profiles(relation.cache(image_ref=Jpeg(9)).cache(image_ref=Original()).node) == {"image_ref": Original()}


def test_a_column_leads_back_to_the_relation_unless_it_is_joined_or_computed(catalog: Catalog) -> None:
    labels = catalog.table("vision.imagenet_labels").project("label_id", "class_name", width=col("label_id"))
    relation = catalog.table("vision.imagenet_train").project("sample_id", "label_id", "width", img=col("image_ref"))
    relation = relation.join(labels, on="label_id").with_columns(twice=col("width") * 2, again=col("img")).limit(3)

    assert [origin(relation.node, name) for name in ("sample_id", "img", "again", "width")] == [
        "sample_id",
        "image_ref",
        "image_ref",
        "width",
    ]
    assert [origin(relation.node, name) for name in ("class_name", "width_right", "twice")] == [None, None, None]


def test_relations_of_a_plan_are_named_once_each(catalog: Catalog) -> None:
    images, labels = catalog.table("vision.imagenet_train"), catalog.table("vision.imagenet_labels")
    counts = pa.schema([("label_id", pa.int64()), ("n", pa.int64())])
    text = replace(labels, node=nodes.Sql("SELECT ...", ("counts", "vision.imagenet_labels"), counts, ()))
    joined = images.join(labels, on="label_id").join(text, on="label_id")
    both = joined.project("sample_id").union(images.project("sample_id"))

    assert sorted(relations_of(both.node)) == ["counts", "vision.imagenet_labels", "vision.imagenet_train"]
