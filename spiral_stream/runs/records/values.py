"""What a loop logs of a batch, reduced to one value per sample.

A value is one number per sample, one per token, or one for the whole batch. Tokens are reduced over each sample's own, by
segment in packed rows, to their sum and their count, so that parts of a row on several ranks and later groupings stay exact.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.errors import RunError, cut, shown
from spiral_stream.runs.records.token_shard import TokenShard
from spiral_stream.runtime.batch.keys import BatchKey, TokenSpans
from spiral_stream.runtime.measured import ValueForm

Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
RESERVED: Final = frozenset(
    ("attempt", "leg", "rank", "epoch", "number", "batch", "step", "index", "stream", "shard", "row", "part", "applied")
)
_NAME: Final = re.compile("[A-Za-z][A-Za-z0-9_]*")


@final
@dataclass(frozen=True, slots=True, eq=False)
class PerSample:
    """One number of each sample."""

    values: Float32  # [S]


@final
@dataclass(frozen=True, slots=True, eq=False)
class PerToken:
    """The tokens' values of each sample: their sum, and how many they are."""

    sums: Float64  # [S]
    counts: NDArray[np.int32]  # [S]


@final
@dataclass(frozen=True, slots=True)
class PerBatch:
    """One number of the whole batch."""

    value: float


Value = PerSample | PerToken | PerBatch


def need_value_names(names: Collection[str], identity: Collection[str]) -> None:
    """Refuse names that values cannot have.

    Args:
        names: of the values of one batch.
        identity: columns that identify samples.

    Raises:
        RunError: one is a column of every run, identifies samples, is no name, or is what another one is recorded as.
    """
    for name in names:
        stem = re.sub("_(sum|tokens)$", "", name)
        if name in RESERVED:
            found = "is a column of every run"
        elif name in identity:
            found = "identifies the samples"
        elif stem != name and stem in names:
            found = f"is what {stem}= per token is recorded as"
        elif not _NAME.fullmatch(name):
            found = "is no name"
        else:
            continue
        msg = f"log: {shown(name)} {found}. Give the value a name of letters, digits and _ of its own: loss=..., accuracy=..."
        raise RunError(msg)


def form_of(
    name: str, shape: Sequence[int], key: BatchKey, shard: TokenShard | None = None, mask: Sequence[int] | None = None
) -> ValueForm:
    """Return how a value of a shape fits a batch. Looks at no value.

    Args:
        name: of the value, for messages.
        shape: [B] or [S], one per row or sample; [B, T], one per token; or [], one for the batch.
        key: of the batch.
        shard: which tokens this process has; then [B] and [S] are sums over these of each sample. None: it has all.
        mask: its shape; None without one.

    Raises:
        RunError: it fits neither the batch's rows nor their tokens.
    """
    if len(shape) == 0:
        return ValueForm(alone=True)
    if len(shape) == 1 and shard is None:
        return ValueForm(rows=_rows(name, shape[0], key))
    if len(shape) == 1 and shard is not None:
        width = None if mask is None or len(mask) != 2 else mask[1]  # noqa: PLR2004  [B, T]
        return ValueForm(_rows(name, shape[0], key), shard.spans(name, key, width), summed=True)
    if len(shape) == 2:  # noqa: PLR2004
        if shard is None or shape[0] != key.size:
            return ValueForm(tokens=_tokens(name, shape[0], shape[1], key))
        return ValueForm(tokens=shard.spans(name, key, shape[1]))
    msg = f"log: {name}= has shape {list(shape)}. Give one value per sample [B], per token [B, T], or one for the batch []"
    raise RunError(msg)


@final
class FormOf:
    """Tells how the shape of a value fits a batch, and knows it afterwards.

    Args:
        name: of the value, for messages.
        key: of the batch.
        mask: that is of the same shape as the value; None: there is none.
        shard: which tokens this process has; None: all.

    Attributes:
        form: what was told; None before.
    """

    def __init__(self, name: str, key: BatchKey, mask: Any, shard: TokenShard | None = None) -> None:
        self._name, self._key, self._mask, self._shard = name, key, mask, shard
        self.form: ValueForm | None = None

    def __call__(self, shape: Sequence[int]) -> ValueForm:
        mask = None if self._mask is None else np.shape(self._mask)
        self.form = form_of(self._name, shape, self._key, self._shard, mask)
        if mask is not None and self.form.tokens is not None:
            need_mask(self._name, (self._key.size, self.form.tokens.width) if self.form.summed else shape, mask)
        return self.form


def need_mask(name: str, shape: Sequence[int], mask: Sequence[int]) -> None:
    """Refuse a mask of another shape than the values that it is of.

    Raises:
        RunError: says both shapes.
    """
    if tuple(mask) != tuple(shape):
        msg = f"log: mask= has shape {list(mask)}, and {name}= has {list(shape)}. Give them the same shape"
        raise RunError(msg)


def value_of(form: ValueForm, values: NDArray[Any], counts: NDArray[Any] | None) -> Value:
    """Return a value that was reduced by sample already.

    Args:
        form: how it fitted its batch.
        values: one number per sample or for the batch, or the sums of the tokens.
        counts: how many tokens count; None where all do.
    """
    if form.alone:
        return PerBatch(float(values))
    if form.tokens is None:
        return PerSample(values.astype(np.float32, copy=False))
    counted = form.tokens.lengths if counts is None else counts
    return PerToken(values.astype(np.float64, copy=False), counted.astype(np.int32))


def reduced(name: str, value: Any, fits: FormOf, mask: NDArray[np.bool_] | None = None) -> Value:
    """Return what a run records of a value that lies on the host.

    Args:
        name: of the value, for messages.
        value: an array or tensor of numbers; `form_of` says of which shapes.
        fits: says how it fits its batch.
        mask: shape [B, T]: which tokens count; None counts all of a sample.

    Raises:
        RunError: its shape fits neither the batch's rows nor their tokens, or it holds no numbers.
    """
    array = numbers(name, value)
    form = fits(array.shape)
    if form.alone:
        return PerBatch(float(array))
    if form.tokens is None or form.summed:
        array = array if form.rows is None else array[form.rows]
    if form.tokens is None:
        return PerSample(array.astype(np.float32))
    counts = form.tokens.lengths if mask is None else _sums(mask, form.tokens)
    if form.summed:
        return PerToken(array.astype(np.float64), counts.astype(np.int32))
    sums = _sums(array if mask is None else np.where(mask, array, 0), form.tokens)
    return PerToken(sums, counts.astype(np.int32))


def numbers(name: str, value: Any) -> NDArray[Any]:
    """Return a value as an array of numbers on the host.

    Raises:
        RunError: it holds something else.
    """
    detach = getattr(value, "detach", None)
    if detach is not None:
        value = detach()
        value = (value.float() if value.is_floating_point() and value.element_size() < 4 else value).cpu().numpy()  # noqa: PLR2004
    try:
        array = np.asarray(value)
        found = "" if array.dtype.kind in "fiub" else f"holds {array.dtype}"
    except ValueError:  # as NumPy says it of lists of unequal lengths
        found = "has lists of unequal lengths"
    if found:
        msg = f"log: {name}={cut(repr(value), 60)} {found}. Give numbers: an array, a tensor, a list, or one number"
        raise RunError(msg)
    return array


def on_host(value: Any) -> bool:
    """Return whether a value can be looked at without waiting for a device."""
    return getattr(getattr(value, "device", None), "type", "cpu") == "cpu"


def mask_of(mask: Any) -> NDArray[np.bool_]:
    """Return a mask that lies on the host.

    Raises:
        RunError: it holds something else than 0 and 1, as labels do.
    """
    array = numbers("mask", mask)
    if array.dtype.kind != "b" and len(wrong := array[(array != 0) & (array != 1)]):
        msg = f"log: mask= holds {wrong[0]}. Give 1 where a token counts, and 0 elsewhere; of labels: labels != -100"
        raise RunError(msg)
    return array.astype(np.bool_)


def _rows(name: str, count: int, key: BatchKey) -> Int64 | None:
    lines = key.lines
    if lines is None and count == key.size:
        return None
    packed = lines is not None and bool((np.diff(lines) == 0).any())
    if count == key.size and not packed:
        return lines
    if packed and count == len(key):
        return None
    if packed:
        msg = (
            f"log: {name}= has {count:,} values; this batch packs {len(key):,} pieces of samples into {key.size:,} rows. "
            "Give one value per piece, or one per token [B, T], which is summed by piece"
        )
        raise RunError(msg)
    msg = (
        f"log: {name}= has {count:,} values; this batch has {key.size:,} rows. Give the loss of this batch, one per row"
    )
    raise RunError(msg)


def _tokens(name: str, rows: int, width: int, key: BatchKey) -> TokenSpans:
    spans = next((each for each in key.spans if each.width == width), None)
    if rows == key.size and spans is not None:
        return spans
    widths = ", ".join(str(each.width) for each in key.spans) or "no width: it has no token field"
    way = f"values of shape [{key.size}, T], where T is {widths}" if key.spans else "one value per row"
    msg = f"log: {name}= has shape [{rows}, {width}]; this batch has {key.size:,} rows of {widths}. Give {way}"
    if any(width == each.width - 1 for each in key.spans):
        msg += "; losses of shifted labels lack the first or the last place: put a 0 there, and say mask="
    raise RunError(msg)


def _sums(array: NDArray[Any], spans: TokenSpans) -> Float64:
    """The sum of each sample's own places, which alone are looked at: another's NaN does not reach it."""
    flat = np.append(array.astype(np.float64).ravel(), 0.0)
    first = spans.lines * spans.width + spans.starts
    borders = np.stack([first, first + spans.lengths], axis=1).ravel()
    if not len(borders):
        return np.empty(0)
    out: Float64 = np.add.reduceat(flat, borders)[::2]
    out[spans.lengths == 0] = 0.0
    return out
