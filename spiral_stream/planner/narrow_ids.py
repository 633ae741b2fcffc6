"""Token ids of uint16: a tokenizer with larger ids is refused when the batch is planned.

Of ids that are stored nobody knows the largest: there an id that does not fit is an error when its batch is written
(`fields.sequence`), which names the sample. None wraps around.
"""

from collections.abc import Mapping
from typing import Any, Final

from spiral_stream.catalog.registry import AnyCatalog
from spiral_stream.errors import PlanError
from spiral_stream.fields.field import named
from spiral_stream.fields.labels import LabelField
from spiral_stream.fields.pad import Pad
from spiral_stream.fields.sequence import NARROW
from spiral_stream.plan.functions.cached_functions import made_by
from spiral_stream.plan.nodes import Node
from spiral_stream.plan.tree import spine
from spiral_stream.plan.verbs.maps import SampleTokens

_MOST: Final = 65_535


def need_narrow_ids(node: Node, fields: Mapping[str, Any], catalog: AnyCatalog) -> Node:
    """Return a node, unless a tokenizer has ids above those of uint16 fields, or one that is the labels' ``ignore_index``.

    Args:
        node: what is collated.
        fields: of the batch; what is no field is refused elsewhere.
        catalog: holds the tokenizers; asked only of fields of uint16.

    Raises:
        PlanError: names the field, the tokenizer, its largest id, and the way out.
    """
    for name, field in fields.items():
        if not isinstance(field, Pad | LabelField) or field.dtype != NARROW:
            continue
        tokenizer = _tokenizer(node, field.column)
        if tokenizer is None:
            continue
        largest = catalog.registry.tokenizer(tokenizer).vocab_size - 1
        where = f"collate: field {name!r}: {named(field)}: dtype='uint16'"
        has = f"tokenizer {tokenizer!r}, which makes the column, has ids up to {largest:,}"
        if largest > _MOST:
            msg = f'{where} holds ids up to {_MOST:,}, and {has}. Give dtype="int32", or "int64"'
            raise PlanError(msg)
        if isinstance(field, LabelField) and field.ignore_index <= largest:
            free = f"Give ignore_index={_MOST:_}, here and to the loss" if largest < _MOST else 'Give dtype="int64"'
            msg = f"{where} with ignore_index={field.ignore_index}, and {has}: the loss would ignore that token. {free}"
            raise PlanError(msg)
    return node


def _tokenizer(node: Node, column: str) -> str | None:
    """The name of the tokenizer whose ids a column holds; None if they are stored, or a function makes them."""
    maker = next((each for each in spine(node) if column in made_by(each)), None)
    return maker.transform.tokenizer if isinstance(maker, SampleTokens) and maker.name == column else None
