"""A video index in YAML."""

from collections.abc import Iterator, Sequence

import dagster as dg
from pydantic import Field

from spiral_assets.assets.video_index import GROUPS, video_index_assets
from spiral_assets.components.parts import OwnCheck, Owned, wrong_checks, wrong_deps, wrong_key, wrong_name
from spiral_assets.components.scaffolding import example
from spiral_assets.conventions import CACHES
from spiral_assets.reading.positions import Wrong
from spiral_assets.relations.partitions import MOST


@example(name="film_index", relation="shop.films", column="clip_ref", index="shop.film_files")
class VideoIndex(Owned):
    """Where the frames of every video file are: built by groups of storage shards, and shown as a relation.

    Examples:
        >>> defs = load('''
        ... type: spiral_assets.components.VideoIndex
        ... attributes: {name: film_index, relation: shop.films, column: clip_ref, index: shop.film_files}
        ... ''')
        >>> names(defs)
        ['caches/film_index', 'catalog/shop/film_files']
    """

    name: str = Field(description="The asset is caches/<name>.", examples=["video_index"])
    relation: str = Field(description="Whose videos are indexed.", examples=["video.training_segments"])
    column: str = Field(description="Of type video/h264-ref.", examples=["clip_ref"])
    index: str = Field(description="The relation that shows one row per file.", examples=["video.index"])
    groups: int = Field(default=GROUPS, description="Partitions, over which the shards are spread by name.")
    deps: Sequence[str] = Field(default=(), description="More than the relation.")
    descriptions: dict[str, str] = Field(default_factory=dict, description="Column of the index: its meaning.")
    checks: Sequence[OwnCheck] = Field(default=(), description="Checks of your own, of the index relation.")
    automated: bool = Field(default=True, description="Whether it is rebuilt when the relation's data is new.")

    def wrong(self) -> Iterator[Wrong]:
        """Yield what is wrong in the attributes."""
        yield from super().wrong()
        yield from wrong_key(("name",), self.name)
        yield from wrong_name(("relation",), self.relation)
        yield from wrong_name(("index",), self.index)
        yield from wrong_deps(("deps",), self.deps, f"{CACHES}/{self.name}")
        if not 1 <= self.groups <= MOST:
            said = f"{self.groups} shard groups. Give 1 to {MOST}: Dagster compares no data versions of more partitions"
            yield Wrong(("groups",), said)
        yield from wrong_checks(self.checks)

    def definitions_of(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return both assets and their checks."""
        del context
        owned = {name: value for name, value in self.owned().items() if name != "description"}
        return video_index_assets(
            self.name,
            relation=self.relation,
            column=self.column,
            index=self.index,
            groups=self.groups,
            deps=self.deps,
            descriptions=self.descriptions,
            checks=[each.check() for each in self.checks],
            automated=self.automated,
            **owned,
        )
