import pytest

from spiral_stream import Catalog, col, len_
from tests.fixtures.programs import as_written
from tests.fixtures.texts import SMALL_PLANS
from tests.stream.explain import mixtures, pictures
from tests.stream.explain.pictures import TRAIN, explained
from tests.stream.explain.words import in_words

pytestmark = SMALL_PLANS


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return pictures.make_catalog(tmp_path_factory.mktemp("explain"))


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return mixtures.make_catalog(tmp_path_factory.mktemp("texts"))


def test_text_that_conditions_look_at_is_not_called_free(texts: Catalog) -> None:
    with mixtures.program(texts, keep=len_("text") > 20) as stream:
        found = stream.explain()

    assert in_words(found)["relation"]["payload bytes read to decide"] == "unknown: the plan decides on text"


def test_a_condition_on_payload_is_not_called_free(catalog: Catalog) -> None:
    found = explained(catalog, keep=lambda r: r.filter(len_("image_ref") > 10))

    assert in_words(found)["relation"]["payload bytes read to decide"] == "unknown: the plan decides on image_ref"


def test_rows_left_are_those_of_the_plan(catalog: Catalog) -> None:
    found = explained(catalog, keep=lambda r: as_written(r).filter(col("class_name") != "class 3").limit(20))
    steps = in_words(found)["relation"]["steps"]
    labels = catalog.table(TRAIN).filter(col("split") == "train", col("label_id") != 3).to_arrow()

    assert [step["rows left"] for step in steps] == [40, 36, len(labels), 20]
    assert "right rows where class_name != 'class 3'" in steps[2]["step"]
    assert steps[-1]["share"] == 0.5
    assert in_words(found)["sample"]["rows"] == 20


def test_each_stream_of_a_mixture_has_a_row_and_its_own_steps(texts: Catalog) -> None:
    with mixtures.program(texts, keep=col("quality") >= 0.2) as stream:
        found = in_words(stream.explain())["relation"]

    names = [row["stream"] for row in found["streams"]]
    assert [row["relation"] for row in found["streams"]] == list(mixtures.SIZES)
    assert [step["stream"] for step in found["steps"] if step["step"].startswith("scan ")] == names
    last = {step["stream"]: step["rows left"] for step in found["steps"]}
    for name, relation in zip(names, mixtures.SIZES, strict=True):
        assert last[name] == len(texts.table(relation).filter(col("quality") >= 0.2).to_arrow())
