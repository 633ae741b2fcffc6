"""Pictures, clips and sounds as markup: small JPEGs, strips with a play bar, the first seconds of a recording.

A clip is one strip of its frames. The bar plays it, and each of the bar's parts shows its frame; no script is needed.
"""

import wave
from io import BytesIO
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.display.markup import Html, data_uri, element

if TYPE_CHECKING:
    from PIL import Image

SIDE: Final = 160  # pixels of a picture, at most
_FRAME: Final = 144  # of a frame of a clip
_FRAMES: Final = 32  # of a clip
_SMALL: Final = 64  # a picture of this side is kept bit for bit
_QUALITY: Final = 82
_HEARD_S: Final = 4.0  # of a recording
_HEARD_HZ: Final = 16_000
_LEAST_HZ: Final = 3_000  # that browsers play
_COLUMNS: Final = 240  # of a waveform
_HIGH: Final = 40

Pixels = NDArray[np.uint8]


def fitted(pixels: Pixels, side: int) -> "Image.Image":
    """Return a picture whose longer side has this many pixels."""
    from PIL import Image

    found = Image.fromarray(np.ascontiguousarray(pixels))
    scale = side / max(found.size)
    size = max(1, round(found.width * scale)), max(1, round(found.height * scale))
    return found.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BILINEAR)


def picture(pixels: Pixels, words: str, side: int = SIDE) -> Html:
    """Show a picture.

    Args:
        pixels: [H, W, 3].
        words: what it shows.
        side: its longer side, in pixels of the page.
    """
    from PIL import Image

    high, wide = pixels.shape[:2]
    is_small = max(high, wide) <= _SMALL
    drawn = Image.fromarray(np.ascontiguousarray(pixels)) if is_small else fitted(pixels, min(side, max(high, wide)))
    scale = side / max(high, wide)
    size = {"width": max(1, round(wide * scale)), "height": max(1, round(high * scale))}
    source = _png(drawn) if is_small else _jpeg(drawn)
    return element("img", alt=words, src=source, style="image-rendering:pixelated" if is_small else None, **size)


def clip(frames: list[Pixels], words: str) -> Html:
    """Show frames with a bar that plays them."""
    from PIL import Image

    at = np.unique(np.linspace(0, len(frames) - 1, min(len(frames), _FRAMES)).astype(np.int64))
    drawn = [fitted(frames[k], _FRAME) for k in at]
    wide, high = drawn[0].size
    strip = Image.new("RGB", (wide * len(drawn), high))
    for k, each in enumerate(drawn):
        strip.paste(each, (k * wide, 0))
    style = f"--s:url({_jpeg(strip)});--n:{len(drawn)};--w:{wide}px;--h:{high}px"
    parts = [element("i", style=f"--k:{k}", title=f"frame {number}") for k, number in enumerate(at.tolist())]
    return element(
        "label",
        element("input", type="checkbox", aria_label=f"play {words}"),
        element("span", class_="sp-f", role="img", aria_label=words),
        element("span", *parts, element("b"), class_="sp-bar"),
        class_="sp-clip",
        style=style,
    )


def sound(values: NDArray[np.float32], rate: int, words: str) -> Html:
    """Show a recording: its waveform, and a bar that plays its first seconds.

    Args:
        values: [C, N] or [N], from -1 to 1.
        rate: values per second.
        words: what it is.
    """
    heard = np.atleast_2d(values).mean(axis=0)[: int(_HEARD_S * rate)]
    step = max(1, -(-rate // _HEARD_HZ))
    heard = heard[: len(heard) // step * step].reshape(-1, step).mean(axis=1) if len(heard) >= step else heard
    return element(
        "div",
        waveform(values, words),
        element("audio", controls="", preload="metadata", src=_wav(heard, max(_LEAST_HZ, rate // step)), title=words),
    )


def waveform(values: NDArray[np.float32], words: str) -> Html:
    """Draw the highest and lowest value of each column's stretch, one channel below the other."""
    channels = np.atleast_2d(values)
    paths = []
    for k, channel in enumerate(channels):
        middle, top = _HIGH * (k + 0.5), float(np.abs(channel).max(initial=1e-6)) or 1.0
        edges = np.linspace(0, len(channel), min(_COLUMNS, max(1, len(channel))) + 1).astype(np.int64)[:-1]
        if not len(channel):
            continue
        scale = (_HIGH / 2 - 2) / top
        high = middle - np.maximum.reduceat(channel, edges) * scale - 0.5
        low = middle - np.minimum.reduceat(channel, edges) * scale + 0.5
        x = (np.arange(len(edges)) * (_COLUMNS / len(edges))).round(1)
        there = " ".join(f"{a:g},{b:.1f}" for a, b in zip(x.tolist(), high.tolist(), strict=True))
        back = " ".join(f"{a:g},{b:.1f}" for a, b in zip(x[::-1].tolist(), low[::-1].tolist(), strict=True))
        paths.append(element("path", d=f"M{there} L{back}Z"))
    box = {"viewBox": f"0 0 {_COLUMNS} {_HIGH * len(channels)}", "height": _HIGH * len(channels)}
    return element(
        "svg", element("title", words), *paths, class_="sp-wave", role="img", preserveAspectRatio="none", **box
    )


def _jpeg(drawn: "Image.Image") -> str:
    file = BytesIO()
    drawn.convert("RGB").save(file, "JPEG", quality=_QUALITY)
    return data_uri("image/jpeg", file.getvalue())


def _png(drawn: "Image.Image") -> str:
    file = BytesIO()
    drawn.save(file, "PNG", optimize=True)
    return data_uri("image/png", file.getvalue())


def _wav(values: NDArray[np.float32], rate: int) -> str:
    file = BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes((np.clip(np.nan_to_num(values), -1, 1) * 32767).astype("<i2").tobytes())
    return data_uri("audio/wav", file.getvalue())
