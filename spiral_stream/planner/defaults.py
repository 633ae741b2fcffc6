"""Complete the verbs after ``sample``: the catalog's tokenizer, a default formation; and warn where a mixture cannot hold.

The warning says which streams cannot have their share in every batch. It comes before the first batch is formed.
"""

import json
from typing import TYPE_CHECKING

from spiral_stream.batching.composition import OneStream, StratifiedByStream
from spiral_stream.batching.formation import Composition, Formation
from spiral_stream.batching.one_stream import least_window, need_room
from spiral_stream.batching.windowed import MAX_WINDOW, WINDOW, WindowedBucket
from spiral_stream.catalog.registry import Registry
from spiral_stream.errors import PlanError, listed, shown
from spiral_stream.plan.nodes import Node, Sample
from spiral_stream.plan.saving.canonical import encode_value
from spiral_stream.plan.tree import find, need, spine
from spiral_stream.plan.verbs.maps import SampleAssembly, SampleFilter, SampleFlatMap, SampleMap, SampleTokens
from spiral_stream.plan.verbs.mix import STREAM_ID, Mix, per_stream
from spiral_stream.transforms.image.sizes import SIZES, ImageSizes, image_sizes
from spiral_stream.transforms.python import Function
from spiral_stream.transforms.text.chat import ChatTemplate
from spiral_stream.transforms.text.tokenize import Tokenize
from spiral_stream.transforms.transform import Named

if TYPE_CHECKING:
    from spiral_stream.transforms.text.chat_encoder import ChatEncoder
from collections.abc import Iterator
from typing import Final

import numpy as np

from spiral_stream.batching.stratified import Float64, smallest_window
from spiral_stream.batching.tail import KeepPartial, PadPartial
from spiral_stream.planner.stages import Stages


def tokenized(node: Node, named: Named, catalog: Registry) -> SampleTokens | SampleMap:
    """Return the node of a `Tokenize`, a `ChatTemplate` (with the tokenizer that its name means now) or an `ImageSizes`.

    Raises:
        CatalogError: the name is unknown.
        PlanError: it is another transform, its options do not fit the tokenizer, or the column is no text.
    """
    tokenize = named.transform
    if isinstance(tokenize, ImageSizes):
        return _sized(node, named, tokenize)
    most = 2 if isinstance(tokenize, ChatTemplate) else 1
    if len(named.names) > most:
        msg = (
            f"map: {type(tokenize).__name__} has {len(named.names)} names, and gives "
            f"{'tokens and a loss mask' if most > 1 else 'one column'}. Give one name per column"
        )
        raise PlanError(msg)
    if isinstance(tokenize, ChatTemplate):
        mask = named.names[1] if len(named.names) > 1 else None
        chat = chat_encoder(tokenize, catalog, masked=mask is not None)
        size = chat.dtype.itemsize
        return SampleTokens(node, tokenize, named.names[0], chat.digest, size, mask, chat.template_digest)
    if not isinstance(tokenize, Tokenize):
        msg = f"map: {type(tokenize).__name__} transforms images. Give it to Stack(..., transforms=[...])"
        raise PlanError(msg)
    from spiral_stream.transforms.text.encoder import TextEncoder

    encoder = TextEncoder(catalog.tokenizer(tokenize.tokenizer).path, tokenize)
    return SampleTokens(node, tokenize, named.names[0], encoder.digest, encoder.dtype.itemsize)


def _sized(node: Node, named: Named, transform: ImageSizes) -> SampleMap:
    """Return the node of an `ImageSizes`: a function of the column, which is kept as any other.

    Raises:
        PlanError: it has several names, or the column is not there.
    """
    if len(named.names) != 1:
        msg = f"map: ImageSizes has {len(named.names)} names, and gives one column. Give one name"
        raise PlanError(msg)
    function = Function(image_sizes, (transform.column,), SIZES, version=str(transform.VERSION))
    return SampleMap(node, function, named.names[0])


def settled(
    node: Node, formation: Formation | None, composition: Composition | None, batch_size: int | None
) -> Formation | None:
    """Return the formation of a `collate`, with its composition; None where batches are arithmetic.

    Raises:
        PlanError: a composition without a mixture, or one that the formation cannot keep.
    """
    for name, value, kind in (("formation", formation, Formation), ("composition", composition, Composition)):
        if value is not None and not isinstance(value, kind):
            way_out = (
                "WindowedBucket(...), Packed(...) or OneShape(...)"
                if kind is Formation
                else 'StratifiedByStream("stream_id") or OneStream()'
            )
            msg = f"collate: {name}={shown(value)}. Give {way_out}, or leave it out"
            raise PlanError(msg)
    if formation is not None and formation.unit > 1 and (lanes := need(node, Sample).assignment.lanes) > 1:
        msg = (
            f"collate: OneShape(batches={formation.unit}) with lanes={lanes}, whose batches take turns, so that ranks of a step "
            "would get other shapes. Leave lanes out of the assignment"
        )
        raise PlanError(msg)
    if composition is not None:
        if any(isinstance(each, SampleAssembly) for each in spine(node)):
            msg = "collate: a composition after assemble, whose samples are of no stream. Drop one of them"
            raise PlanError(msg)
        if find(node, Mix) is None:
            msg = "collate: a composition is of the streams of a mixture, and nothing is mixed. Drop it, or begin with mix([...])"
            raise PlanError(msg)
        if isinstance(composition, StratifiedByStream) and need(node, Mix).in_turn:
            msg = "collate: StratifiedByStream spreads streams over batches, and concat reads one after the other. Use mix"
            raise PlanError(msg)
        if isinstance(composition, StratifiedByStream) and composition.column != STREAM_ID:
            msg = f"collate: StratifiedByStream({composition.column!r}); a mixture's streams are in {STREAM_ID!r}"
            raise PlanError(msg)
    changes = any(isinstance(each, SampleFilter | SampleFlatMap | SampleAssembly) for each in spine(node))
    least = _least_window(node, formation, composition, batch_size if isinstance(batch_size, int) else 1)
    if formation is None and (composition is not None or changes):
        formation = WindowedBucket(min(max(WINDOW, least), MAX_WINDOW), keys=())
    return formation if formation is None or composition is None else formation.with_composition(composition)


def _least_window(node: Node, formation: Formation | None, composition: Composition | None, batch_size: int) -> int:
    """The smallest window in which a counted batch can be made.

    Raises:
        PlanError: the formation's is smaller, with `OneStream`.
    """
    rows = max(1, batch_size)
    if not isinstance(composition, OneStream):
        return rows
    streams = len(per_stream(need(node, Mix)))
    if isinstance(formation, WindowedBucket) and formation.budget is None:
        need_room(formation.window_size, streams, composition.batches, rows)
    return least_window(streams, composition.batches, rows)


def chat_encoder(chat: ChatTemplate, catalog: Registry, *, masked: bool) -> "ChatEncoder":
    """Return the encoder of a `ChatTemplate`, with the tokenizer and the template that its names mean now.

    Raises:
        CatalogError: the tokenizer's name is unknown.
        PlanError: there is no template, or it does not fit.
        SourceError: the template's file cannot be read.
    """
    from spiral_stream.transforms.text.chat_encoder import ChatEncoder
    from spiral_stream.transforms.text.chat_format import format_of

    entry = catalog.tokenizer(chat.tokenizer)
    layout = None if chat.images is None else json.dumps(encode_value(chat.images.layout, code=True), sort_keys=True)
    return ChatEncoder(entry.path, chat, format_of(chat, entry.chat), masked=masked, layout=layout)


_NAMED: Final = 3  # streams in a message


def doubts(stages: Stages, epoch: int) -> Iterator[str]:
    """Yield promises that batches will not keep, each with the way out.

    Args:
        stages: the lowered plan.
        epoch: whose shares are looked at.
    """
    formation, mixture = stages.formation, stages.epochs.mixture
    if mixture is None or not isinstance(formation, WindowedBucket):
        return
    batch_size = stages.batches.batch_size if formation.budget is None else None
    window, composition = formation.window_size, formation.composition
    if isinstance(composition, StratifiedByStream):
        both = (mixture.shares(epoch, 0), mixture.shares(epoch, mixture.total))
        positions = mixture.total / mixture.slices
        least = max(smallest_window(each, positions, mixture.slices, batch_size) for each in both)
        if window < least:
            rare = float(min(each[each > 0].min() for each in both))
            yield (
                f"collate: StratifiedByStream with window_size={window:,}: a stream of {rare:.2%} may come so late that the "
                f"window is full before it does. Batches then go without it, and it falls more than a sample behind its share. "
                f"Give window_size of at least {least:,}"
            )
    elif isinstance(composition, OneStream) and composition.batches > 1 and batch_size is not None:
        yield from _of_units(stages, composition.batches * batch_size, mixture.quotas(epoch) / mixture.total)


def _of_units(stages: Stages, rows: int, shares: Float64) -> Iterator[str]:
    """Doubts about counted batches that take several batches in a row from one stream: ``rows`` samples per unit."""
    last, total = stages.batches.last, stages.epochs.total
    few = np.flatnonzero(shares * total < rows).tolist()
    if few and not isinstance(last, KeepPartial):
        named = listed([f"{stages.streams[k].name} (about {shares[k] * total:,.0f})" for k in few], _NAMED)
        does = "fills it with repeated ones" if isinstance(last, PadPartial) else "drops them all"
        yield (
            f"collate: OneStream: in an epoch of {total:,} samples {named} have fewer than a step's {rows:,}, and "
            f"{type(last).__name__} {does}. Give last=KeepPartial, fewer batches in a row or a smaller batch_size"
        )
