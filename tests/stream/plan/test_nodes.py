# ruff: noqa: E501, Q000  one case a line, so that messages can be read below each other
"""Every verb refuses what it cannot be, and says the verb, the column, near names and the way out."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from spiral_stream import Arrow, Catalog, List, Raw, Relation, RuntimeParam, Sequential, Stack, Stream, col, lit, mix
from spiral_stream.errors import PlanError
from spiral_stream.plan import combining, nodes
from tests.fixtures import verbs
from tests.fixtures.programs import image_catalog, image_fields, image_transforms

Make = Callable[["World"], Any]
ORDER: dict[str, Any] = {"identity": "id", "order": Sequential()}
BATCH: dict[str, Any] = {"batch_size": 4, "fields": {"id": List("id")}}


class World:
    """Relations to misuse."""

    def __init__(self, catalog: Catalog, images: Catalog, elsewhere: Catalog) -> None:
        self.t = catalog.table("lance")
        self.u = catalog.table("u").project("k", "name", "w")
        self.f = catalog.table("f").project("k", "v")
        self.lists = catalog.table("lists")
        self.images = images.table("vision.imagenet_train")
        images.register("ids", Arrow(self.images.project("sample_id", "label_id").to_arrow()))
        self.ids = images.table("ids")
        self.other = elsewhere.table("u")
        self.catalog = catalog
        self.sampled = self.t.sample(**ORDER)
        self.collated = self.sampled.collate(**BATCH)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    catalog = verbs.make_catalog(tmp_path_factory.mktemp("nodes"))
    table = pa.table({"sample_id": ["a", "b"], "li": pa.array([[1], None], pa.list_(pa.int32())), "x": [1.0, 2.0]})
    catalog.register("lists", Arrow(table))
    elsewhere = verbs.make_catalog(tmp_path_factory.mktemp("elsewhere"))
    return World(catalog, image_catalog(tmp_path_factory.mktemp("images")), elsewhere)


REFUSED: dict[str, tuple[Make, str]] = {
    # filter
    "no such column": (lambda w: w.t.filter(col("payloa") == b""), "filter: .*'payloa' is not a column. Did you mean 'payload'"),
    "wrong type of constant": (lambda w: w.t.filter(col("k") == "a"), "filter: .*'k' is int64, compared with 'a'. Compare it with a number"),
    "not a condition": (lambda w: w.t.filter(col("k") + 1), r'filter: the predicate is int64, not bool. Compare it.*col\("x"\) > 0'),
    "text that is no condition": (lambda w: w.t.filter("k >"), "filter: 'k >': syntax error .* Write a condition"),
    "a Python condition": (lambda w: w.t.filter(len), "filter: .*is a function, not an expression. Write one with col"),
    "a truth value": (lambda w: w.t.filter(True), "filter: True is a bool, not an expression"),
    # project, with_columns
    "unknown projected": (lambda w: w.t.project("idd"), "project: 'idd' is not a column of the input; did you mean 'id'"),
    "nothing projected": (lambda w: w.t.project(), "project: no columns. Name at least one of id, k, g"),
    "unnamed expression": (lambda w: w.t.project(col("k") + 1), r'project: k \+ 1 has no name. Write .project\(name=k \+ 1\)'),
    "projected twice": (lambda w: w.t.project("id", "id"), "project: two columns would be called 'id'. Give one of them another"),
    "projected and computed": (lambda w: w.t.project("id", id=col("g")), "project: two columns would be called 'id'"),
    "computed from unknown": (lambda w: w.t.with_columns(y=col("kk") + 1), r"with_columns \(y\): .*Did you mean 'k'"),
    "a constant without type": (lambda w: w.t.with_columns(y=None), r"with_columns \(y\): .*None has no type of its own. Use a column"),
    # join
    "no keys": (lambda w: w.t.join(w.u), "join: no keys. Give on=..., or left_on=... and right_on=..."),
    "unknown left key": (lambda w: w.t.join(w.u, on="name"), r"join \(left side\): 'name' is not a column of the input"),
    "unknown right key": (lambda w: w.t.join(w.u, left_on="k", right_on="nam"), r"join \(right side\): 'nam' .*did you mean 'name'"),
    "unequal numbers of keys": (lambda w: w.t.join(w.u, left_on=["k", "g"], right_on="k"), "2 left keys and 1 right keys. Give the same number"),
    "key types, one widens": (lambda w: w.t.join(w.u, left_on="k", right_on="w"), r'Cast the right one first: .with_columns\(w=col\("w"\).cast\("int64"\)\)'),
    "key types, other side": (lambda w: w.u.join(w.t.project("k"), left_on="w", right_on="k"), r'Cast the left one first: .with_columns\(w='),
    "key types, none widens": (lambda w: w.t.join(w.u, left_on="g", right_on="w"), "'g' is string on the left and 'w' is int32 on the right. Join on columns of one type"),
    "keys without equality": (lambda w: w.lists.join(w.lists, on="li"), "Join on columns of one type: numbers, text or times"),
    "kind of join": (lambda w: w.t.join(w.u, on="k", how="outer"), "how='outer' is unknown; it is one of inner, left, semi, anti"),
    "names that clash": (lambda w: w.t.join(w.u, on="k").join(w.u.project("k", "name"), on="k").join(w.u.project("k", "name"), on="k"), "two columns would be called 'name_right'. Give another suffix"),
    "a name for a relation": (lambda w: w.t.join("u", on="k"), r"join: 'u' is a str. Give a relation, for example catalog.table"),
    "another catalog": (lambda w: w.t.join(w.other, on="k"), "join: the relations belong to two catalogs, .*. Register both in one"),
    # aggregate, distinct, sort, limit, union
    "unknown function": (lambda w: w.t.group_by("k").aggregate(a=("x", "median")), r"aggregate \(a\): 'median' is unknown; there are count, "),
    "unknown measured": (lambda w: w.t.group_by("k").aggregate(a=("xx", "sum")), r"aggregate \(a\): 'xx' .*did you mean 'x'"),
    "unknown group": (lambda w: w.t.group_by("kk").aggregate(a=("x", "sum")), "group_by: 'kk' .*did you mean 'k'"),
    "sum of text": (lambda w: w.t.aggregate(a=("g", "sum")), r"aggregate \(a\): sum of 'g', which is string; it takes numbers. Use count"),
    "least of lists": (lambda w: w.lists.aggregate(a=("li", "min")), r"aggregate \(a\): 'li' is list<.*>, which has no order"),
    "a measure's name": (lambda w: w.t.group_by("k").aggregate(k=("x", "sum")), "aggregate: two columns would be called 'k'. Give the measure another name"),
    "a measure's form": (lambda w: w.t.aggregate(a="x"), r"aggregate \(a\): 'x'. Give \(column, function\), for example a=\(\"x\", \"sum\"\)"),
    "no measure": (lambda w: w.t.group_by("k").aggregate(), "aggregate: nothing to measure. Give name="),
    "unknown distinct": (lambda w: w.t.distinct("gg"), "distinct: 'gg' .*did you mean 'g'"),
    "distinct payload": (lambda w: w.images.distinct(), "distinct: 'image_ref' is image/jpeg-ref, so comparing it would read all payload. Name other"),
    "distinct lists": (lambda w: w.lists.distinct("li"), "distinct: 'li' is list<.*>, which has no order. Name columns of numbers, text"),
    "sort by nothing": (lambda w: w.t.sort(), "sort: no columns. Name at least one of id"),
    "sort by unknown": (lambda w: w.t.sort("idd"), "sort: 'idd' .*did you mean 'id'"),
    "limit of nothing": (lambda w: w.t.limit(0), "limit: count=0. Give an integer of at least 1"),
    "limit of a part": (lambda w: w.t.limit(2.5), "limit: count=2.5. Give an integer of at least 1"),
    "unlike parts": (lambda w: w.t.union(w.u), "union: columns differ: .*the first alone has id string.*. Project both alike"),
    # cache
    "cache of unknown": (lambda w: w.images.cache(image_re=Raw()), "cache: 'image_re' .*did you mean 'image_ref'"),
    "cache of no payload": (lambda w: w.images.cache(label_id=Raw()), "cache: 'label_id' is int64, no reference to payload; .* Cache image_ref, or leave it out$"),
    "cache of text": (lambda w: w.t.cache(id=Raw()), r"cache: 'id' is string, no reference .* Leave cache out, or, if its values name or hold images"),
    "no profile": (lambda w: w.images.cache(image_ref="raw"), r"cache: 'image_ref' is given 'raw'. Give Original\(\), Raw\("),
    # sample
    "two samples": (lambda w: w.sampled.sample(**ORDER), "sample: follows sample; a plan samples once, after its relational work and before collate"),
    "sample after collate": (lambda w: w.collated.sample(**ORDER), "sample: follows collate; a plan samples once"),
    "project after sample": (lambda w: w.sampled.project("k"), "project: follows sample; relational work comes before sample"),
    "project after collate": (lambda w: w.collated.project("id"), "project: follows collate; relational work comes before sample"),
    "sort after sample": (lambda w: w.sampled.sort("k"), "sort: follows sample; relational work comes before sample"),
    "join of samples": (lambda w: w.u.join(w.sampled, on="k"), r"join \(right side\): follows sample; relational work comes before sample"),
    "union of samples": (lambda w: w.t.union(w.sampled), "union: follows sample"),
    "unknown identity": (lambda w: w.t.sample(identity="idd", order=Sequential()), r"sample \(identity\): 'idd' .*did you mean 'id'"),
    "identity projected away": (lambda w: w.t.project("k").sample(order=Sequential()), r"sample \(identity\): 'id' is not a column of the input; it has k"),
    "no identity": (lambda w: w.t.sample(identity=[], order=Sequential()), "sample: no identity column. Name one or several of id"),
    "identity of floats": (lambda w: w.t.sample(identity="x", order=Sequential()), "sample: identity 'x' is double. Name a column of text, integers or bytes"),
    "an order's class": (lambda w: w.t.sample(identity="id", order=Sequential), r"is not an order. Give ShardAwareShuffle\(seed=...\)"),
    "another parameter's name": (lambda w: w.t.sample(**ORDER, epoch=RuntimeParam("rank")), r'sample: epoch=.*. Give RuntimeParam\("epoch"\)'),
    "epoch below zero": (lambda w: w.t.sample(**ORDER, epoch=-1), "sample: epoch=-1. Give an integer of at least 0"),
    "assignment": (lambda w: w.t.sample(**ORDER, assignment=3), r"sample: assignment=3. Give DataParallel\("),
    "the order of storage of a mixture": (lambda w: mix([Stream("a", w.t), Stream("b", w.t)]).sample(**ORDER), r"Sequential goes through the rows as they lie, and a mixture draws .* Take concat\(\[...\]\), which keeps each stream's order"),
    "a sorted stream of a mixture": (lambda w: mix([Stream("a", w.t), Stream("b", w.t.sort("k"))]).sample(**ORDER), r"a mixture draws .* so sort\(k\) would be ignored. Sort and sample one relation without mix"),
    "sample of one group": (lambda w: w.t.aggregate(n=("x", "count")).sample(order=Sequential()), r"sample: aggregate without group_by makes one row, which has no key.*sample\(identity="),
    "sample of a query": (lambda w: w.catalog.sql("select * from lance").sample(order=Sequential()), r"sample: the rows of SQL text have no identity.*sample\(identity="),
    "union of other identities": (lambda w: w.u.project("k").union(w.t.group_by("k").aggregate(n=("x", "count")).project("k")).sample(order=Sequential()), "the sides of the union have no identity in common. Name columns"),
    "union of a mixture": (lambda w: w.t.union(mix([Stream("a", w.t)]).project(*w.t.schema.names)), "union: its input is a mixture, which has no rows of its own. Write union inside the streams"),
    "groups of a mixture": (lambda w: mix([Stream("a", w.t)]).group_by("k").aggregate(n=("x", "count")), "aggregate: its input is a mixture.* Write aggregate inside the streams"),
    # collate, deliver
    "collate without sample": (lambda w: w.t.collate(**BATCH), r"collate: follows scan. Call .sample\(identity=..., order=...\) before it, once"),
    "two collates": (lambda w: w.collated.collate(**BATCH), "collate: follows collate. Call .sample"),
    "batch_size": (lambda w: w.sampled.collate(batch_size=0, fields=BATCH["fields"]), "collate: batch_size=0. Give an integer of at least 1"),
    "batch_size of a part": (lambda w: w.sampled.collate(batch_size=4.0, fields=BATCH["fields"]), "collate: batch_size=4.0. Give an integer"),
    "no fields": (lambda w: w.sampled.collate(batch_size=4, fields={}), "collate: no fields. Name at least one"),
    "a list of fields": (lambda w: w.sampled.collate(batch_size=4, fields=["id"]), "collate: fields=.*. Give a dict of name -> field"),
    "unknown column of a field": (lambda w: w.sampled.collate(batch_size=4, fields={"a": List("idd")}), r"collate \(field 'a'\): 'idd' .*did you mean 'id'"),
    "a name for a field": (lambda w: w.sampled.collate(batch_size=4, fields={"a": "id"}), r'collate: field \'a\' is \'id\'. Give Stack\("id"\) or List\("id"\)'),
    "text stacked": (lambda w: w.sampled.collate(batch_size=4, fields={"a": Stack("g")}), r'collate: field \'a\': .*the column is string.*Use List\("g"\)'),
    "unknown dtype": (lambda w: w.sampled.collate(batch_size=4, fields={"a": Stack("k", dtype="int65")}), "dtype='int65' is unknown; it is one of bool, uint8"),
    "numbers decoded": (lambda w: w.sampled.collate(batch_size=4, fields={"a": Stack("k", decode="jpeg")}), "field 'a': decode='jpeg' needs a column of type image/jpeg-ref; 'k' is int64. Register it with semantic="),
    "unknown decoder": (lambda w: w.images.sample(order=Sequential()).collate(batch_size=4, fields={"a": Stack("image_ref", decode="jpg")}), "field 'a': decode: 'jpg' is unknown; known are jpeg, image, h264, audio. Did you mean 'jpeg'"),
    "unknown decoder of numbers": (lambda w: w.sampled.collate(batch_size=4, fields={"a": Stack("k", decode="nope")}), "field 'a': decode: 'nope' is unknown; known are jpeg, image, h264, audio. Give one of them"),
    "normalized bytes": (lambda w: w.images.sample(order=Sequential()).collate(batch_size=4, fields={"a": Stack("image_ref", decode="jpeg", dtype="uint8", transforms=image_transforms())}), "field 'a': images: Normalize has no place in uint8. Ask for dtype float16"),
    "images as values": (lambda w: w.images.sample(order=Sequential()).collate(batch_size=4, fields={"a": Stack("image_ref")}), r'field \'a\': .*Say how to read them: decode="jpeg"'),
    "images by another name": (lambda w: w.images.project("sample_id", img=col("image_ref")).sample(order=Sequential()).collate(batch_size=4, fields={"a": Stack("img", decode="jpeg")}), r"it is 'image_ref' of 'vision.imagenet_train' by another name. Keep that name: Stack\('image_ref'"),
    "tail rule": (lambda w: w.sampled.collate(**BATCH, last="drop"), "collate: last is 'drop'. Give DropPartial, KeepPartial or PadPartial"),
    "prefetch": (lambda w: w.collated.to_numpy(prefetch=0), "to_numpy: prefetch=0. Give an integer of at least 1"),
    "delivered too early": (lambda w: w.sampled.to_numpy(), r"to_numpy: follows sample; a stream needs .sample\(...\) and .collate\(...\) before it"),
    "collected too late": (lambda w: w.sampled.to_arrow(), "to_arrow: it comes after sample. Call it before sample, or iterate the stream"),
    "saved too early": (lambda w: w.catalog.save_stream("s", w.sampled), "this plan has no .to_torch"),
    "saved by name": (lambda w: w.catalog.save_stream("s", "other"), "save_stream 's': 'other' is a str. Give a stream, or the plan of one"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_verb_cannot_be_is_refused_with_the_way_out(world: World, case: str) -> None:
    make, message = REFUSED[case]

    with pytest.raises(PlanError, match=message):
        make(world)


def test_a_plan_is_frozen_and_its_verbs_return_new_ones(world: World) -> None:
    before = world.t.fingerprint
    longer = world.t.filter(col("k") > 1).limit(3)

    assert world.t.fingerprint == before
    assert [each.node.VERB for each in (world.t, longer)] == ["scan", "limit"]
    with pytest.raises(AttributeError):
        world.t.node.relation = "other"  # type: ignore[misc, union-attr]  # what must fail


def schema(relation: Relation) -> list[tuple[str, str, bool]]:
    return [(field.name, str(field.type), field.nullable) for field in relation.schema]


def test_a_verbs_schema_is_that_of_its_rows(world: World) -> None:
    left = world.t.project("id", "k").join(world.u.project("k", "w"), on="k", how="left")
    grouped = world.t.group_by("g").aggregate(n=("id", "count"), s=("x", "sum"), m=("k", "max"), a=("k", "avg"))
    together = world.t.project("id").union(world.t.project(id=col("g")))

    assert schema(left) == [("id", "string", False), ("k", "int64", True), ("w", "int32", True)]
    assert [name for name, *_ in schema(world.t.project("id", "x", "k").join(world.t.project("k", "x"), on="k"))] == [
        "id",
        "x",
        "k",
        "x_right",
    ]
    assert [kind for _, kind, _ in schema(grouped)] == ["string", "int64", "double", "int64", "double"]
    assert schema(together) == [("id", "string", True)]
    assert schema(world.t.with_columns(z=lit(3)).project("z")) == [("z", "int64", True)]
    for relation in (left, grouped, together):
        assert relation.to_arrow().schema.equals(relation.schema)


def test_a_field_of_a_cached_column_keeps_its_meaning(world: World) -> None:
    plan = world.images.cache(image_ref=Raw(32)).sample(order=Sequential())

    assert (
        plan.collate(batch_size=2, fields=image_fields(image_transforms(16))).schema.names == world.images.schema.names
    )


def test_every_verb_has_one_name(world: World) -> None:
    found = [*vars(nodes).values(), *vars(combining).values()]
    kinds = {each for each in found if isinstance(each, type) and issubclass(each, nodes.Node)}
    named = [each.VERB for each in kinds if hasattr(each, "VERB")]

    assert len(named) == len(set(named)) == 15
