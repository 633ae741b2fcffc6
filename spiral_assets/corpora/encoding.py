"""Encode demo videos: H.264 in MP4, in the variety of forms that real collections have.

A form is a size, a frame rate, a key-frame distance, with or without B-frames. Some forms break simple readers: variable
frame rate, a rotated picture, a sound track. About 0.5 CPU ms per frame of 320 x 240.

The same pictures give the same bytes on one kind of processor: x264 runs in one thread, and without the tree of macroblocks
(`mbtree`), whose code for AVX-512 reads past its rows what was in memory before. On another kind they may give others, as the
encoder of AAC does. What is compared with a recording starts from stored files.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_assets import need
from spiral_assets.corpora.scenes import Picture, split

TICKS: Final = 90_000  # per second; a frame takes a whole number of ticks at every rate used
NTSC: Final = Fraction(30_000, 1_001)
UNEVEN: Final = (1_500, 1_500, 3_000, 4_500, 9_000)  # ticks between frames of variable rate: 60 to 10 frames per second
QUALITY: Final = "26"  # x264's crf
SOUND_RATE: Final = 22_050
SOUND_SAMPLES: Final = 1_024  # per AAC frame


@final
@dataclass(frozen=True, slots=True)
class Form:
    """How a file is encoded. Sizes are of the picture as it is shown."""

    width: int
    height: int
    fps: Fraction
    key_distance: int  # frames
    b_frames: int
    variable: bool = False  # variable frame rate; `fps` is the nominal rate in the file
    turned: bool = False  # stored on its side: players rotate it clockwise by 90 degrees
    sound: bool = False


def times(form: Form, seconds: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return when frames are shown, in ticks from the first.

    Returns:
        shape [F], ascending, the first 0, all below ``seconds``.
    """
    end = round(seconds * TICKS)
    if not form.variable:
        return np.arange(0, end, int(TICKS / form.fps), dtype=np.int64)
    steps = rng.choice(UNEVEN, end // min(UNEVEN), p=(0.3, 0.2, 0.3, 0.15, 0.05))
    shown = np.concatenate([[0], np.cumsum(steps)])
    return np.asarray(shown[shown < end], np.int64)


def encode(path: Path, form: Form, shown: NDArray[np.int64], end: int, pictures: Iterable[Picture]) -> None:
    """Write a file.

    Args:
        path: of the MP4.
        form: how.
        shown: shape [F], when each frame is shown, in ticks from the first.
        end: when the last frame ends.
        pictures: F of them, each as `Scene.picture` gives it; used before the next one is asked for.
    """
    need("av", "video", "spiral_assets.corpora")
    import av

    with av.open(str(path), "w", format="mp4", container_options={"fflags": "+bitexact"}) as file:
        stream = _video(file, form)
        sound = file.add_stream("aac", rate=SOUND_RATE, layout="mono") if form.sound else None
        lasts = np.diff(shown, append=end)
        for tick, lasting, picture in zip(shown.tolist(), lasts.tolist(), pictures, strict=True):
            frame = av.VideoFrame.from_ndarray(_stored(picture, form), "yuv420p")
            frame.pts, frame.duration, frame.time_base = tick, lasting, Fraction(1, TICKS)
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
        if sound is not None:
            for samples in _hum(end / TICKS):
                file.mux(sound.encode(samples))
            file.mux(sound.encode(None))


def _video(file: Any, form: Form) -> Any:
    options = {
        "preset": "veryfast",
        "crf": QUALITY,
        "g": str(form.key_distance),
        "keyint_min": str(form.key_distance),
        "sc_threshold": "0",  # key frames at the stated distance only, not at cuts
        "bf": str(form.b_frames),
        "threads": "1",
        "mbtree": "0",  # the same bytes, whatever memory held
    }
    stream = file.add_stream("libx264", rate=form.fps, options=options)
    stream.width, stream.height = (form.height, form.width) if form.turned else (form.width, form.height)
    stream.pix_fmt = "yuv420p"
    stream.codec_context.time_base = Fraction(1, TICKS)
    if form.turned:
        stream.set_display_rotation(-90)  # FFmpeg counts counterclockwise
    return stream


def _stored(picture: Picture, form: Form) -> Picture:
    """Return the picture as stored in the file: a rotated form by 90 degrees counterclockwise."""
    if not form.turned:
        return picture
    turned = [np.rot90(plane).ravel() for plane in split(picture, form.height, form.width)]
    return np.concatenate(turned).reshape(form.width * 3 // 2, form.height)


def _hum(seconds: float) -> Iterable[Any]:
    """Yield a tone of 220 Hz, frame by frame."""
    import av

    for start in range(0, int(seconds * SOUND_RATE), SOUND_SAMPLES):
        at = (start + np.arange(SOUND_SAMPLES)) / SOUND_RATE
        wave = (0.1 * np.sin(2 * np.pi * 220 * at)).astype(np.float32)[None, :]
        frame = av.AudioFrame.from_ndarray(wave, "fltp", "mono")
        frame.sample_rate, frame.pts, frame.time_base = SOUND_RATE, start, Fraction(1, SOUND_RATE)
        yield frame
