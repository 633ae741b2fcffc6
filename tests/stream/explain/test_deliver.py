import json
from pathlib import Path

import pytest

from spiral_stream import Catalog, List
from tests.fixtures.programs import image_program
from tests.fixtures.texts import SMALL_PLANS
from tests.stream.explain import mixtures, pictures
from tests.stream.explain.pictures import explained
from tests.stream.explain.words import in_words

pytestmark = SMALL_PLANS


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return pictures.make_catalog(tmp_path_factory.mktemp("explain"))


def test_what_was_measured_is_marked(catalog: Catalog) -> None:
    with image_program(catalog, batch_size=8, fields={"id": List("sample_id")}).to_numpy() as stream:
        assert "!" not in str(in_words(stream.explain())["deliver"])
        list(stream)
        deliver = in_words(stream.explain(analyze=True))["deliver"]

    assert deliver["delivered"] == "! 4 batches, 32 samples"
    assert deliver["bound by"].startswith("! ")


def test_a_state_of_counted_batches_is_small_and_resumed_by_arithmetic(catalog: Catalog) -> None:
    found = in_words(explained(catalog))["resume"]

    assert found["reposition"].startswith("arithmetic; 0 rows of the prefix are read")


def test_the_state_of_formed_batches_is_as_large_as_it_says(tmp_path: Path) -> None:
    with mixtures.program(mixtures.make_catalog(tmp_path)) as stream:
        found = in_words(stream.explain())["resume"]
        size = len(json.dumps(stream.state_dict()))

    assert found["unit"].startswith("a chapter of ")
    assert abs(int(found["state"].split()[0].replace(",", "")) - size) < 100


def test_a_device_takes_memory_of_its_own_and_page_locked_memory(catalog: Catalog) -> None:
    def facts(prefetch: int, device: str) -> dict[str, object]:
        plan = image_program(catalog, batch_size=8)
        with (
            plan.to_torch(prefetch=prefetch).bind(device=device)
            if device == "cpu"
            else plan.to_torch(prefetch=prefetch) as stream
        ):
            found: dict[str, object] = in_words(stream.explain())["deliver"]
        return found

    a_batch = 8 * 3 * 224 * 224 * 2 + 8 * 8
    assert "on the device" not in facts(3, "cpu")
    found = facts(3, "cuda")
    assert str(found["host memory bound"]).endswith("(2 x prefetch + 2 slots)")
    assert str(found["on the device"]).startswith(f"cuda: 3 batches before the loop has them, ~{3 * a_batch:,} bytes; ")
    assert f"up to {2 * 8 * a_batch:,} bytes" in str(found["on the device"])
