import pytest

import spiral_stream as sp
from spiral_stream.planner.defaults import settled, tokenized
from tests.fixtures.texts import TOKENIZER, make_catalog, mixed


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("meaning"), {"a": 20, "b": 5})


def test_a_tokenize_knows_the_content_of_its_tokenizer(catalog: sp.Catalog) -> None:
    node = catalog.table("a").sample(order=sp.Sequential()).node
    made = [
        tokenized(node, sp.Tokenize("text", tokenizer=TOKENIZER, max_length=n) >> "t", catalog.registry)
        for n in (None, 8)
    ]

    assert made[0].digest != made[1].digest
    assert made[0].item_bytes == 2


def test_only_what_changes_batches_needs_a_formation(catalog: sp.Catalog) -> None:
    plain = catalog.table("a").sample(order=sp.Sequential())
    docs = mixed(catalog, {"a": 0.5, "b": 0.5}, 20).sample(order=sp.GlobalShuffle(seed=0))
    given = sp.WindowedBucket(window_size=5)

    assert settled(plain.node, None, None, None) is None
    assert settled(docs.node, None, None, None) is None
    assert settled(plain.node, given, None, None) is given
    assert settled(plain.with_columns(x=1).node, None, None, None) is None
    assert settled(plain.filter(sp.col("size") > 3).node, None, None, None) == sp.WindowedBucket(keys=())
    assert settled(docs.node, None, sp.batching.OneStream(), None) == sp.WindowedBucket(
        keys=(), composition=sp.batching.OneStream()
    )
    assert settled(docs.node, given, sp.StratifiedByStream(), None) == sp.WindowedBucket(
        window_size=5, composition=sp.StratifiedByStream()
    )


def test_what_is_neither_is_refused(catalog: sp.Catalog) -> None:
    node = catalog.table("a").sample(order=sp.Sequential()).node
    with pytest.raises(
        sp.errors.PlanError, match=r"Give WindowedBucket\(...\), Packed\(...\) or OneShape\(...\), or leave"
    ):
        settled(node, sp.batching.OneStream(), None, None)  # type: ignore[arg-type]  # refused
    with pytest.raises(
        sp.errors.PlanError, match=r"Give StratifiedByStream\(\"stream_id\"\) or OneStream\(\), or leave"
    ):
        settled(node, None, sp.WindowedBucket(), None)  # type: ignore[arg-type]  # refused
