"""`ImageTokens`: the places that images take in a text. A template writes a mark per image; the mark is repeated here.

How often follows from the image's height and width by an `ImageLayout`, so the ids of a row, and how many they are, are
known before any image is read. It is the arithmetic of transformers' processors, for all rows at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, final, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.arguments import check, class_door, of_kind, text
from spiral_stream.errors import PlanError
from spiral_stream.semantic import HEIGHT, WIDTH

# S rows, I images of all rows, N tokens of all rows

Int64 = NDArray[np.int64]


@runtime_checkable
class TokenCounts(Protocol):
    """What says how many places an image takes: an `ImageLayout`."""

    def token_counts(self, sizes: Int64) -> Int64:
        """Return the places of each image; ``sizes`` has shape [I, 2]."""
        ...

    def refused(self, sizes: Int64) -> NDArray[np.bool_]:
        """Return which images cannot be taken."""
        ...


_LAYOUT: Final = of_kind(TokenCounts, "an image layout, such as spiral.fields.PatchLayout(patch_size=14, merge_size=2)")


@final
@class_door(PlanError)
@dataclass(frozen=True, slots=True)
class ImageTokens:
    """The places that images take in the text of a `ChatTemplate`.

    The template writes ``token`` once for each image; in the ids it stands as often as the layout says.

    Args:
        token: the text of the mark, such as ``"<|image_pad|>"`` or ``"<image>"``; one token of the tokenizer.
        layout: says how many places an image takes: `FixedLayout`, `PatchLayout`, `TileLayout`, or one of your own.
        sizes: a column with the height and width of each image, ``list<struct<height, width>>``, in the order of their marks.
            `ImageSizes` makes it of encoded images.

    Raises:
        PlanError: an argument is of the wrong type.

    Examples:
        >>> layout = spiral.fields.PatchLayout(patch_size=14, merge_size=2)
        >>> images = spiral.transforms.ImageTokens("<|image_pad|>", layout=layout, sizes="sizes")
        >>> spiral.transforms.ChatTemplate("messages", tokenizer="qwen", images=images).columns
        ('messages', 'sizes')
    """

    token: str
    layout: Any
    sizes: str = "sizes"

    def __post_init__(self) -> None:
        check(self, "ImageTokens", " is ", token=text("the text of a token, such as '<|image_pad|>'"), layout=_LAYOUT)
        check(self, "ImageTokens", " is ", sizes=text("the name of a column of heights and widths"))


def sizes_of(column: pa.Array | pa.ChunkedArray) -> tuple[Int64, Int64]:
    """Return heights and widths of all images, shape [I, 2], and how many each row has, shape [S].

    Args:
        column: ``list<struct<height, width>>``, S rows; a null list has none, and a null side is 0.
    """
    lists = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    counts = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = lists.flatten()
    sides = [pc.struct_field(flat, side).fill_null(0).to_numpy(zero_copy_only=False) for side in (HEIGHT, WIDTH)]
    return np.stack(sides, axis=1).astype(np.int64).reshape(-1, 2), counts


@final
class Repeating:
    """Repeats the marks of images in rows of ids. Thread-safe.

    Args:
        images: what a plan says of them.
        mark: the id of their mark.
        column: of the conversations, for messages.
    """

    def __init__(self, images: ImageTokens, mark: int, column: str) -> None:
        self._images, self._mark, self._column = images, mark, column

    def rows(
        self, ids: Sequence[NDArray[Any]], masks: Sequence[NDArray[np.uint8]], sizes: pa.ChunkedArray
    ) -> tuple[list[NDArray[Any]], list[NDArray[np.uint8]], dict[int, str]]:
        """Repeat the marks of S rows.

        Args:
            ids: of each row.
            masks: likewise; a repeated mark has the value of the one that it repeats.
            sizes: the column of sizes.

        Returns:
            ids, masks, and why rows are refused, by their place.
        """
        pairs, given = sizes_of(sizes)
        lengths = np.array([len(each) for each in ids], np.int64)
        flat = np.concatenate([np.empty(0, np.int64), *ids])
        owners = np.repeat(np.arange(len(ids)), lengths)
        at = np.flatnonzero(flat == self._mark)
        marks = np.bincount(owners[at], minlength=len(ids))
        refused = self._refused(marks, given, pairs, sizes)
        good_images = np.repeat(np.isin(np.arange(len(ids)), list(refused), invert=True), given)
        good_marks = np.isin(owners[at], list(refused), invert=True)
        times = np.ones(len(flat), np.int64)
        times[at[good_marks]] = self._images.layout.token_counts(pairs[good_images])
        ends = np.cumsum(np.bincount(owners, times, minlength=len(ids)).astype(np.int64))[:-1]
        if not ids:
            return [], [], refused
        repeated = [np.split(np.repeat(np.concatenate(some), times), ends) for some in (ids, masks)]
        return repeated[0], repeated[1], refused

    def _refused(self, marks: Int64, given: Int64, pairs: Int64, sizes: pa.ChunkedArray) -> dict[int, str]:
        where, named = f"ChatTemplate({self._column!r})", f"{self._images.sizes!r}"
        null = sizes.is_null().to_numpy(zero_copy_only=False)
        out: dict[int, str] = {}
        for row in np.flatnonzero((marks != given) | null).tolist():
            if null[row] and not marks[row]:
                continue
            out[row] = (
                f"{where}: the text has {marks[row]} marks {self._images.token!r} of images, and {named} the sizes of "
                f"{'none: it is null' if null[row] else given[row]}. Write one mark per image in the messages; "
                "spiral.transforms.ImageSizes makes the column of the images themselves"
            )
        owners = np.repeat(np.arange(len(given)), given)
        for image in np.flatnonzero(self._images.layout.refused(pairs)).tolist():
            height, width = pairs[image].tolist()
            out.setdefault(
                int(owners[image]),
                f"{where}: {named} has an image of {height} x {width} pixels (height x width), which "
                f"{type(self._images.layout).__name__} does not take. Filter the row out, or mend its sizes",
            )
        return out
