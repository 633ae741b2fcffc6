from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.explain.batch import tokens
from spiral_stream.explain.batch.tokens import counting_column
from tests.fixtures.texts import SMALL_PLANS
from tests.stream.explain.mixtures import QUALITY, SIZES, make_catalog, program
from tests.stream.explain.words import in_words

pytestmark = SMALL_PLANS


def mix_of(catalog: sp.Catalog, **options: Any) -> Any:
    with program(catalog, **options) as stream:
        return in_words(stream.explain())["mix"]


def test_the_first_numeric_column_that_is_named_after_tokens_counts_them() -> None:
    schema = pa.schema({"tokens": pa.list_(pa.int32()), "tokenizer": pa.string(), "n_tokens": pa.int32()})

    assert counting_column(schema) == "n_tokens"
    assert counting_column(pa.schema({"size": pa.int32()})) is None


def test_many_rows_are_estimated_from_evenly_spaced_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = make_catalog(tmp_path)
    with program(catalog) as stream:
        stream.materialize(lambda _: None)
    exact = mix_of(catalog, shares=dict.fromkeys(SIZES), epoch_size=None)["streams"]
    monkeypatch.setattr(tokens, "ALL_ROWS", 50)
    monkeypatch.setattr(tokens, "RUNS", 4)
    monkeypatch.setattr(tokens, "RUN_ROWS", 10)
    some = mix_of(catalog, shares=dict.fromkeys(SIZES), epoch_size=None)["streams"]

    for row, estimate, name in zip(exact, some, SIZES, strict=True):
        lengths = [len(each) for each in catalog.table(name).filter(QUALITY).to_arrow()["tokens"].to_pylist()]
        assert row["tokens a row"] == f"{np.mean(lengths):,.1f}"
        starts = np.linspace(0, len(lengths) - 10, 4).astype(int)
        read = [lengths[start + at] for start in starts for at in range(10)]
        assert estimate["tokens a row"] == f"~{np.mean(read):,.1f}"


def test_lengths_of_stored_tokens_are_known_once_a_chapter_was_formed(tmp_path: Path) -> None:
    catalog = make_catalog(tmp_path)
    assert mix_of(catalog, stored=True)["share of tokens"] == "unknown: materialize the token cache"
    with program(catalog, stored=True) as stream:
        stream.count()
    assert mix_of(catalog, stored=True)["tokens from"] == "lengths of tokens"
