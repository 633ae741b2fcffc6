"""A relation in YAML."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import dagster as dg
from pydantic import Field

from spiral_assets.assets.hooks import Hooks, namespace
from spiral_assets.assets.registered import registered
from spiral_assets.assets.relation import Limits, Roles, measured_assets, relation_assets, relation_rules
from spiral_assets.assets.steps import REGISTER
from spiral_assets.components.parts import (
    OwnCheck,
    Owned,
    twice,
    wrong_checks,
    wrong_deps,
    wrong_name,
)
from spiral_assets.components.scaffolding import example_or_data
from spiral_assets.conventions import DATA_TEAM, relation_key
from spiral_assets.facts.learned import Kind, Learned, Severity
from spiral_assets.reading.bounds import AboveZero, Amount, Count, Hours, Positive, Share
from spiral_assets.reading.positions import Wrong
from spiral_assets.reading.source_fields import (
    SEMANTIC,
    TYPES,
    known_columns,
    known_type,
    source_schema,
    wrong_source,
)
from spiral_assets.reading.wording import nearest


class LearnedLimits(dg.Model, dg.Resolvable):
    """Limits that the last registrations teach: the median of each value, and how far it usually is from it."""

    of: Sequence[Kind] = Field(default=get_args(Kind), description="What is looked at.")
    last: Positive = Field(default=Learned.last, description="Registrations that limits are learned from.")
    observe: Positive = Field(default=Learned.observe, description="With fewer registrations nothing is an alarm.")
    spreads: AboveZero = Field(default=Learned.spreads, description="How far from the median a value may be.")
    severity: Severity | dict[Kind, Severity] = Field(
        default="warn",
        description="warn, or error, which stops what is built on the statistics; or by kind: {rows: error}.",
    )


class LimitsOfRelation(dg.Model, dg.Resolvable):
    """What the checks of a relation allow; null asks for no check."""

    skew: Share | None = Field(default=Limits.skew, description="Distance of a shard's labels to all labels, 0 to 1.")
    largest_share: Share | None = Field(default=Limits.largest_share, description="Share of the rows of one origin.")
    references: Count = Field(default=Limits.references, description="Referenced images that are fetched and decoded.")
    row_change: Amount | None = Field(default=Limits.row_change, description="Change of the rows since the last time.")
    schema_change: bool = Field(
        default=Limits.schema_change, description="Whether to compare columns with the last time."
    )
    missing: Share | None = Field(
        default=Limits.missing, description="Share of a column's values that are null or NaN."
    )
    refused: Share | None = Field(default=Limits.refused, description="Share of rows that an import could not read.")
    learned: LearnedLimits | None = Field(default=None, description="Limits that the last registrations teach.")

    def limits(self) -> Limits:
        """Return them as a factory takes them."""
        said = self.model_dump(exclude={"learned"})
        learned = None if self.learned is None else Learned(**self.learned.model_dump())
        return Limits(**said, learned=learned)


@example_or_data(
    name="shop.photos",
    description="Product photos.",
    source={"kind": "image_folder", "path": "$DATA/photos"},
    semantic={"image_ref": "image/jpeg-ref"},
    labels=["label_id"],
)
class Relation(Owned):
    """A relation: registered as its source is now, checked, and measured per storage shard.

    Examples:
        >>> defs = load('''
        ... type: spiral_assets.components.Relation
        ... attributes:
        ...   name: shop.photos
        ...   source: {kind: parquet, path: photos.parquet}
        ...   labels: [label_id]
        ... ''')
        >>> names(defs)
        ['catalog/shop/photos', 'stats/shop/photos/shard_stats']
    """

    name: str = Field(description="In the catalog.", examples=["shop.photos"])
    source: dict[str, Any] = Field(
        description="kind and the fields of that source; or function (module:function) and arguments. "
        "$NAME is put in from the environment of the run.",
        examples=[{"kind": "parquet", "path": "/data/photos"}],
        json_schema_extra=source_schema(),
    )
    identity: str | Sequence[str] = Field(default="sample_id", description="Column or columns that identify a row.")
    shard: str | None = Field(default=None, description="Column that names the storage shards.")
    semantic: dict[str, str] = Field(default_factory=dict, description="Column: semantic type, as image/jpeg-ref.")
    descriptions: dict[str, str] = Field(default_factory=dict, description="Column: its meaning, for people.")
    columns: dict[str, str] = Field(default_factory=dict, description="Column: type that plans rely on.")
    labels: Sequence[str] = Field(default=(), description="Columns that are predicted.")
    origins: Sequence[str] = Field(default=(), description="Columns that say where rows come from.")
    along: str | None = Field(default=None, description="Column along which labels and origins may drift.")
    limits: LimitsOfRelation = Field(default_factory=LimitsOfRelation)
    checks: Sequence[OwnCheck] = Field(default=(), description="Checks of your own.")
    deps: Sequence[str] = Field(default=(), description="Assets that a source function reads: catalog/shop/photos.")
    statistics: bool = Field(default=True, description="Whether to measure the relation.")
    compare_bytes: bool = Field(default=True, description="Compare bytes where size or time of a file changed.")
    watch_s: Positive | None = Field(default=None, description="Seconds between two looks of a sensor at the source.")
    fresh_within_h: Hours | None = Field(default=None, description="Hours within which it must be registered.")

    def definitions_of(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the relation's assets and checks."""
        del context
        return self.definitions()

    def wrong(self) -> Iterator[Wrong]:
        """Yield what is wrong in the attributes."""
        yield from super().wrong()
        yield from wrong_name(("name",), self.name)
        yield from wrong_source(self.source)
        yield from wrong_checks(self.checks)
        yield from wrong_deps(("deps",), self.deps, "/".join(relation_key(self.name).path))
        yield from self._wrong_limits()
        yield from self._wrong_columns()
        for column, kind in self.semantic.items():
            if kind not in SEMANTIC:
                said = (
                    f"{kind!r} is no semantic type{nearest(kind, SEMANTIC)} There are {', '.join(SEMANTIC)}. Correct it"
                )
                yield Wrong(("semantic", column), said)

    def _wrong_columns(self) -> Iterator[Wrong]:
        """Yield columns that the relation cannot have, and those that are named twice."""
        identity = [self.identity] if isinstance(self.identity, str) else self.identity
        if not identity or not all(identity):
            yield Wrong(("identity",), "it names no column. Give the column, or columns, that identify a row")
        for field in ("labels", "origins"):
            yield from twice((field,), getattr(self, field), "column")
        for column, kind in self.columns.items():
            if not known_type(kind):
                said = (
                    f"{kind!r} is no type of a column{nearest(kind, TYPES)} Write it as Arrow does, such as {TYPES[0]}"
                )
                yield Wrong(("columns", column), said)
        known = known_columns(self.source)
        for path, name in self._named_columns(identity):
            if known is not None and name not in known:
                said = f"{name!r} is no column of it{nearest(name, known)} It has {', '.join(known)}. Correct the name"
                yield Wrong(path, said)

    def _named_columns(self, identity: Sequence[str]) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Yield the columns that the attributes name, and the keys that lead to each."""
        yield from ((("identity",), name) for name in identity)
        for field in ("shard", "along"):
            if (name := getattr(self, field)) is not None:
                yield (field,), name
        for field in ("labels", "origins"):
            yield from (((field, at), name) for at, name in enumerate(getattr(self, field)))
        for field in ("semantic", "descriptions", "columns"):
            yield from (((field, name), name) for name in getattr(self, field))

    def _wrong_limits(self) -> Iterator[Wrong]:
        learned = self.limits.learned
        if learned is None:
            return
        if not self.statistics:
            said = "they are learned from the statistics, which are off. Leave out statistics: false, or the limits"
            yield Wrong(("limits", "learned"), said)
        if learned.observe > learned.last:
            said = f"observe is {learned.observe}, and limits are learned from the last {learned.last}. Give less than last"
            yield Wrong(("limits", "learned", "observe"), said)

    def definitions(self, hooks: Hooks | None = None) -> dg.Definitions:
        """Return the relation's assets and checks.

        Args:
            hooks: of a component that has many relations; None for its own.
        """
        owned = self.owned() if hooks is None else {**self.owned(), "hooks": hooks}
        return relation_assets(
            self.name,
            self.source,
            identity=self.identity,
            shard=self.shard,
            semantic=self.semantic,
            descriptions=self.descriptions,
            columns=self.columns,
            labels=self.labels,
            origins=self.origins,
            along=self.along,
            limits=self.limits.limits(),
            checks=[each.check() for each in self.checks],
            deps=self.deps,
            statistics=self.statistics,
            compare_bytes=self.compare_bytes,
            watch_s=self.watch_s,
            fresh_within_h=self.fresh_within_h,
            **owned,
        )


def measured_relation(relation: Relation, facts: Mapping[str, Any], hooks: Hooks, *, measured: bool) -> dg.Definitions:
    """Return a relation that is registered already, with the statistics and checks of a component's fields.

    Args:
        relation: its fields.
        facts: ``kind`` and ``place`` of its source.
        hooks: of the component.
        measured: whether its fields say anything of statistics and checks.
    """
    owned = {**relation.owned(), "hooks": hooks}
    limits = relation.limits.limits()
    rules = relation_rules(relation.name, limits, [each.check() for each in relation.checks]) if measured else []
    props, asset = registered(relation.name, facts, rules, **owned)
    made = hooks.relation(props, asset, REGISTER)
    if not measured:
        return made
    about = {
        "name": relation.name,
        "namespace": namespace(relation.name),
        "labels": list(relation.labels),
        "origins": list(relation.origins),
        "domain": relation.domain,
    }
    more = measured_assets(
        asset.spec.key,
        relation.name,
        Roles(relation.labels, relation.origins, relation.along),
        limits,
        statistics=relation.statistics,
        domain=relation.domain,
        owners=owned.get("owners", DATA_TEAM),
        about=about,
        hooks=hooks,
    )
    return dg.Definitions.merge(made, more)
