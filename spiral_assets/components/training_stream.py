"""Named streams in YAML."""

from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg
from pydantic import Field

from spiral_assets.assets.stream import SavedStream, stream_assets
from spiral_assets.components.parts import (
    FunctionByName,
    Owned,
    PlanByName,
    function_of,
    plan_of,
    stream_of,
    twice,
    wrong_deps,
    wrong_key,
    wrong_name,
    wrong_named,
    wrong_plan,
)
from spiral_assets.components.scaffolding import example
from spiral_assets.conventions import STREAMS
from spiral_assets.reading.bounds import Count, Hours, Positive
from spiral_assets.reading.location import Path
from spiral_assets.reading.positions import Wrong


class NamedStream(dg.Model, dg.Resolvable):
    """A stream that training opens by its name."""

    name: str = Field(description="In the catalog.", examples=["photos-train"])
    plan: str | PlanByName = Field(description="module:function, or a function with arguments.")
    prefetch: Positive = Field(default=4, description="Batches that a reader prepares ahead.")


@example(
    name="photos",
    streams=[{"name": "photos-train", "plan": "spiral_assets.plans.images:training"}],
    deps=["caches/photos_decoded"],
)
class TrainingStream(Owned):
    """The streams of a training: saved by name, with EXPLAIN of the first.

    Examples:
        >>> defs = load('''
        ... type: spiral_assets.components.TrainingStream
        ... attributes:
        ...   name: photos
        ...   streams:
        ...     - name: photos-train
        ...       plan: {function: "spiral_assets.plans.standard:image_batches", arguments: {relation: shop.photos}}
        ...   deps: [caches/photos_decoded]
        ... ''')
        >>> names(defs)
        ['streams/photos']
    """

    name: str = Field(description="The asset is streams/<name>.", examples=["photos"])
    streams: Sequence[NamedStream] = Field(description="The stream to train from, then others, as for validation.")
    deps: Sequence[str] = Field(default=(), description="Caches and statistics that the plans should find.")
    metadata: str | FunctionByName | None = Field(
        default=None, description="A function that gets the prepared streams and returns more metadata."
    )
    most_warnings: Count | None = Field(
        default=0,
        description="Warnings of EXPLAIN that are allowed before a check warns; null for no check.",
    )
    fresh_within_h: Hours | None = Field(default=None, description="Hours within which it must be saved.")
    automated: bool = Field(default=True, description="Whether it is saved again when a plan or its data is new.")

    def wrong(self) -> Iterator[Wrong]:
        """Yield what is wrong in the attributes."""
        yield from super().wrong()
        yield from wrong_key(("name",), self.name)
        yield from wrong_deps(("deps",), self.deps, f"{STREAMS}/{self.name}")
        yield from twice(("streams",), [each.name for each in self.streams], "stream")
        if not self.streams:
            yield Wrong(
                ("streams",), "there is none. Give the stream to train from: - {name: ..., plan: module:function}"
            )
        for at, each in enumerate(self.streams):
            yield from wrong_name(("streams", at, "name"), each.name)
            yield from wrong_plan(("streams", at, "plan"), each.plan)
            if each.name in [name for _, name in stream_of((), each.plan)]:
                yield Wrong(("streams", at, "plan", "stream"), f"{each.name!r} is this stream itself. Give a function")
        if self.metadata is not None:
            yield from wrong_named(("metadata",), self.metadata, len(self.streams))

    def saved_streams(self) -> Sequence[str]:
        """Return the names of its streams."""
        return [each.name for each in self.streams]

    def opened_streams(self) -> Sequence[tuple[Path, str]]:
        """Return the saved streams that it saves under other names."""
        return [one for at, each in enumerate(self.streams) for one in stream_of(("streams", at, "plan"), each.plan)]

    def definitions_of(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the streams' asset and the check of its EXPLAIN."""
        del context
        more: dict[str, Any] = {} if self.metadata is None else {"metadata": function_of(self.metadata)}
        streams = [SavedStream(each.name, plan_of(each.plan), each.prefetch) for each in self.streams]
        return stream_assets(
            self.name,
            streams=streams,
            most_warnings=self.most_warnings,
            deps=self.deps,
            fresh_within_h=self.fresh_within_h,
            automated=self.automated,
            **{"description": "Streams, saved by name, with EXPLAIN of the first.", **self.owned()},
            **more,
        )
