"""The verbs between `Sample` and `Collate`: columns computed late, samples left out, added or joined.

Each runs on Arrow batches of samples, never on one at a time by itself; its result for
a sample depends on that sample (and, if it draws, on the sample's own random key), so
neither the batch it happens to run in nor the worker that runs it can be seen. `Assemble`
alone sees samples together: those of one chapter, in order.
"""

import pickle
from dataclasses import dataclass
from typing import ClassVar, final

import pyarrow as pa

from spiral_stream.errors import PlanError
from spiral_stream.expr import Expr
from spiral_stream.plan.checks import bound_type, need_columns, need_integer, need_new_names, plain_type
from spiral_stream.plan.fields.chats import check_chat
from spiral_stream.plan.nodes import Node, Sample, Sampled, Simple, need_after
from spiral_stream.plan.tree import spine
from spiral_stream.semantic import is_text
from spiral_stream.transforms.python import Function
from spiral_stream.transforms.text.chat import ChatTemplate
from spiral_stream.transforms.text.tokenize import Tokenize


def need_sampled(verb: str, node: Node) -> None:
    """Refuse a map before `Sample` or after `Collate`."""
    need_after(verb, node, Sampled, "; it comes after .sample(...) and before .collate(...)")


def _need_called(node: "SampleMap | SampleRecords | SampleFlatMap", verb: str) -> None:
    """Refuse a function whose columns are not there, or that other processes cannot find."""
    need_sampled(node.VERB, node.source)
    need_columns(f"{verb} ({node.function.name})", node.function.columns, node.source.schema())
    need_elsewhere(verb, node.function)


def need_elsewhere(verb: str, function: Function, *, is_cached: bool = False) -> None:
    """Refuse a function that other processes are to run, or whose values are to be kept, and that only this one has.

    Raises:
        PlanError: says what it is, and what would be found.
    """
    if not is_cached and function.workers is None:
        return
    try:
        pickle.dumps(function.function)
    except Exception as error:
        why = "its values are to be kept" if is_cached else f"workers={function.workers} runs it in other processes"
        msg = (
            f"{verb} ({function.name}): {why}, and no other process can find it ({error!s:.120}). Define it with `def` at the "
            f"top level of a module{'' if is_cached else ', or leave workers out'}"
        )
        raise PlanError(msg) from error


def need_positions(node: Node, function: Function) -> None:
    """Refuse places in the epoch's order for samples that `assemble` made of several, and that stand nowhere in it.

    Raises:
        PlanError: says what to do instead.
    """
    made = (
        next((each for each in spine(node) if isinstance(each, SampleAssembly)), None) if function.with_index else None
    )
    if made is not None:
        msg = (
            f"map ({function.name}): with_index=True follows assemble ({made.function.name}), whose samples are made of several "
            "and have no place in the order. Write this map before assemble, and take its column there"
        )
        raise PlanError(msg)


PART = "part"  # which of its parent's samples a sample of flat_map is


@final
@dataclass(frozen=True, slots=True, eq=False)
class SampleTokens(Sampled):
    """Add a column of token ids, and a loss mask where one is asked for.

    ``digest`` is of the tokenizer (and of the chat template) as the catalog held it when the plan was made.
    """

    VERB: ClassVar[str] = "tokenize"
    source: Node
    transform: Tokenize | ChatTemplate
    name: str
    digest: str
    item_bytes: int
    mask: str | None = None
    template: str | None = None  # digest of the chat template

    def __post_init__(self) -> None:
        need_sampled(self.VERB, self.source)
        have = self.source.schema()
        need_columns("tokenize", self.transform.columns, have)
        if isinstance(self.transform, ChatTemplate):
            check_chat(self.transform, have)
            need_new_names("ChatTemplate", self.names, "Give tokens and mask a name of their own")
        else:
            kind = plain_type(have.field(self.transform.column).type)
            if not (is_text(kind) or pa.types.is_binary(kind)):
                msg = f"tokenize: {self.transform.column!r} is {kind}. Name a column of text"
                raise PlanError(msg)
        if self.item_bytes not in (2, 4):
            msg = f"tokenize: ids take 2 or 4 bytes, not {self.item_bytes}. Save the stream again"
            raise PlanError(msg)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that it gives."""
        return (self.name,) if self.mask is None else (self.name, self.mask)

    def schema(self) -> pa.Schema:
        tokens = pa.uint16() if self.item_bytes == 2 else pa.uint32()  # noqa: PLR2004
        out = _with(self.source.schema(), self.name, pa.list_(tokens))
        return out if self.mask is None else _with(out, self.mask, pa.list_(pa.uint8()))


@final
@dataclass(frozen=True, slots=True, eq=False)
class SampleColumns(Sampled):
    """Add or replace columns by expressions."""

    VERB: ClassVar[str] = "compute"
    source: Node
    names: tuple[str, ...]
    exprs: tuple[Expr, ...]

    def __post_init__(self) -> None:
        need_sampled(self.VERB, self.source)
        self.schema()

    def schema(self) -> pa.Schema:
        have = out = self.source.schema()
        for name, expr in zip(self.names, self.exprs, strict=True):
            out = _with(out, name, bound_type(f"with_columns ({name})", expr, have))
        return out


@final
@dataclass(frozen=True, slots=True, eq=False)
class SampleMap(Sampled):
    """Add a column that a Python function gives."""

    VERB: ClassVar[str] = "map"
    source: Node
    function: Function
    name: str

    def __post_init__(self) -> None:
        _need_called(self, "map")
        need_positions(self.source, self.function)

    def schema(self) -> pa.Schema:
        return _with(self.source.schema(), self.name, self.function.kind)


@final
@dataclass(frozen=True, slots=True, eq=False)
class SampleRecords(Sampled):
    """Add or replace the columns that a Python function of record batches gives."""

    VERB: ClassVar[str] = "map_records"
    source: Node
    function: Function

    def __post_init__(self) -> None:
        _need_called(self, "map")
        name = self.function.name
        if not pa.types.is_struct(self.function.kind) or not self.function.kind.num_fields:
            msg = f'map ({name}): returns no column. Give returns={{"name": type, ...}}'
            raise PlanError(msg)
        need_new_names(f"map ({name})", self.names, "Name each column of returns= once")
        need_positions(self.source, self.function)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that it gives."""
        return tuple(field.name for field in self.function.kind)

    def schema(self) -> pa.Schema:
        out = self.source.schema()
        for field in self.function.kind:
            out = _with(out, field.name, field.type)
        return out


@final
@dataclass(frozen=True, slots=True, eq=False)
class SampleFilter(Simple, Sampled):
    """Leave out the samples for which the predicate is not true."""

    VERB: ClassVar[str] = "keep"
    source: Node
    predicate: Expr | Function

    def __post_init__(self) -> None:
        need_sampled(self.VERB, self.source)
        have = self.source.schema()
        if isinstance(self.predicate, Function):
            need_columns(f"filter ({self.predicate.name})", self.predicate.columns, have)
            if not pa.types.is_boolean(self.predicate.kind):
                msg = f"filter ({self.predicate.name}): returns {self.predicate.kind}. Give returns=pa.bool_()"
                raise PlanError(msg)
            need_elsewhere("filter", self.predicate)
        elif not pa.types.is_boolean(kind := bound_type("filter", self.predicate, have)):
            msg = f'filter: the predicate is {kind}, not bool. Compare it, for example len_("tokens") > 8'
            raise PlanError(msg)


@final
@dataclass(frozen=True, slots=True, eq=False)
class SampleFlatMap(Sampled):
    """Replace each sample by at most ``fan_out`` samples; the k-th has the identity (parent's, k)."""

    VERB: ClassVar[str] = "flat_map"
    source: Node
    function: Function
    name: str
    fan_out: int

    def __post_init__(self) -> None:
        _need_called(self, self.VERB)
        need_integer(self.VERB, "fan_out", self.fan_out, least=1)
        if not pa.types.is_list(self.function.kind):
            msg = (
                f"flat_map ({self.function.name}): returns {self.function.kind}. Give returns=pa.list_(...), "
                "one list per sample"
            )
            raise PlanError(msg)

    def schema(self) -> pa.Schema:
        out = _with(self.source.schema(), self.name, self.function.kind.value_type)
        return _with(out, PART, pa.int32())


@final
@dataclass(frozen=True, slots=True, eq=False)
class SampleAssembly(Sampled):
    """Samples made of several others, by an object that sees those of one chapter in their order and may keep some back.

    ``function`` makes that object from a `context.Context`; its ``push`` takes a table of samples and its ``finish`` none, and
    both return a table of new samples, which must say their identity themselves.
    """

    VERB: ClassVar[str] = "assemble"
    source: Node
    function: Function
    drop_last: bool = False  # whether what an assembler still holds at a chapter's end is left out

    def __post_init__(self) -> None:
        need_sampled(self.VERB, self.source)
        name = self.function.name
        need_columns(f"assemble ({name})", self.function.columns, self.source.schema())
        if not pa.types.is_struct(self.function.kind):
            msg = f"assemble ({name}): returns {self.function.kind}. Give returns=pa.schema([...]), the columns of a new sample"
            raise PlanError(msg)
        identity = next(each.identity for each in spine(self.source) if isinstance(each, Sample))
        lost = [each for each in identity if each not in self.schema().names]
        if lost:
            msg = f"assemble ({name}): its samples have no column {lost[0]!r}, the identity. Add it to returns="
            raise PlanError(msg)

    def schema(self) -> pa.Schema:
        return pa.schema(list(self.function.kind))


def _with(schema: pa.Schema, name: str, kind: pa.DataType) -> pa.Schema:
    field = pa.field(name, kind)
    at = schema.get_field_index(name)
    return schema.append(field) if at < 0 else schema.set(at, field)
