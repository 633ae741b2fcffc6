"""Turn conversations into token ids and loss masks, many rows per call.

A row is rendered to text (`transforms.text.chat_rendering`), and the whole text is tokenized by the tokenizers library, which
says where in the text each token stands. A token is trained on if it holds a character of the assistant's. Cost: about
30 us per message and rendering, in Python, and 0.3 us per token.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.errors import DataError, PlanError, SourceError
from spiral_stream.transforms.text.chat import ChatTemplate
from spiral_stream.transforms.text.chat_format import ChatFormat
from spiral_stream.transforms.text.chat_rendering import Renderer, Spans
from spiral_stream.transforms.text.encoder import largest_id, open_tokenizer, read_tokenizer
from spiral_stream.transforms.text.image_tokens import ImageTokens, Repeating
from spiral_stream.transforms.text.tokenizer_identity import content_digest

# S rows, N tokens of one

_TOGETHER: Final = 128  # texts of one call: the library tokenizes them on all cores


@final
class ChatEncoder:
    """A tokenizer and a chat template with the options of a `ChatTemplate`. Thread-safe."""

    def __init__(
        self, tokenizer_json: Path, chat: ChatTemplate, form: ChatFormat, *, masked: bool, layout: str | None = None
    ) -> None:
        """Read the tokenizer.

        Args:
            tokenizer_json: the path of a ``tokenizer.json``.
            chat: the options; its tokenizer name is not used.
            form: the template.
            masked: whether a loss mask is wanted.
            layout: what identifies the layout of images, code included; None without images.

        Raises:
            PlanError: the mark of images is no token of it.
            SourceError: the file cannot be read, or is no tokenizer.
        """
        self._path, self._chat, self._form, self.masked = tokenizer_json, chat, form, masked
        self._layout = layout
        data = read_tokenizer(tokenizer_json)
        # The template writes the special tokens. What a post-processor adds is left out, and so is what it does to the
        # places of tokens: it would take blanks out of them.
        bare = json.dumps({**json.loads(data), "post_processor": None}).encode() if _is_object(data) else data
        self._tokenizer = open_tokenizer(bare, str(tokenizer_json))
        self.template_digest = form.digest
        self._renderer = Renderer(chat, form, masked=masked)
        self.dtype: np.dtype[Any] = np.dtype(np.uint16 if largest_id(self._tokenizer) < 1 << 16 else np.uint32)
        self.digest = chat_digest(content_digest(data), chat, form, masked=masked, layout=layout)
        self._repeating = None if chat.images is None else self._repeats(chat.images)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process reads the tokenizer itself."""
        return _again, (self._path, self._chat, self._form, self.masked, self.digest, self._layout)

    def _repeats(self, images: ImageTokens) -> Repeating:
        """What repeats the marks of images.

        Raises:
            PlanError: the mark is no token.
        """
        mark = self._tokenizer.token_to_id(images.token)
        if mark is None:
            msg = (
                f"ChatTemplate: ImageTokens({images.token!r}) is no token of tokenizer {self._chat.tokenizer!r}. Give the token "
                "that the template writes for an image, or add it to the tokenizer and register that again"
            )
            raise PlanError(msg)
        return Repeating(images, mark, self._chat.column)

    @property
    def engine(self) -> str:
        """A text that says which engine encodes, and why."""
        return "tokenizers: only it says where in the text a token stands"

    def encode(self, rows: pa.Table) -> tuple[list[NDArray[Any]], list[NDArray[np.uint8]], dict[int, str]]:
        """Encode S rows.

        Args:
            rows: the columns of the transform, in its order.

        Returns:
            ids: per row, of `dtype`; none for a refused row.
            masks: per row, 1 where it is trained on; zeros without a mask.
            refused: the place of each row that is no conversation, and why.
        """
        ids: list[NDArray[Any]] = []
        masks: list[NDArray[np.uint8]] = []
        refused: dict[int, str] = {}
        for begin in range(0, rows.num_rows, _TOGETHER):
            some = rows.slice(begin, _TOGETHER)
            texts, spans = self._rendered(some, begin, refused)
            for at, (found, mask) in enumerate(self._encoded(texts, spans, some, begin, refused), begin):
                try:
                    span = slice(0, 0) if at in refused else self._span_left(mask, spans[at - begin])
                except DataError as error:
                    refused[at], span = str(error), slice(0, 0)
                ids.append(found[span])
                masks.append(mask[span])
        return ids, masks, refused

    def _encoded(
        self, texts: list[str], spans: list[Spans], rows: pa.Table, begin: int, refused: dict[int, str]
    ) -> Iterable[tuple[NDArray[Any], NDArray[np.uint8]]]:
        """Ids and mask of each text, with the marks of images repeated; before that no length says anything."""
        encoded = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        ids = [np.array(each.ids, dtype=self.dtype) for each in encoded]
        masks = [
            _mask(each, span) if self.masked else np.zeros(len(each.ids), np.uint8)
            for each, span in zip(encoded, spans, strict=True)
        ]
        if self._repeating is not None:
            ids, masks, why_not = self._repeating.rows(ids, masks, rows.column(rows.num_columns - 1))
            for row, reason in why_not.items():
                refused.setdefault(begin + row, reason)
        return zip(ids, masks, strict=True)

    def _rendered(self, rows: pa.Table, begin: int, refused: dict[int, str]) -> tuple[list[str], list[Spans]]:
        texts, spans = [], []
        columns = dict(zip(self._chat.columns, rows.columns, strict=True))
        listed = {name: _as_python(column) for name, column in columns.items()}
        values = listed[self._chat.column]
        prompts = listed.get(self._chat.prompt or "", [None] * len(values))
        tools = listed.get(self._chat.tools or "", [None] * len(values))
        for at, row in enumerate(zip(values, prompts, tools, strict=True), begin):
            try:
                text, where = self._renderer.render(*row)
            except DataError as error:
                refused[at] = str(error)
                text, where = "", []
            texts.append(text)
            spans.append(where)
        return texts, spans

    def _span_left(self, mask: NDArray[np.uint8], spans: Spans) -> slice:
        """The tokens of a row that ``max_length`` leaves.

        Raises:
            DataError: the row is too long, or nothing is left to train on.
        """
        chat, count = self._chat, len(mask)
        most = count if chat.max_length is None else min(count, chat.max_length)
        where = f"ChatTemplate({chat.column!r})"
        if most < count and chat.truncate == "refuse":
            way_out = "filter the row out" if chat.images is not None else "give truncate='end' or 'start'"
            msg = f"{where}: {count:,} tokens, above max_length={chat.max_length:,}. Raise it, or {way_out}"
            raise DataError(msg)
        span = slice(count - most, count) if chat.truncate == "start" else slice(0, most)
        wanted = self.masked and chat.no_target == "refuse" and (bool(spans) or not chat.add_generation_prompt)
        if wanted and not mask[span].any():
            found = (
                f"of {count:,} tokens, max_length={chat.max_length:,} leaves none of the {int(mask.sum()):,} to train on"
                if mask.any()
                else "the assistant's turns have no token"
            )
            msg = f"{where}: {found}. Raise max_length, give truncate='start', or keep such rows with no_target='keep'"
            raise DataError(msg)
        return span


def chat_digest(
    tokenizer_digest: str, chat: ChatTemplate, form: ChatFormat, *, masked: bool, layout: str | None = None
) -> str:
    """Compute an encoder's digest, 32 hexadecimal digits, without opening the tokenizer.

    Args:
        tokenizer_digest: `transforms.text.tokenizer_identity.content_digest` of it.
        chat: the options.
        form: the template.
        masked: whether a loss mask is wanted.
        layout: what identifies the layout of images; None without images.
    """
    facts: dict[str, Any] = {
        "tokenizer": tokenizer_digest,
        "template": form.digest,
        "transform": [chat.NAME, chat.VERSION],
        "masked": masked,
        "options": chat_options(chat),
    }
    if chat.images is not None:
        facts["images"] = [chat.images.token, layout]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def chat_options(chat: ChatTemplate) -> dict[str, Any]:
    """Return what decides the tokens of a row, besides tokenizer and template, as JSON values."""
    return {
        "prompt": chat.prompt is not None,
        "tools": chat.tools is not None,
        "train_on": chat.train_on,
        "add_generation_prompt": chat.add_generation_prompt,
        "max_length": chat.max_length,
        "truncate": chat.truncate,
        "no_target": chat.no_target,
        "roles": list(chat.roles),
        "variables": [list(each) for each in chat.variables],
    }


def _again(
    path: Path, chat: ChatTemplate, form: ChatFormat, masked: bool, digest: str, layout: str | None
) -> ChatEncoder:
    """Read a tokenizer again, in another process."""
    encoder = ChatEncoder(path, chat, form, masked=masked, layout=layout)
    if encoder.digest != digest:
        msg = f"{path!s:.200} changed while it was used. Register the tokenizer again, and make the plan again"
        raise SourceError(msg)
    return encoder


def _is_object(data: bytes) -> bool:
    try:
        return isinstance(json.loads(data), Mapping)
    except ValueError:
        return False


def _as_python(column: pa.ChunkedArray) -> list[Any]:
    """The values; a text that is not UTF-8 is None, as bytes that are no text."""
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        return [_value(column, at) for at in range(len(column))]


def _value(column: pa.ChunkedArray, at: int) -> Any:
    try:
        return column[at].as_py()
    except UnicodeDecodeError:
        return None


def _mask(encoding: Any, spans: Spans) -> NDArray[np.uint8]:
    """1 at the tokens that hold a character of a span: shape [N]."""
    mask = np.zeros(len(encoding.ids), np.uint8)
    if spans:
        begins_N, ends_N = np.array(encoding.offsets, np.int64).reshape(-1, 2).T
        for begin, end in spans:
            mask[np.searchsorted(ends_N, begin, "right") : np.searchsorted(begins_N, end, "left")] = 1
    return mask
