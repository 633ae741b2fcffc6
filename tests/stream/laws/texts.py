"""Subjects of texts and mixtures: drawn plans of every formation, shares that move, streams in turn, packed columns."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.testing import MakeStream
from tests.fixtures import chats, compositions, drawn_streams, legs, packed_columns, schedules
from tests.fixtures.texts import make_catalog
from tests.stream.laws.subject import Subject


def documents(folder: Path) -> sp.Catalog:
    """Four small relations, of documents of at least one token."""
    return make_catalog(folder, legs.SIZES, shortest=1)


PLANS: Final = Subject(
    "text",
    drawn_streams.catalogs,
    st.tuples(drawn_streams.plans(), st.integers(0, 1)),
    lambda shelf, drawn: lambda: drawn[0].make(shelf, epoch=drawn[1]),
    shared=lambda drawn: drawn[0].counted,
    by_day=2,
    by_night=125,
)

NARROW: Final = Subject(
    "text, ids of uint16",
    drawn_streams.catalogs,
    st.tuples(drawn_streams.plans().map(lambda drawn: replace(drawn, narrow=True)), st.integers(0, 1)),
    lambda shelf, drawn: lambda: drawn[0].make(shelf, epoch=drawn[1]),
    shared=lambda drawn: drawn[0].counted,
    by_night=25,
)

_BUCKETS: Final = {
    "formation": sp.WindowedBucket(window_size=64, keys=[sp.BucketKey("len(tokens)")]),
    "composition": sp.StratifiedByStream("stream_id"),
}


def _scheduled(catalog: sp.Catalog, drawn: Any) -> MakeStream:
    options, epoch = drawn
    return lambda: schedules.prepared(schedules.scheduled(catalog, size=1_000), **options).bind(epoch=epoch)


SCHEDULED: Final = [
    Subject(f"a schedule, {name}", documents, st.tuples(st.just(options), st.sampled_from([7, 0, 1, 2])), _scheduled)
    for name, options in (("fixed batches", {}), ("stratified buckets", _BUCKETS))
]


def _in_turn(catalog: sp.Catalog, drawn: Any) -> MakeStream:
    repeat, choose = drawn
    first = sp.Stream("b", catalog.table("b"), repeat=repeat)
    sampled = sp.concat([first, sp.Stream("a", catalog.table("a"), choose=choose)]).sample(order=sp.GlobalShuffle(1))
    fields = {"id": sp.List("sample_id"), "stream_id": sp.List("stream_id")}
    return sampled.collate(batch_size=8, last=sp.KeepPartial, fields=fields).to_numpy


IN_TURN: Final = Subject("streams in turn", documents, st.tuples(st.integers(1, 2), st.integers(20, 70)), _in_turn)


# ---- how streams share batches


def _steps(catalog: sp.Catalog, last: Any) -> MakeStream:
    formation = sp.WindowedBucket(window_size=80, keys=[sp.BucketKey("size")])
    options = {"formation": formation, "last": last, **compositions.FOUR}
    return lambda: compositions.prepared(catalog, compositions.TWO, 600, **options)


def _small_window(catalog: sp.Catalog, size: int) -> MakeStream:
    return lambda: compositions.stratified(catalog, 96, size=size, last=sp.KeepPartial)


COMPOSED: Final = [
    *(
        Subject(f"steps of one stream, {last.__name__}", compositions.make_catalog, st.just(last), _steps, by_night=10)
        for last in (sp.KeepPartial, sp.batching.PadPartial)
    ),
    Subject("shares in a small window", compositions.make_catalog, st.just(2_000), _small_window, by_night=10),
]


# ---- columns that are packed together


def _packed(catalog: sp.Catalog, drawn: Any) -> MakeStream:
    name, own = drawn
    return packed_columns.plan(catalog, name, sp.batching.Packed(**own)).to_numpy  # type: ignore[no-any-return]


PACKED: Final = Subject(
    "packed columns", packed_columns.make_catalog, packed_columns.policies(), _packed, by_day=2, by_night=60
)

# ---- conversations


def _chats(folder: Path) -> sp.Relation:
    catalog = chats.catalog_of(folder, chats.table(chats.conversations(24)))
    sampled = catalog.table("chats").sample(identity="sample_id", order=sp.GlobalShuffle(seed=1))
    mapped = sampled.map(sp.transforms.ChatTemplate("messages", tokenizer="chat") >> ("tokens", "loss_mask"))
    with _collated(mapped, None) as stream:
        stream.materialize()
    return mapped


def _collated(mapped: sp.Relation, formation: Any) -> sp.PreparedStream:
    fields = {
        "input_ids": sp.Pad("tokens", pad_value=-1),
        "loss_mask": sp.Pad("loss_mask"),
        "labels": sp.fields.Labels("tokens", mask="loss_mask"),
        "sample_id": sp.List("sample_id"),
    }
    return mapped.collate(formation=formation, batch_size=2, last=sp.DropPartial(), fields=fields).to_numpy()


CHATS: Final = [
    Subject(name, _chats, st.just(formation), lambda mapped, formed: lambda: _collated(mapped, formed), by_night=10)
    for name, formation in (("chats", None), ("packed chats", sp.batching.Packed(max_tokens=256)))
]

SUBJECTS: Final = (PLANS, NARROW, *SCHEDULED, IN_TURN, *COMPOSED, PACKED, *CHATS)
