"""Where fields are made, what is cached, and what a state is."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import spiral_stream as sp
from spiral_stream.explain import materialize
from tests.fixtures.texts import SMALL_PLANS
from tests.stream.explain.mixtures import bucketed, make_catalog, program
from tests.stream.explain.words import in_words

pytestmark = SMALL_PLANS
TOKENS = sp.Tokenize("text", tokenizer="words") >> "tokens"


@pytest.fixture
def catalog(tmp_path: Path) -> sp.Catalog:
    return make_catalog(tmp_path)


def test_a_token_column_says_where_it_is_made_and_how_far_it_is_built(catalog: sp.Catalog) -> None:
    with program(catalog) as stream:
        before = in_words(stream.explain())
        stream.materialize(lambda _: None)
        after = in_words(stream.explain())
        list(stream)
        measured = in_words(stream.explain(analyze=True))

    rows = [each["materialize"]["fields"] for each in (before, after, measured)]
    assert [row["field"] for row in rows[0]] == ["tokens", "ids", "mask", "sample_id", "stream_id"]
    assert rows[0][0]["where"] == "before membership: it decides, window by window"
    assert rows[1][0]["where"] == "after membership: its lengths decide, from the cache"
    assert [each[0]["built"] for each in rows] == ["0% (0/400)", "100% (400/400)", "100% (400/400)"]
    assert [each[0]["hit"] for each in rows] == ["-", "-", "! 100.0%"]
    assert rows[0][0]["out/sample"] == "2 a token"
    assert rows[0][1]["where"] == "in Collate, one pass over tokens; the host (chosen)"
    assert rows[0][1]["out/sample"] == "8 a token"
    assert before["materialize"]["tokenizer of tokens"].startswith("words sha256:")
    assert any("400 of 400 rows are in no cache" in line for line in before["warnings"])
    assert not any("in no cache" in line for line in after["warnings"])


def shared(catalog: sp.Catalog) -> sp.PreparedStream:
    """Five streams of two relations, so of two caches."""
    relations = [*["code"] * 4, "wikipedia"]
    parts = [sp.Stream(f"s{i}", catalog.table(name), proportion=0.2) for i, name in enumerate(relations)]
    tokens = sp.mix(parts, epoch_size=200).sample(order=sp.GlobalShuffle(seed=3)).map(TOKENS)
    return tokens.collate(batch_size=4, fields={"ids": sp.Pad("tokens")}).to_numpy()


def test_each_stream_of_a_mixture_names_its_cache(catalog: sp.Catalog) -> None:
    with program(catalog) as stream:
        statuses = {cache.relation: cache.fingerprint[:8] for cache in stream.caches()}
        facts = in_words(stream.explain())["materialize"]

    assert facts["fields"][0]["cache"] == "3 caches, named above"
    assert len(set(statuses.values())) == 3
    for name, fingerprint in statuses.items():
        assert facts[f"tokens of {name}"].startswith(f"tokens {fingerprint}, 0% (0/")


def test_streams_that_share_a_cache_share_its_line(catalog: sp.Catalog) -> None:
    with shared(catalog) as stream:
        facts = in_words(stream.explain())["materialize"]
        stream.materialize(lambda _: None)
        after = in_words(stream.explain())["materialize"]

    lines = {name: text.partition(", ")[2] for name, text in facts.items() if name.startswith("tokens of ")}
    assert lines == {"tokens of s0, s1, s2 and 1 more": "0% (0/480)", "tokens of s4": "0% (0/80)"}
    assert after["tokens of s4"].endswith("100% (80/80)")


def test_a_mixture_of_many_caches_is_told_shortly(catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(materialize, "CACHES", 1)
    with program(catalog) as stream:
        facts = in_words(stream.explain())["materialize"]

    assert [name for name in facts if name.startswith("tokens of ")] == ["tokens of fineweb", "tokens of 2 more"]
    assert facts["tokens of 2 more"].startswith("2 other caches, 0% (0/")


def test_streams_of_one_cache_need_no_lines(catalog: sp.Catalog) -> None:
    tokens = catalog.table("code").sample(order=sp.Sequential()).map(TOKENS)
    with tokens.collate(batch_size=4, fields={"ids": sp.Pad("tokens")}).to_numpy() as stream:
        (cache,) = stream.caches()
        facts = in_words(stream.explain())["materialize"]

    assert facts["fields"][0]["cache"] == f"tokens {cache.fingerprint[:8]}"
    assert not any(name.startswith("tokens of ") for name in facts)


def test_tokens_of_computed_text_are_in_no_cache(catalog: sp.Catalog) -> None:
    def upper(texts: pa.Array) -> pa.Array:
        return pc.utf8_upper(texts)

    docs = catalog.table("code").sample(order=sp.Sequential())
    late = docs.map(upper, columns=["text"], name="loud", returns=pa.utf8())
    tokens = late.map(sp.Tokenize("loud", tokenizer="words") >> "tokens")
    plan = tokens.collate(batch_size=4, fields={"ids": sp.Pad("tokens"), "loud": sp.List("loud")})
    with plan.to_numpy() as stream:
        rows = in_words(stream.explain())["materialize"]["fields"]

    assert rows[0]["where"] == "after membership; loud is computed"
    assert rows[0]["cache"] == "none: of no relation"
    assert (rows[1]["field"], rows[1]["where"]) == ("loud", "after membership")


def test_explaining_changes_nothing_that_the_stream_counts(catalog: sp.Catalog) -> None:
    with program(catalog) as stream:
        stream.materialize(lambda _: None)
        stream.explain()

        counted = stream.metrics()
        assert not any(counted.pop("stages").values())
        assert not any(counted.pop("network").values())
        assert {name: value for name, value in counted.items() if value} == {
            "bound_by": "unknown: nothing was delivered yet. Loop over some batches first"
        }
        assert stream.state_dict()["batch"] == 0


@pytest.mark.parametrize("lanes", [1, 3])
def test_the_state_is_as_large_as_said(catalog: sp.Catalog, lanes: int) -> None:
    with program(catalog, lanes=lanes) as stream:
        stream.materialize(lambda _: None)
        iterator = iter(stream)
        next(iterator)
        iterator.close()
        resume = in_words(stream.explain())["resume"]
        size = len(json.dumps(stream.state_dict()))

    said = int(resume["state"].split(" bytes")[0].replace(",", ""))
    assert said == pytest.approx(size, abs=8)  # the numbers of a later place have more digits
    assert "64 windows" in resume["unit"]
    assert "metadata alone, no payload" in resume["reposition"]


def test_coming_back_without_a_cache_says_what_is_computed_again(catalog: sp.Catalog) -> None:
    with program(catalog) as stream:
        resume = in_words(stream.explain())["resume"]

    assert "len(tokens) again for up to 8,192 samples" in resume["reposition"]


def test_the_bytes_of_a_batch_are_those_of_a_full_budget(catalog: sp.Catalog) -> None:
    with program(catalog) as stream:
        padded = in_words(stream.explain())["deliver"]
    with program(catalog, formation=sp.batching.Packed(128, window_size=64), composition=None, batch_size=4) as stream:
        packed = in_words(stream.explain())["deliver"]
    with program(catalog, formation=bucketed(max_tokens=1 << 40), prefetch=4_000) as stream:
        warnings = in_words(stream.explain())["warnings"]

    told = " and unknown: sample_id, stream_id (how many samples a batch has shows when it is formed"
    assert padded["bytes a batch"].startswith(f"at most {1_000 * 16:,}{told}")
    assert packed["bytes a batch"].startswith(f"at most {4 * 128 * 16:,}{told}")
    assert any("GiB of host memory. Lower prefetch or max_tokens or batch_size" in line for line in warnings)
