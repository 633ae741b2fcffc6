"""Which samples a contact sheet shows, and what of each: pictures, sound and text, from fields as the loop gets them.

Each kind of field says what it shows. Token fields are decoded by the plan's tokenizer, or by one that is given; the documents
of a packed row are kept apart.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.batching.formation import Membership
from spiral_stream.batching.packing import Packed
from spiral_stream.catalog.registry import Registry
from spiral_stream.errors import PlanError, shown
from spiral_stream.fields.sequence import SequenceField
from spiral_stream.looking.contact_sheet import Sheet, Sound, Strip, Tile
from spiral_stream.looking.tokens import Decode, Document, document
from spiral_stream.plan.nodes import Collate
from spiral_stream.plan.tree import need
from spiral_stream.planner.stages import Stages
from spiral_stream.runtime.numbering.run_batches import RunBatches

_TOKENS: Final = 400  # of a row that are decoded
_VALUES: Final = 6  # of an array that are written

Build = Callable[[int, int], dict[str, Any]]  # epoch and number -> fields
Spans = Callable[[str, int], list[tuple[int, int]] | None]  # token column and row -> where its documents lie, if known


@final
@dataclass(frozen=True, slots=True)
class _Shown:
    """How fields become tiles."""

    stages: Stages
    decode: Mapping[str, Decode] = field(default_factory=dict)  # by column

    @property
    def per_row(self) -> frozenset[str]:
        """The fields that have a value for each row."""
        return frozenset(name for name, field in need(self.stages.plan, Collate).fields if field.PER_ROW)

    def tile(
        self,
        title: str,
        fields: Mapping[str, Any],
        row: int,
        spans: Spans,
        batch: int | None = None,
    ) -> Tile:
        """Return what is shown of one row."""
        tile = Tile(title, batch)
        stages = {stage.name: stage for stage in self.stages.fields}
        tokens = {stage.name: stage.field for stage in self.stages.sequences}
        first = dict.fromkeys(each.column for each in tokens.values())  # one field per column is decoded
        for name, values in fields.items():
            if name not in self.per_row:
                continue
            value, stage = values[row], stages[name]
            if (pictures := stage.pictures(fields, row)) is not None:
                tile.strips.append(Strip(name, pictures, stage.frames > 0))
            elif stage.sample_rate is not None:
                tile.sounds.append(Sound(name, np.asarray(value, np.float32), stage.sample_rate))
            elif name in tokens:
                column = tokens[name].column
                if column in first and _names_tokens(tokens[name]):
                    del first[column]
                    pieces = spans(column, row)
                    unpadded = _unpadded(value, tokens[name]) if pieces is None else value
                    tile.texts.append((name, self._documents(column, unpadded, pieces)))
            else:
                tile.labels.append((name, _written(value)))
        return tile

    def _documents(self, column: str, value: Any, pieces: list[tuple[int, int]] | None) -> list[Document]:
        spans, decode = [(0, len(value))] if pieces is None else pieces, self.decode.get(column)
        return [
            document(value[start : start + min(length, _TOKENS)].tolist(), decode, max(0, length - _TOKENS))
            for start, length in spans
        ]


def taken(
    build: Build,
    stages: Stages,
    numbering: RunBatches,
    catalog: Registry,
    epoch: int,
    number: int,
    count: int,
    tokenizer: Any,
) -> Sheet:
    """Return the sheet of the first samples from a global batch on.

    Raises:
        IndexError: the epoch has no such batch.
        PlanError: the tokenizer decodes nothing.
    """
    look = _Shown(stages, _decoders(stages, catalog, tokenizer))
    tiles: list[Tile] = []
    while len(tiles) < count:
        try:
            fields = build(epoch, number)
        except IndexError:
            if not tiles:
                raise
            break
        drawn = numbering.draw(epoch, [number])[0].membership
        spans = _spans_in(fields, stages) if drawn.lengths is None else _spans(drawn, stages, fields)
        rows = next((len(values) for name, values in fields.items() if name in look.per_row), 0)
        batch = numbering.skips.number(epoch, number)
        for row in range(min(rows, count - len(tiles))):
            known = spans if drawn.rows == rows else _spans_in(fields, stages)
            tiles.append(look.tile(f"batch {batch:,} row {row}", fields, row, known, batch))
        number += 1
    return Sheet(tiles, f"epoch {epoch:,}")


def taken_of(batch: Mapping[str, Any], stages: Stages, catalog: Registry, count: int, tokenizer: Any = None) -> Sheet:
    """Return the sheet of the first rows of a batch that a loop got, on whatever device it lies.

    Args:
        batch: the batch.
        stages: of its stream.
        catalog: where tokenizers are registered.
        count: how many rows.
        tokenizer: as for `PreparedStream.show`.

    Raises:
        PlanError: it is no batch of this stream.
    """
    names = set(stages.field_names)
    if set(batch) != names:
        msg = (
            f"show: batch={shown(batch)} has the fields {', '.join(map(str, batch))}; batches of this stream have "
            f"{', '.join(stages.field_names)}. Give a batch of this stream, or its number"
        )
        raise PlanError(msg)
    fields = {name: _on_host(value) for name, value in batch.items()}
    look = _Shown(stages, _decoders(stages, catalog, tokenizer))
    rows = next((len(values) for name, values in fields.items() if name in look.per_row), 0)
    spans = _spans_in(fields, stages)
    tiles = [look.tile(f"row {row}", fields, row, spans) for row in range(min(rows, count))]
    return Sheet(tiles, f"{len(tiles):,} of {rows:,} rows")


def _on_host(value: Any) -> Any:
    """An array of whatever framework as one of NumPy; bfloat16, which NumPy lacks, as float32."""
    if isinstance(value, list | np.ndarray):
        return value
    if hasattr(value, "detach"):
        here = value.detach().cpu()
        return (here.float() if str(here.dtype) == "torch.bfloat16" else here).numpy()
    return np.asarray(value)


def _spans_in(fields: Mapping[str, Any], stages: Stages) -> Spans:
    """Where the documents of a row lie, as far as a field of the column says so: segment numbers, or the mask of padding."""
    named = {(type(stage.field).__name__, stage.field.column): fields[stage.name] for stage in stages.sequences}
    packed, widths = isinstance(stages.formation, Packed), {} if stages.formation is None else stages.formation.widths
    shared = None  # the segments of any column, where all columns of a sample lie at the same places
    if packed and not widths:
        shared = next((values for (kind, _), values in named.items() if kind == "Segments"), None)

    def spans(column: str, row: int) -> list[tuple[int, int]] | None:
        numbers = named.get(("Segments", column), shared)
        numbers = named.get(("PadMask", column)) if numbers is None else numbers
        if numbers is None:
            return None
        values = np.asarray(numbers[row]).astype(np.int64)
        edges = np.flatnonzero(np.diff(values, prepend=0, append=0))
        found = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        return [(begin, end - begin) for begin, end in found if values[begin]]

    return spans


def _names_tokens(each: SequenceField) -> bool:
    return type(each).__name__ in ("Pad", "Tokens")


def _unpadded(ids: NDArray[Any], each: SequenceField) -> NDArray[Any]:
    """A row without the padding at its end, as far as its values tell."""
    others = np.flatnonzero(ids != getattr(each, "pad_value", None))
    return ids if getattr(each, "pad_value", None) is None else ids[: others[-1] + 1 if len(others) else 0]


def _spans(batch: Membership, stages: Stages, fields: Mapping[str, Any]) -> Spans:
    """Where the documents of each row lie, as the formation placed them: where each begins, and its tokens.

    Columns that share a width may end before the longest, which the formation counted: there the fields say more.
    """
    widths = list(() if stages.formation is None else stages.formation.widths)
    by_fields, packing = _spans_in(fields, stages), batch.packing
    shared = not widths and len({stage.field.column for stage in stages.sequences}) > 1

    def spans(column: str, row: int) -> list[tuple[int, int]] | None:
        found = by_fields(column, row) if shared else None
        if found is not None or (shared and packing is None):
            return found
        if packing is None:
            assert batch.lengths is not None
            return [(0, int(batch.lengths[row]))]
        at_width = widths.index(column) if widths else ...
        here = slice(*np.searchsorted(packing.rows, (row, row + 1)).tolist())
        return list(zip(packing.starts[at_width][here].tolist(), packing.lengths[at_width][here].tolist(), strict=True))

    return spans


def _decoders(stages: Stages, catalog: Registry, tokenizer: Any) -> dict[str, Decode]:
    columns = {stage.field.column for stage in stages.sequences}
    if tokenizer is not None and not isinstance(tokenizer, str):
        if not callable(getattr(tokenizer, "decode", None)):
            msg = f"show: tokenizer={shown(tokenizer)} has no decode(ids). Give a name in the catalog, or a tokenizer"
            raise PlanError(msg)
        return dict.fromkeys(columns, tokenizer.decode)
    from spiral_stream.plan.verbs.maps import SampleTokens

    made = {step.name: step.transform.tokenizer for step in stages.maps if isinstance(step, SampleTokens)}
    names = made if tokenizer is None else dict.fromkeys(columns, tokenizer)
    return {column: _decoder(catalog, name) for column, name in names.items() if column in columns}


def _decoder(catalog: Registry, name: str) -> Decode:
    from spiral_stream.transforms.text.encoder import open_tokenizer

    path = catalog.tokenizer(name).path
    opened = open_tokenizer(path.read_bytes(), f"tokenizer {name}")
    return lambda ids: str(opened.decode(list(ids), skip_special_tokens=False))


def _written(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.ndim:
        flat = ", ".join(
            f"{each:.4g}" if value.dtype.kind == "f" else str(each) for each in value.ravel()[:_VALUES].tolist()
        )
        return f"{value.dtype}{list(value.shape)} {flat}{', ...' if value.size > _VALUES else ''}"
    if isinstance(value, bytes | memoryview):
        return f"{len(value):,} bytes"
    return str(value)
