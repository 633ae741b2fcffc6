"""The batch section says what an epoch delivers; where it saw a part of it, about that."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.explain import formed
from tests.fixtures.examples import few
from tests.fixtures.inner import batches_of, stages_of
from tests.fixtures.texts import SMALL_PLANS
from tests.stream.explain.mixtures import KEYS, bucketed, delivered, make_catalog, program
from tests.stream.explain.words import in_words

pytestmark = SMALL_PLANS


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    """Three relations; the token cache holds all rows."""
    catalog = make_catalog(tmp_path_factory.mktemp("batch"))
    with program(catalog) as stream:
        stream.materialize(lambda _: None)
    return catalog


def batch_of(stream: sp.PreparedStream) -> dict[str, Any]:
    found: dict[str, Any] = in_words(stream.explain())["batch"]
    return found


def operands(text: str) -> tuple[int, int]:
    """Of ``4.6% (46/1,000) tokens``."""
    found = re.search(r"\(([\d,]+)/([\d,]+)\)", text)
    assert found, text
    return int(found[1].replace(",", "")), int(found[2].replace(",", ""))


@few(4, 8)
@given(
    window_size=st.sampled_from([32, 100, 400, 2_000]),
    max_tokens=st.sampled_from([64, 500, 3_000]),
    keys=st.sampled_from([[], KEYS]),
    count=st.sampled_from(["padded", "real"]),
    composition=st.sampled_from([None, sp.StratifiedByStream(), sp.batching.OneStream()]),
)
def test_numbers_without_a_mark_are_those_of_the_epoch(
    catalog: sp.Catalog, window_size: int, max_tokens: int, keys: Any, count: str, composition: Any
) -> None:
    formation = bucketed(window_size, max_tokens, keys, count=count)
    with program(catalog, formation=formation, composition=composition) as stream:
        found, truth = batch_of(stream), delivered(stream)

    rows, widths = np.array(truth["rows"]), np.array(truth["widths"])
    assert found["seen for this"] == f"all 1,000 samples, {truth['batches']:,} batches"
    assert (found["batches an epoch"], found["steps of this rank"]) == (truth["batches"], truth["batches"])
    assert found["B"] == f"min {rows.min():,} / median {np.median(rows):,.0f} / max {rows.max():,}"
    assert f"max {widths.max():,} (a multiple of 8)" in found["T"]
    assert operands(found["padding"]) == (truth["places"] - truth["tokens"], truth["places"])
    used = truth["places"] if count == "padded" else truth["tokens"]
    assert operands(found["budget fill"]) == (used, max_tokens * truth["batches"])
    assert sum(row["batches"] for row in found.get("widths", [{"batches": len(rows)}])) == len(rows)
    assert sum(operands(row["found"])[0] for row in found["streams"]) == 1_000


def test_sorting_is_compared_with_the_same_samples_in_order(catalog: sp.Catalog) -> None:
    with program(catalog, composition=None) as stream:
        sorted_ = batch_of(stream)
    with program(catalog, formation=bucketed(keys=[]), composition=None) as stream:
        plain = batch_of(stream)

    first, second = operands(sorted_["padding without buckets"]), operands(plain["padding"])
    assert first[0] == pytest.approx(second[0], rel=0.05)  # the run's windows end a batch each, the comparison's do not
    assert operands(sorted_["padding"])[0] < first[0] / 2
    assert "padding without buckets" not in plain


def test_other_limits_are_what_a_run_with_them_makes(catalog: sp.Catalog) -> None:
    with program(catalog, formation=bucketed(64), composition=None, epoch_size=4_000, last=sp.KeepPartial) as stream:
        rows = {row["limits"]: row for row in batch_of(stream)["other limits"]}
    others = {
        "as planned": bucketed(64),
        "max_tokens 500": bucketed(64, 500),
        "max_tokens 2,000": bucketed(64, 2_000),
        "window_size 256": bucketed(256),
    }

    assert list(rows) == list(others)
    for name, formation in others.items():
        with program(catalog, formation=formation, composition=None, epoch_size=4_000, last=sp.KeepPartial) as stream:
            truth = delivered(stream)
            count = stream.count()
        padding, places = operands(rows[name]["padding"])
        assert padding / places == pytest.approx(1 - truth["tokens"] / truth["places"], abs=0.02), name
        assert int(re.sub(r"\D", "", str(rows[name]["batches an epoch"]))) == pytest.approx(count, rel=0.05), name
        assert operands(rows[name]["budget fill"])[0] == places


def test_an_other_budget_that_holds_no_sample_says_so(catalog: sp.Catalog) -> None:
    with program(catalog, formation=bucketed(64, 64), composition=None) as stream:
        rows = {row["limits"]: row for row in batch_of(stream)["other limits"]}

    assert rows["max_tokens 32"]["padding"].startswith("refused: collate: a sample has")
    assert operands(rows["max_tokens 128"]["padding"])[1] > 0


def test_stratified_batches_are_within_two_samples_of_the_targets_and_plain_ones_are_not(catalog: sp.Catalog) -> None:
    def apart(composition: Any) -> float:
        with program(catalog, composition=composition) as stream:
            rows = batch_of(stream)["streams"]
        assert [row["stream"] for row in rows] == ["fineweb", "wikipedia", "code"]
        assert [row["target"] for row in rows] == ["70.000%", "10.000%", "20.000%"]
        return max(float(row["most apart in a batch"].split()[0]) for row in rows)

    assert apart(sp.StratifiedByStream()) <= 2
    assert apart(None) > 2


def test_a_part_of_an_epoch_is_an_estimate_of_it(catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formed, "SAMPLES", 1_000)
    monkeypatch.setattr(formed, "DRAWN", 8_000)
    with program(catalog, formation=bucketed(512), epoch_size=30_000) as stream:  # no stream is late in it
        found = batch_of(stream)
        count = stream.count()
        after = batch_of(stream)

    estimate = int(re.sub(r"\D", "", found["batches an epoch"].split("(")[0]))
    assert found["batches an epoch"].startswith("~")
    assert estimate == pytest.approx(count, rel=0.1)
    assert found["seen for this"].startswith("~ the first 1,")
    assert all(found[name].startswith("~") for name in ("B", "T", "padding", "budget fill", "oversize samples"))
    assert after["batches an epoch"] == count


def test_packing_says_how_full_rows_are(catalog: sp.Catalog) -> None:
    formation = sp.batching.Packed(max_tokens=128, window_size=256)
    with program(catalog, formation=formation, composition=None, batch_size=4, last=sp.KeepPartial) as stream:
        found, truth = batch_of(stream), delivered(stream)

    assert operands(found["utilisation"]) == (truth["tokens"], truth["places"])
    assert found["packing"] == "best_fit into rows of 128, any number of segments a row"
    assert re.fullmatch(r"mean \d+\.\d, max \d+", found["segments a row"])
    assert sum(operands(row["found"])[0] for row in found["streams"]) == 1_000


@pytest.mark.parametrize("policy", ["truncate", "alone", "drop"])
def test_samples_above_the_budget_are_counted(catalog: sp.Catalog, policy: str) -> None:
    with program(catalog, formation=bucketed(max_tokens=40, oversize=policy)) as stream:
        found = batch_of(stream)
        list(stream)
        measured = stream.metrics()
        deliver = in_words(stream.explain(analyze=True))["deliver"]

    word = {"truncate": "truncated", "alone": "alone", "drop": "dropped"}[policy]
    assert measured[word] > 0
    assert f"{word} {measured[word]:,}" in found["oversize samples"]
    assert f"{word} {measured[word]:,}" in deliver["left out or cut"]


def test_a_sample_above_the_budget_is_the_first_warning(catalog: sp.Catalog) -> None:
    with program(catalog, formation=bucketed(max_tokens=40)) as stream:
        explained = in_words(stream.explain())

    assert explained["batch"]["batches"].startswith(
        "unknown: the epoch's first samples cannot be formed: fineweb: sample"
    )
    assert "Raise the budget, filter on the length, or choose oversize=" in explained["warnings"][0]


@pytest.mark.parametrize(
    ("last", "says"),
    [
        (sp.DropPartial, "DropPartial: at most 3 batches an epoch"),
        (sp.KeepPartial, "KeepPartial"),
        (sp.batching.PadPartial, "PadPartial: at most 3 batches an epoch come twice"),
    ],
)
def test_steps_of_ranks_are_those_that_they_make(tmp_path: Path, last: Any, says: str) -> None:
    with program(make_catalog(tmp_path), last=last) as stream:
        stream.materialize(lambda _: None)
        before = [batch_of(stream.bind(rank=rank, world_size=4)) for rank in (0, 3)]
        made = [len(stream.bind(rank=rank, world_size=4)) for rank in (0, 3)]
        after = [batch_of(stream.bind(rank=rank, world_size=4)) for rank in (0, 3)]

    assert [found["steps of this rank"] for found in before] == made
    assert before == after
    assert before[0]["last"] == says


def test_more_ranks_than_batches_are_warned_of(catalog: sp.Catalog) -> None:
    with program(catalog) as stream:
        warnings = in_words(stream.bind(rank=0, world_size=1_000).explain())["warnings"]

    assert re.match(r"1 this rank gets no batch: \d+ batches do not make a step of all ranks", warnings[0])


def test_what_is_not_cached_is_named_with_what_would_build_it(tmp_path: Path) -> None:
    with program(make_catalog(tmp_path)) as stream:
        found = batch_of(stream)
        stream.materialize(lambda _: None)
        after = batch_of(stream)

    assert found["decided by"] == after["decided by"] == "len(tokens)"
    assert found["batches"] == (
        "unknown: len(tokens) decides, and is in no cache: stream.materialize(), or the asset that builds the token cache"
    )
    assert after["batches an epoch"] > 1


def test_lengths_of_a_stored_list_are_known_once_a_chapter_was_formed(tmp_path: Path) -> None:
    with program(make_catalog(tmp_path), stored=True) as stream:
        before = batch_of(stream)
        count = stream.count()
        after = batch_of(stream)

    assert (
        before["batches"] == "unknown: lengths of tokens are read once, by the first chapter: loop, or stream.count()"
    )
    assert after["batches an epoch"] == count


def test_functions_that_decide_are_not_called(catalog: sp.Catalog) -> None:
    def called(*_: Any) -> Any:
        pytest.fail("explain called a function of the plan")

    for late, name in (
        (lambda r: r.filter(called, columns=["text"]), "filter"),
        (
            lambda r: r.map(called, columns=["text"], name="score", returns=pa.float64()).filter(sp.col("score") > 0),
            "map",
        ),
    ):
        with program(catalog, late=late) as stream:
            found = batch_of(stream)
        assert re.match(rf"unknown: {name} .*called decides, and is in no cache", found["batches"].split(", len")[0]), (
            found
        )
        assert re.search(
            r"no cache holds what .*called decides: put .cache\(\) after its functions .*or keep it as a column of the relation",
            found["batches"],
        )


def test_filters_on_columns_and_lengths_after_sample_are_counted(catalog: sp.Catalog) -> None:
    with program(catalog, late=lambda r: r.filter(sp.len_("tokens") > 30)) as stream:
        found = batch_of(stream)
        list(stream)
        left = stream.metrics()["filtered"]

    assert operands(found["filtered after sample"]) == (left, 1_000)


def test_text_itself_is_not_looked_at(catalog: sp.Catalog) -> None:
    with program(catalog, late=lambda r: r.filter(sp.col("text") != "w1")) as stream:
        found = batch_of(stream)

    assert found["batches"] == "unknown: text decides, and is payload: keep what decides as a column of the relation"


def test_budgets_and_windows_that_do_not_fit_are_warned_of(catalog: sp.Catalog) -> None:
    def warnings(window_size: int, batch_size: int | None, max_tokens: int = 3_600) -> str:
        formation = bucketed(window_size, max_tokens)
        with program(catalog, formation=formation, composition=None, batch_size=batch_size) as stream:
            return "\n".join(in_words(stream.explain())["warnings"])

    assert re.search(r"batches leave \d+% of max_tokens=3,600 unused, since .* lower max_tokens", warnings(512, 8))
    assert re.search(
        r"a batch takes most of the window .*: give window_size of \d+ or more", warnings(64, None, 36_000)
    )


def test_a_fixed_count_of_a_mixture_counts_its_positions(catalog: sp.Catalog) -> None:
    order = sp.GlobalShuffle(3)
    fields = {"id": sp.List("sample_id")}
    docs = sp.mix([sp.Stream(name, catalog.table(name)) for name in ("fineweb", "code")])
    with docs.sample(identity="sample_id", order=order).collate(batch_size=50, fields=fields).to_numpy() as stream:
        found = batch_of(stream)

    assert (found["formation"], found["global batches an epoch"]) == ("fixed count of 50", 420 // 50)


def test_explain_says_how_many_chapters_would_be_formed_again_for_what_they_left(catalog: sp.Catalog) -> None:
    formation = sp.batching.Packed(max_tokens=128, window_size=4)
    with program(catalog, formation=formation, composition=None, batch_size=3, last=sp.DropPartial) as stream:
        lanes, span = stages_of(stream).batches.lanes, batches_of(stream).forming.span
        chapters = sum(lanes.chapter_count(lane, span) for lane in range(lanes.count))
        before = batch_of(stream)
        stream.count()
        after = batch_of(stream)

    said = (
        "at most 2 rows each, delivered at the lane's end; a run that resumes without their index forms {} chapters again "
        "for that"
    )
    assert before["chapters leave"] == said.format(chapters)
    assert after["chapters leave"] == said.format(0)
    assert after["rows dropped at the end"] == "at most 2 rows"
