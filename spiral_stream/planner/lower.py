"""Lower a plan to stages: open the relations, select the rows, compile the fields.

Preparing reads only small columns. What is costly (selections, identity indexes) is
kept under its fingerprint and the data versions, next to the caches, and memory-mapped
by every rank that comes after.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from math import ceil
from pathlib import Path

from spiral_stream.batching.fixed import FixedBatches
from spiral_stream.batching.lanes import Lanes
from spiral_stream.batching.tail import DropPartial
from spiral_stream.batching.windowed import WindowedBucket
from spiral_stream.cache.working_folder import keep_limit
from spiral_stream.catalog.registry import Registry
from spiral_stream.catalog.relation.entry import Entry
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.catalog.shared.mirror import location_of
from spiral_stream.derived.folder import note_catalog
from spiral_stream.errors import PlanError, warn
from spiral_stream.expr import parse
from spiral_stream.fields.step_total import StepTotal
from spiral_stream.keeping.collect import note_use
from spiral_stream.keeping.share import share_of
from spiral_stream.plan import nodes
from spiral_stream.plan.checks import unheeded_sort
from spiral_stream.plan.epoch_length import scheduled, size_and_shares
from spiral_stream.plan.fields.dtypes import field_specs
from spiral_stream.plan.functions.cached_functions import SampleKept
from spiral_stream.plan.saving.fingerprint import canonical, digest
from spiral_stream.plan.tree import base_scan, find, need, origin, relations_of, spine, walk
from spiral_stream.plan.verbs import splits
from spiral_stream.plan.verbs.extents import Extends, extent_of
from spiral_stream.plan.verbs.fan_out_join import owned_by_right_side
from spiral_stream.plan.verbs.maps import SampleTokens
from spiral_stream.plan.verbs.mix import STREAM_ID, Mix, per_stream
from spiral_stream.planner.columns.payload import base_payload
from spiral_stream.planner.columns.streams import StreamStage
from spiral_stream.planner.columns.values import open_cached_values
from spiral_stream.planner.defaults import chat_encoder, doubts
from spiral_stream.planner.field_stages import FieldStage, Lowering, PayloadCache, cached
from spiral_stream.planner.made_relations import DerivedRelations
from spiral_stream.planner.prepared_data.folder import cache_root, keep_plan
from spiral_stream.planner.prepared_data.usage import shard_keys
from spiral_stream.planner.selection.find import Workplace, make_together
from spiral_stream.planner.selection.narrow_columns import NarrowColumns, NarrowSource, Rosters
from spiral_stream.planner.selection.selected import Selected, select
from spiral_stream.planner.selection.sorted import sorted_rows
from spiral_stream.planner.selection.weights import SelectedWeights
from spiral_stream.planner.stages import Stages, TokenStage
from spiral_stream.planner.state.rebase import Rebase
from spiral_stream.relational.join import FanOutError
from spiral_stream.sampling.epoch import EpochOrder
from spiral_stream.sampling.mixing.mixture import Mixture, apportion
from spiral_stream.sampling.mixing.schedule import Schedule
from spiral_stream.sampling.order import Population
from spiral_stream.transforms.text.chat import ChatTemplate


def lower(
    plan: nodes.Deliver,
    catalog: Registry,
    kinds: Sequence[type[FieldStage]],
    rebase: Rebase | None = None,
    former: Mapping[str, str] | None = None,
) -> Stages:
    """Make the stage list of a plan.

    Args:
        plan: a delivered plan.
        catalog: where its names are looked up.
        kinds: of fields; the last takes every field.
        rebase: where an earlier plan of the run ended; None starts every stream at its beginning.
        former: the data versions that relations had; then only what is kept of their rows can be read.

    Raises:
        PlanError: the plan cannot run, for example since no row survives.
        SourceError: a relation cannot be read, or changed since registration.
        CacheError: the prepared folder cannot be written.
    """
    sample, collate = need(plan, nodes.Sample), need(plan, nodes.Collate)
    entries = catalog.relations.entries(relations_of(sample))
    if former is not None:
        entries = {name: catalog.relations.former(entry, former.get(name, "")) for name, entry in entries.items()}
    versions = {name: entry.data_version for name, entry in entries.items()}
    root = cache_root(catalog)
    note_catalog(root, catalog.root, location_of(catalog.root))
    keep_limit(root)
    opened = cache(
        lambda name: OpenRelation(entries[name])
    )  # streams of a mixture share relations; derived ones come later
    rosters: Rosters = {}
    workplace = Workplace(root, opened, versions, cache(lambda name: NarrowSource(opened(name), root, rosters)))
    derived = DerivedRelations(workplace, entries, versions)
    plans = [(name, derived.resolved(node, sample.identity)) for name, node in per_stream(sample.source)]
    streams = _streams(plans, sample, workplace)
    mixture = _mixture(sample, streams, rebase.epoch if rebase else 0)
    left_overs = [rebase.left_over(stream.name) for stream in streams] if rebase else []
    epochs = EpochOrder(
        sample.order,
        [stream.population for stream in streams],
        mixture,
        left_overs,
        rebase.epoch if rebase else None,
        extent_of(collate.source, sample.order),
    )
    read = 0 if former else sum(each.selected.total for each in streams)  # nothing of former rows can be kept anew
    names = _read_by_batches(collate, sample)
    NarrowColumns.keep_together([(stream.selected.narrow, names) for stream in streams], read)
    form = canonical(plan)
    form_digest = digest(form)
    keep_plan(workplace.root, form_digest, form)
    sampled = [each for each in spine(collate.source)[::-1] if isinstance(each, nodes.Sampled)]
    maps = tuple(each for each in sampled[1:] if not isinstance(each, Extends | SampleKept))
    fields = _fields(Lowering(collate, streams, workplace.root), kinds)
    tokens = [_tokens(each, streams, catalog, workplace.root) for each in maps if isinstance(each, SampleTokens)]
    _warn_of_too_few(collate, epochs.total)
    share = share_of(root)
    if share is not None:
        for entry in entries.values():  # derived ones came to them
            note_use(share, entry.data_version, partial(_keys_of, entry))
    stages = Stages(
        plan=plan,
        fingerprint=form_digest,
        canonical=form,
        data_versions=versions,
        streams=streams,
        epochs=epochs,
        batches=FixedBatches(Lanes(epochs.total, sample.assignment.lanes), collate.batch_size or 1, collate.last),
        formation=collate.formation,
        identity=sample.identity,
        maps=maps,
        fields=tuple(fields),
        tokens=tuple(tokens),
        derived=tuple(derived.found.values()),
        values=open_cached_values(collate, streams, workplace),
        warnings=tuple(s.base.manifest.shard_note for s in streams if s.base.manifest.shard_note),
    )
    for doubt in doubts(stages, rebase.epoch if rebase else 0):
        warn(doubt)
    return stages


def _fields(lowering: Lowering, kinds: Sequence[type[FieldStage]]) -> Iterator[FieldStage]:
    """Make the stage of every field of a batch, in the plan's order: it is of the first kind that says so."""
    fields = lowering.collate.fields
    specs = field_specs(fields, lowering.have)
    for name, field in fields:
        yield next(stage for kind in kinds if (stage := kind.of(name, field, specs[name], lowering)) is not None)


def _warn_of_too_few(collate: nodes.Collate, total: int) -> None:
    """Warn where the tail rule drops the only batch, so that every epoch is empty."""
    formation, size = collate.formation, collate.batch_size or 1
    counted = formation is None or (isinstance(formation, WindowedBucket) and formation.budget is None)
    if counted and size > total and isinstance(collate.last, DropPartial):
        msg = (
            f"collate: batch_size is {size:,} and an epoch has {total:,} samples, so DropPartial drops its only batch and "
            f"every epoch is empty. Give a batch_size of at most {total:,}, or last=KeepPartial or PadPartial"
        )
        warn(msg)


def _read_by_batches(collate: nodes.Collate, sample: nodes.Sample) -> list[str]:
    """The relational columns that batches, their cost, or keys and lengths of their formation, are made of."""
    formation = collate.formation
    texts = [] if formation is None else [*formation.key_texts, *formation.length_texts]
    texts += [] if collate.cost is None else [collate.cost]
    texts += [field.value for _, field in collate.fields if isinstance(field, StepTotal)]
    keys = [name for text in texts for name in parse(text).columns()]
    plain = [field for _, field in collate.fields if not field.is_decoded and not isinstance(field, StepTotal)]
    fields = [name for field in plain for name in field.columns]
    have = sample.schema().names
    return [name for name in dict.fromkeys([*sample.identity, *fields, *keys]) if name in have and name != STREAM_ID]


def _streams(
    plans: Sequence[tuple[str, nodes.Node]], sample: nodes.Sample, workplace: Workplace
) -> tuple[StreamStage, ...]:
    """Find the rows of every stream; what is made for several of them is made once."""
    based = [(name, node, workplace.open_relation(base_scan(node).relation)) for name, node in plans]
    make_together([(node, base) for _, node, base in based], workplace)
    found = [_selected(*each, sample, workplace) for each in based]
    text = sample.order.weighted_by
    if text is not None:
        names = sorted(parse(text).columns() - {STREAM_ID})
        narrow = [(selected.narrow, names) for *_, selected in found]
        NarrowColumns.keep_together(narrow, sum(selected.total for *_, selected in found))
    return tuple(_stream(*each, sample, workplace) for each in found)


def _selected(
    name: str, node: nodes.Node, base: OpenRelation, sample: nodes.Sample, workplace: Workplace
) -> tuple[str, nodes.Node, OpenRelation, Selected]:
    try:
        selected = select(node, base, workplace)
    except FanOutError:
        pairs = owned_by_right_side(node, sample.identity)
        if pairs is None:
            raise
        node, base = pairs, workplace.open_relation(base_scan(pairs).relation)
        selected = select(node, base, workplace)
    if selected.total == 0:
        steps = "; ".join(f"{what}: {left:,} rows left" for what, left in selected.counts)
        where = f"mix: stream {name!r}: " if name else "sample: "
        way_out = "or leave the stream out" if name else "or register other data"
        if any(isinstance(each, nodes.Filter) and splits.is_of_share(each.predicate) for each in walk(node)):
            way_out = f"give the split exact=True, whose parts get their numbers of values, {way_out}"
        msg = f"{where}no row of {base.entry.name} is left ({steps or 'it has none'}). Loosen the filter, {way_out}"
        raise PlanError(msg)
    return name, node, base, selected


def _stream(
    name: str, node: nodes.Node, base: OpenRelation, selected: Selected, sample: nodes.Sample, workplace: Workplace
) -> StreamStage:
    if not set(base.entry.identity) <= set(sample.identity) or not base.entry.identity_unique:
        selected.require_unique(sample.identity)
    unit_rows, unit_shards = selected.units(of_storage=sample.order.needs_units)
    index = selected.index(sample.identity, name) if sample.order.needs_index else None
    grouped_by = sample.order.grouped_by
    runs = selected.runs(grouped_by) if grouped_by else None
    in_order = sample.order.follows_sort and unheeded_sort(node) is not None
    arranged = sorted_rows(selected, node, workplace.open_relation) if in_order else None
    text = sample.order.weighted_by
    weights = None if text is None else SelectedWeights(selected, text, sample.identity, name)
    population = Population(unit_rows, unit_shards, name, index, runs, arranged, weights)
    return StreamStage(name, node, base, selected, population)


def _mixture(sample: nodes.Sample, streams: Sequence[StreamStage], first_epoch: int) -> Mixture | None:
    mix = find(sample.source, Mix)
    if mix is None:
        return None
    totals = [sample.order.size(stream.population) for stream in streams]
    masses = None if mix.by is None else [stream.selected.mean(mix.by) for stream in streams]
    for stream, mass in zip(streams, masses or [], strict=False):
        if mass <= 0:
            msg = (
                f"mix: by={mix.by!r} is {float(mass):g} on average in stream {stream.name!r}; proportions of it need a "
                "mean above 0"
            )
            raise PlanError(msg)
    size, shares = size_and_shares(mix, totals, masses)
    seed = sample.order.run_seed
    if mix.schedule:
        return Mixture(seed, Schedule(scheduled(mix, shares, masses)), total=size, first_epoch=first_epoch)
    quotas = apportion(size, shares)
    if 0 in quotas:
        name, share = streams[quotas.index(0)].name, shares[quotas.index(0)] / sum(shares)
        msg = (
            f"mix: stream {name!r} has {float(size * share):.2g} samples of an epoch of {size:,}, so it would never come. "
            f"Take epoch_size of at least {ceil(1 / share):,}, or leave the stream out"
        )
        raise PlanError(msg)
    return Mixture(seed, quotas, first_epoch=first_epoch, in_turn=mix.in_turn)


def _tokens(node: SampleTokens, streams: Sequence[StreamStage], catalog: Registry, root: Path) -> TokenStage:
    from spiral_stream.cache.kinds.chats import ChatKind
    from spiral_stream.cache.kinds.tokens import TokenKind
    from spiral_stream.transforms.text.chat_encoder import ChatEncoder
    from spiral_stream.transforms.text.encoder import TextEncoder

    tokenize = node.transform
    encoder: TextEncoder | ChatEncoder
    if isinstance(tokenize, ChatTemplate):
        encoder = chat_encoder(tokenize, catalog, masked=node.mask is not None)
        if encoder.template_digest != node.template:
            where = f"its file {tokenize.file}" if tokenize.file else f"that of tokenizer {tokenize.tokenizer!r}"
            msg = (
                f"ChatTemplate({tokenize.column!r}) >> {', '.join(node.names)}: the chat template ({where}) changed since this "
                f"plan was made ({node.template or 'none':.8} -> {encoder.template_digest:.8}); its ids would differ. Make the "
                "plan again (save the stream again), or give the old text with template="
            )
            raise PlanError(msg)
    else:
        encoder = TextEncoder(catalog.tokenizer(tokenize.tokenizer).path, tokenize)
    if encoder.digest != node.digest:
        msg = (
            f"tokenize: tokenizer {tokenize.tokenizer!r} changed since this plan was made ({node.digest[:8]} -> "
            f"{encoder.digest[:8]}); its ids would differ. Make the plan again (save the stream again), or register "
            "the old tokenizer under that name"
        )
        raise PlanError(msg)
    caches: list[PayloadCache[TokenKind] | PayloadCache[ChatKind]] = []
    for stream in streams:
        texts = [_base_text(node.source, stream, each) for each in tokenize.columns]
        column, *others = (each for each in texts if each is not None) if all(texts) else ("",)
        if not column:
            return TokenStage(node.name, tokenize.column, encoder, ())
        payload, relation = base_payload(stream.selected, stream.base, column), stream.base.entry.name
        if isinstance(encoder, ChatEncoder):
            caches.append(cached(payload, ChatKind(relation, column, tuple(others), encoder), root))
        else:
            caches.append(cached(payload, TokenKind(relation, column, encoder), root))
    return TokenStage(node.name, tokenize.column, encoder, tuple(caches))


def _base_text(node: nodes.Node, stream: StreamStage, column: str) -> str | None:
    """The column of the stream's own relation that a column is, unchanged since; None for any other."""
    for each in spine(node):
        if isinstance(each, nodes.Sample):
            break
        made = getattr(each, "names", None) or (getattr(each, "name", None),)
        if column in made:
            return None
    return origin(stream.node, column)


def _keys_of(entry: Entry) -> bytes:
    """Content keys of a relation's shards, 16 bytes each."""
    return shard_keys(entry.manifest()).tobytes()
