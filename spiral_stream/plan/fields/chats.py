"""Check the columns that a `ChatTemplate` reads: their types, and what is missing."""

import pyarrow as pa

from spiral_stream.errors import PlanError
from spiral_stream.plan.checks import plain_type
from spiral_stream.semantic import is_ragged, is_text, need_sizes
from spiral_stream.transforms.text.chat import ChatTemplate


def check_chat(chat: ChatTemplate, have: pa.Schema) -> None:
    """Refuse columns that hold no conversations, or no tools.

    Raises:
        PlanError: says what the column is, and what it should be.
    """
    for what, name in (("column", chat.column), ("prompt", chat.prompt)):
        if name is not None:
            _check_messages(what, name, have.field(name).type)
    if chat.tools is not None:
        kind = plain_type(have.field(chat.tools).type)
        if not _is_text(kind) and not (is_ragged(kind) and pa.types.is_struct(kind.value_type)):
            msg = f"ChatTemplate: tools={chat.tools!r} is {kind}. Name a column of JSON text, or of lists of structs"
            raise PlanError(msg)

    if chat.images is not None:
        sizes = have.field(chat.images.sizes)
        need_sizes("ChatTemplate", sizes.with_type(plain_type(sizes.type)))


def _check_messages(what: str, name: str, kind: pa.DataType) -> None:
    kind = plain_type(kind)
    if _is_text(kind):
        return
    message = kind.value_type if is_ragged(kind) else None
    if message is None or not pa.types.is_struct(message):
        msg = f"ChatTemplate: {what} {name!r} is {kind}. Name a column of messages, list<struct<role, content>>, or of text"
        raise PlanError(msg)
    fields = [field.name for field in message]
    if "role" not in fields or not {"content", "tool_calls"} & set(fields):
        msg = (
            f"ChatTemplate: a message of {name!r} has {', '.join(fields)}. Templates read role and content: make such a "
            'column with .map(f, returns=...), for example of "from" and "value"'
        )
        raise PlanError(msg)


def _is_text(kind: pa.DataType) -> bool:
    return is_text(kind) or bool(pa.types.is_string_view(kind))
