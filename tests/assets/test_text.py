"""The text workflow: relations, tokenizer, token caches, statistics, the saved mixture, and a model that resumes."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import lance
import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as spiral
from spiral_assets.corpora.texts import write_text_relations
from spiral_assets.demo.killer import Killer
from spiral_assets.demo.proof import prove
from spiral_assets.plans import text as plans
from spiral_stream.transforms.text import splitting
from tests.assets.conftest import CHARACTERS, Place, built_on, copied, data_version, evaluations, metadata
from tests.fixtures.folded_pages import rows_of

RELATIONS = [f"catalog/text/{name}_documents" for name in plans.RELATIONS]
TOKENIZER = "tokenizers/llama_tokenizer"
CACHES = [f"caches/{name}_tokens" for name in plans.RELATIONS]
LENGTHS = "stats/text/token_lengths"
STREAM = "streams/text_pretraining"
PREPARED = (*RELATIONS, TOKENIZER, *CACHES, LENGTHS, STREAM)
MODEL = "models/text_lm"
STEPS = 30

# Dagster's own Pipes client uses a preview feature and a deprecated name of Dagster's; nothing here can avoid it.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Function `PipesMessageReader.expected_writer_count`"),
    pytest.mark.filterwarnings("ignore:AssetExecutionContext.run_id is deprecated"),
]


@pytest.fixture(autouse=True, scope="module")
def short_proofs() -> Iterator[None]:
    """Tokenizers are proven for code points up to CJK signs: all of them take five CPU seconds per tokenizer."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(splitting, "COVERED", (range(0x3100),))
        yield


@pytest.fixture(scope="module")
def prepared(
    short_proofs: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Place, dg.ExecuteInProcessResult]]:
    """Everything but the training, once; for tests that change no data."""
    with (
        dg.DagsterInstance.ephemeral() as instance,
        Place(tmp_path_factory.mktemp("prepared"), instance).named() as place,
    ):
        collected(place)
        yield place, place.run(*PREPARED)


def catalog(place: Place) -> spiral.Catalog:
    return spiral.connect(str(place.root / "catalog"))


def collected(place: Place) -> dict[str, lance.LanceDataset]:
    """The relations, before they are registered."""
    root = place.root / "data" / "texts"
    copied(root, "texts", "texts.json", lambda kept: write_text_relations(kept, CHARACTERS, progress=False))
    written = write_text_relations(root, CHARACTERS, progress=False)
    return {name: lance.dataset(uri) for name, uri in written.uris.items()}


def lengths(place: Place, stream: str) -> list[int]:
    """Tokens of every document, by the tokenizers library itself."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(place.root / "data" / "tokenizer" / "tokenizer.json"))
    texts = catalog(place).table(plans.RELATIONS[stream]).project("text").to_arrow()["text"].to_pylist()
    return [len(encoded.ids) for encoded in tokenizer.encode_batch(texts)]


def test_caches_hold_the_tokens_of_every_document_and_a_second_build_finds_nothing_to_do(
    prepared: tuple[Place, dg.ExecuteInProcessResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, result = prepared

    assert result.success
    unsure = {"explains_without_a_warning"}  # of the stream, as the demo's
    assert {name for name, each in evaluations(result).items() if not each.passed} == unsure
    assert catalog(place).tables() == sorted(plans.RELATIONS.values())
    tokenizer = metadata(result, TOKENIZER)
    assert tokenizer["digest"] == data_version(place, TOKENIZER) == catalog(place).tokenizer(plans.TOKENIZER).digest
    facts = metadata(result, LENGTHS)
    told = {row["stream"]: row for row in rows_of(facts["streams"])}
    for name, cache in zip(plans.RELATIONS, CACHES, strict=True):
        counted = lengths(place, name)
        built = metadata(result, cache)
        assert (built["rows_built"], built["dagster/row_count"], built["rows_refused"]) == (
            len(counted),
            len(counted),
            0,
        )
        assert built["form_of_text"] == "uint16"
        assert (told[name]["documents"], told[name]["tokens"]) == (len(counted), sum(counted))
        assert told[name]["above budget"] == sum(length > plans.BUDGET for length in counted)
        texts = collected(place)[name].to_table(columns=["text"])["text"].to_pylist()
        assert told[name]["empty"] == texts.count("")
    assert facts["tokens"] == sum(row["tokens"] for row in told.values())

    versions = [data_version(place, key) for key in (*RELATIONS, TOKENIZER, *CACHES, LENGTHS)]
    monkeypatch.setattr(spiral.report, "draw_bars", lambda *_, **__: "drawn the first time")
    again = place.run(*RELATIONS, TOKENIZER, *CACHES, LENGTHS)
    assert [metadata(again, cache)["rows_built"] for cache in CACHES] == [0, 0, 0]
    assert [data_version(place, key) for key in (*RELATIONS, TOKENIZER, *CACHES, LENGTHS)] == versions


@pytest.mark.slow
def test_changed_text_is_tokenized_again_and_a_changed_tokenizer_changes_every_cache(place: Place) -> None:
    found = collected(place)
    place.run(*RELATIONS, TOKENIZER, *CACHES)
    versions = {cache: data_version(place, cache) for cache in CACHES}
    found["code"].delete("storage_shard = 'part-0000'")
    left = found["code"].count_rows()

    place.run(*RELATIONS)
    result = place.run(*CACHES)
    rows = [metadata(result, cache)["rows_built"] for cache in CACHES]
    assert rows == [0, 0, 0]  # what is left was built before
    assert metadata(result, CACHES[2])["dagster/row_count"] == left
    assert [data_version(place, cache) == versions[cache] for cache in CACHES] == [True, True, False]

    assert place.run(TOKENIZER).success  # trained on less
    rebuilt = place.run(*CACHES)
    assert all(
        metadata(rebuilt, cache)["rows_built"] == metadata(rebuilt, cache)["dagster/row_count"] for cache in CACHES
    )
    assert not any(data_version(place, cache) == versions[cache] for cache in CACHES)


def test_unsound_text_fails_its_check_that_blocks_what_is_built_on_it(place: Place) -> None:
    found = collected(place)["wikipedia"]
    found.insert(found.take([4]))

    (failed,) = [each for each in evaluations(place.run(RELATIONS[1])).values() if not each.passed]

    assert failed.check_name == "identity_is_unique"
    assert failed.blocking
    assert {"caches__wikipedia_tokens", "tokenizers__llama_tokenizer"} <= built_on(place, failed.asset_key)


def test_a_column_of_another_type_is_named(place: Place) -> None:
    collected(place)["code"].alter_columns({"path": "token_count_estimate", "data_type": pa.int64()})

    said = evaluations(place.run(RELATIONS[2]))["schema_is_as_declared"]

    assert not said.passed
    assert "token_count_estimate is int64, declared int32" in (said.description or "")


def test_the_mixture_is_saved_explained_and_read_from_the_caches(
    prepared: tuple[Place, dg.ExecuteInProcessResult],
) -> None:
    place, result = prepared
    facts = metadata(result, STREAM)

    assert catalog(place).streams() == [plans.TRAIN]
    counts: Counter[str] = Counter()
    with catalog(place).open_stream(plans.TRAIN, device="cpu", epoch=0) as stream:
        assert facts["fingerprint"] == stream.fingerprint
        for batch in stream:
            counts.update(batch["stream_id"])
            rows, width = batch["input_ids"].shape
            assert width % plans.MULTIPLE == 0
            assert rows * width <= plans.BUDGET
            assert batch["attention_mask"].shape == batch["labels"].shape == (rows, width)
            real = batch["attention_mask"].sum(1).numpy()
            told = (batch["labels"] != -100).sum(1).numpy()
            np.testing.assert_array_equal(told, real - 1)
        assert stream.metrics()["cache_hit_rate"] == 1.0
    emitted = sum(counts.values())
    for name, proportion in plans.PROPORTIONS.items():
        assert abs(counts[name] - proportion * emitted) <= plans.BUDGET / plans.MULTIPLE  # less a dropped last batch
    for said in ("MIX", *plans.PROPORTIONS, "tokens"):
        assert said in facts["explain"]


@pytest.mark.slow  # test_training kills one by default
def test_a_killed_process_is_retried_and_goes_on_at_the_exact_next_batch(place: Place) -> None:
    collected(place)
    assert place.run(*PREPARED).success
    run_id = "11111111-2222-3333-4444-666666666666"
    ledger = place.root / "data" / "checkpoints" / run_id / "text_lm" / "ledger.jsonl"
    killer = Killer(ledger)
    watching = threading.Thread(target=killer.watch, daemon=True)
    watching.start()

    config = {"models__text_lm": {"config": {"steps": STEPS, "save_every": 4}}}
    result = place.run(MODEL, ops=config, run_id=run_id)

    killer.stop()
    watching.join(10)
    assert killer.killed is not None
    assert result.success
    proof = prove(str(place.root / "catalog"), ledger, plans.TRAIN, STEPS)
    assert proof.exact
    assert (proof.processes, proof.expected, proof.repeated_alike) == (2, STEPS, proof.repeated)
    assert proof.resumed_at > (0, 0)
    facts = metadata(result, MODEL)
    assert facts["processes"] == 2
    assert (facts["steps"], facts["tokens_per_s"] > 0) == (STEPS, True)
    assert facts["progress"][-1]["step"] == STEPS
    assert evaluations(result)["beats_chance"].severity.value == "WARN"
    assert facts["loss"] < facts["chance"]
    result_file = json.loads((Path(facts["checkpoint"]) / "result.json").read_text())
    assert result_file["final_cursor"] == facts["final_cursor"]
