"""Of which kinds of fields EXPLAIN tells more than of every field: the section of each."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from spiral_stream.explain.clips.clips import clip_facts, clip_row
from spiral_stream.explain.figure import Figure, Phrase
from spiral_stream.explain.subject import Subject
from spiral_stream.planner.field_stages import FieldStage
from spiral_stream.runtime.fields.clips import ClipStage


class Section(NamedTuple):
    """What EXPLAIN tells of the fields of one kind."""

    row: Callable[[Subject, Any], tuple[str, Phrase, Figure | str]]  # where it is made, its size, hits of the cache
    facts: Callable[[Subject, Any], dict[str, Any]]  # lines above the table


SECTIONS: Final[Mapping[type[FieldStage], Section]] = MappingProxyType({ClipStage: Section(clip_row, clip_facts)})
