"""An index of vectors in YAML."""

from collections.abc import Iterator, Sequence
from typing import Literal

import dagster as dg
from pydantic import Field

from spiral_assets.assets.vector_index import vector_index_assets
from spiral_assets.components.parts import (
    FunctionByName,
    Owned,
    function_of,
    wrong_deps,
    wrong_key,
    wrong_name,
    wrong_named,
)
from spiral_assets.components.scaffolding import example
from spiral_assets.conventions import index_key
from spiral_assets.reading.bounds import Hours
from spiral_assets.reading.positions import Wrong


@example(relation="shop.photos", column="embedding", least_recall=0.9)
class EmbeddingIndex(Owned):
    """An index of a column of vectors by LanceDB, which grows with its data; its recall is measured each time.

    Examples:
        >>> defs = load('''
        ... type: spiral_assets.components.EmbeddingIndex
        ... attributes: {relation: shop.photos, column: embedding}
        ... ''')
        >>> names(defs)
        ['indexes/shop/photos/embedding']
    """

    relation: str = Field(description="Whose rows are found.", examples=["shop.photos"])
    column: str = Field(default="embedding", description="Of vectors: a stored one, or one that the plan computes.")
    plan: str | FunctionByName | None = Field(
        default=None,
        description="Gets the catalog; returns rows, or samples, with the column. null is the relation as it is.",
        examples=["shop.plans:embedded"],
    )
    metric: Literal["cosine", "l2", "dot"] = Field(default="cosine", description="By which rows are near.")
    least_recall: float | None = Field(
        default=0.9, description="The check recall_at_10 warns below it; null is no check."
    )
    deps: Sequence[str] = Field(default=(), description="What the plan reads, in addition to the relation.")
    fresh_within_h: Hours | None = Field(default=None, description="Hours within which it must have been built.")
    automated: bool = Field(default=True, description="Whether it is built again when its plan or its data is new.")

    def wrong(self) -> Iterator[Wrong]:
        """Yield what is wrong in the attributes."""
        yield from super().wrong()
        yield from wrong_name(("relation",), self.relation)
        yield from wrong_key(("column",), self.column)
        yield from wrong_deps(("deps",), self.deps, "/".join(index_key(self.relation, self.column).path))
        if self.plan is not None:
            yield from wrong_named(("plan",), self.plan, 1)
        if self.least_recall is not None and not 0 <= self.least_recall <= 1:
            yield Wrong(("least_recall",), f"{self.least_recall} is no share. Give a number from 0 to 1")

    def definitions_of(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the index and its check."""
        del context
        return vector_index_assets(
            self.relation,
            self.column,
            plan=None if self.plan is None else function_of(self.plan),
            metric=self.metric,
            least_recall=self.least_recall,
            deps=self.deps,
            fresh_within_h=self.fresh_within_h,
            automated=self.automated,
            **self.owned(),
        )
