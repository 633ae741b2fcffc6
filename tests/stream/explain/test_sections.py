"""EXPLAIN DATA: every section in order, JSON-able, from facts, without a payload byte."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from spiral_stream import Catalog, DataParallel, RuntimeParam, SpiralWarning, col
from spiral_stream.batching import Packed
from spiral_stream.explain import SECTIONS
from spiral_stream.transforms.text.encoder import TextEncoder
from tests.fixtures import clips, reads
from tests.fixtures.inner import stages_of
from tests.fixtures.programs import image_program
from tests.fixtures.texts import SMALL_PLANS
from tests.stream.explain import footages, mixtures, pictures
from tests.stream.explain.pictures import TRAIN, explained
from tests.stream.explain.words import in_words

pytestmark = SMALL_PLANS

REPLAY = Path(__file__).parents[2] / "replay"


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return pictures.make_catalog(tmp_path_factory.mktemp("explain"))


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """Three text relations, with a token cache."""
    catalog = mixtures.make_catalog(tmp_path_factory.mktemp("texts"))
    with mixtures.program(catalog) as stream:
        stream.materialize(lambda _: None)
    return catalog


def masked(text: str) -> str:
    """Without what the machine, the run or a content hash decides."""
    hidden = re.sub(r"\b(?=[0-9a-f]*[0-9])[0-9a-f]{8,}\b", lambda found: "#" * len(found[0]), text)
    return re.sub(r"(threads +)\d+", r"\1#", hidden)


def test_the_seed_program_is_explained_as_recorded(catalog: Catalog) -> None:
    found = masked(str(explained(catalog)))

    assert found == (REPLAY / "explain_image.txt").read_text().rstrip("\n"), f"if this reads better, keep it:\n{found}"


def test_the_text_program_is_explained_as_recorded(texts: Catalog) -> None:
    with mixtures.program(texts, epoch_size=4_000) as stream:
        found = masked(str(stream.explain()))

    assert found == (REPLAY / "explain_text.txt").read_text().rstrip("\n"), f"if this reads better, keep it:\n{found}"


def test_the_video_program_is_explained_as_recorded(tmp_path: Path) -> None:
    catalog = footages.measured(clips.video_catalog(tmp_path, files=5, each=5, duration_ms=1_000).catalog)
    options: dict[str, Any] = {"batch_size": 4, "window_size": 16, "max_frames": 64, "least_ms": 1_000}
    with footages.program(catalog, **options, resize_shorter=256, crop=224, device="cuda") as stream:
        stream.materialize(lambda _: None)
        found = re.sub(r"(decode bytes.*mean )[\d,]+ / max [\d,]+", r"\1# / max #", masked(str(stream.explain())))

    assert found == (REPLAY / "explain_video.txt").read_text().rstrip("\n"), f"if this reads better, keep it:\n{found}"


def test_sections_come_in_order_and_are_plain_json(catalog: Catalog) -> None:
    found = explained(catalog)

    assert tuple(found.to_dict()) == SECTIONS
    assert json.loads(found.to_json()) == found.to_dict()
    heads = [line for line in str(found).splitlines() if not line.startswith(" ")]
    assert heads == ["EXPLAIN DATA", *(name.upper() for name in SECTIONS[1:])]
    assert found.to_markdown() == f"```\n{found}\n```"


def test_no_payload_byte_is_read(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = reads.watch(monkeypatch)

    assert (
        in_words(explained(catalog, keep=lambda r: r.filter(col("width") > 60)))["relation"][
            "payload bytes read to decide"
        ]
        == 0
    )
    assert seen.payload_bytes == 0
    scanned = {column for _, column in seen.scans}  # the identity too, unless another test had it kept
    assert {"label_id"} <= scanned <= {"label_id", "sample_id"}
    small = {"label_id", "sample_id", "split", "source_uri", "ingest_ts"}  # the first two are kept beside the selection
    assert {column for _, column in seen.fetches} <= small


@pytest.mark.parametrize("built", [False, True])
@pytest.mark.parametrize("formation", [mixtures.bucketed(), Packed(128, window_size=64)])
def test_a_mixture_of_texts_is_explained_in_order_without_reading_text(
    texts: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, formation: Any, built: bool
) -> None:
    own = texts if built else mixtures.make_catalog(tmp_path)
    composition = None if isinstance(formation, Packed) else mixtures.STRATIFIED
    with mixtures.program(own, formation=formation, composition=composition, batch_size=4) as stream:
        assert stages_of(stream).formed  # selections read the columns of conditions and identity
        seen = reads.watch(monkeypatch)
        monkeypatch.setattr(TextEncoder, "encode", lambda *_: pytest.fail("explain tokenized a text"))
        found = stream.explain()

    assert tuple(found.to_dict()) == SECTIONS
    assert json.loads(found.to_json()) == found.to_dict()
    assert in_words(found)["relation"]["payload bytes read to decide"] == 0
    assert (seen.scans, seen.fetches) == ({}, {})


def test_what_would_go_wrong_is_warned_of_with_the_remedy(catalog: Catalog) -> None:
    with (
        image_program(catalog, batch_size=64).to_numpy(prefetch=4_000) as stream,
        pytest.warns(SpiralWarning, match="an epoch has 36 samples, so DropPartial drops its only batch"),
    ):
        warnings = in_words(stream.bind(rank=1, world_size=2).explain())["warnings"]

    assert [line[0] for line in warnings] == ["1", "2", "3"]
    assert re.search(r"lanes=2\) would let each of the 2 ranks read its own shards", warnings[0])
    assert re.search("no batch is delivered: 36 rows do not fill one of 64 a rank", warnings[1])
    assert re.search(r"~\d+.\d GiB of host memory. Lower prefetch or batch_size", warnings[2])


def test_the_run_is_named(catalog: Catalog) -> None:
    ranks = DataParallel(RuntimeParam("rank"), RuntimeParam("world_size"), lanes=2)
    with image_program(catalog, batch_size=4, assignment=ranks).to_numpy() as stream:
        facts = in_words(stream.bind(epoch=3, rank=1, world_size=2, run_seed=5).explain())

    assert (facts["header"]["epoch"], facts["header"]["rank"], facts["header"]["run_seed"]) == (3, "1/2", 5)
    assert facts["sample"]["lanes"] == 2
    assert facts["batch"] == {
        "formation": "fixed count of 4",
        "last": "DropPartial",
        "global batches an epoch": 8,
        "steps of this rank": 4,
        "rows dropped an epoch": "4 (11.11% of 36)",
    }


def test_a_plan_that_is_no_stream_yet_shows_its_outline(catalog: Catalog) -> None:
    relation = catalog.table(TRAIN).join(catalog.table("vision.imagenet_labels"), on="label_id").sort("width").limit(3)
    found = relation.explain()

    assert tuple(found.to_dict()) == SECTIONS
    assert found.facts["plan"] == [
        f"(1) Scan {TRAIN}",
        "(2) Scan vision.imagenet_labels",
        "(3) Join inner on label_id   reads (1) and (2)",
        "(4) Sort names ('width',), descending False",
        "(5) Limit count 3",
    ]
    assert "unknown: finish the plan with .sample(), .collate() and .to_torch() or a kin" in str(found)
