"""How a demo video is written: H.264 in MP4, in the forms that real collections hold side by side.

A form is a size, a frame rate, a distance between key frames, with or without B-frames; and what spoils simple readers:
frames at uneven times, a picture that lies on its side, a sound track. x264 runs in one thread, so the same pictures
give the same bytes. About 0.5 CPU ms a frame of 320 x 240.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_assets.corpora.scenes import Picture, split

TICKS: Final = 90_000  # a second; a whole number of them a frame at every rate below
NTSC: Final = Fraction(30_000, 1_001)
UNEVEN: Final = (1_500, 1_500, 3_000, 4_500, 9_000)  # ticks between frames of variable rate: 60 to 10 a second
QUALITY: Final = "24"  # x264's crf
SOUND_RATE: Final = 22_050
SOUND_SAMPLES: Final = 1_024  # of an AAC frame


@final
@dataclass(frozen=True, slots=True)
class Form:
    """How a file is encoded. Sizes are of the picture as it is shown."""

    width: int
    height: int
    fps: Fraction
    key_distance: int  # frames
    b_frames: int
    variable: bool = False  # frames at uneven times; `fps` is what the file says of itself
    turned: bool = False  # stored on its side: it has to be turned by 90 degrees to the right
    sound: bool = False


def times(form: Form, seconds: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """When frames are shown, in ticks from the first.

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
    }
    stream = file.add_stream("libx264", rate=form.fps, options=options)
    stream.width, stream.height = (form.height, form.width) if form.turned else (form.width, form.height)
    stream.pix_fmt = "yuv420p"
    stream.codec_context.time_base = Fraction(1, TICKS)
    if form.turned:
        stream.set_display_rotation(-90)  # FFmpeg counts to the left
    return stream


def _stored(picture: Picture, form: Form) -> Picture:
    """The picture as it lies in the file; a turned one by 90 degrees to the left."""
    if not form.turned:
        return picture
    turned = [np.rot90(plane).ravel() for plane in split(picture, form.height, form.width)]
    return np.concatenate(turned).reshape(form.width * 3 // 2, form.height)


def _hum(seconds: float) -> Iterable[Any]:
    """A tone of 220 Hz, frame by frame."""
    import av

    for start in range(0, int(seconds * SOUND_RATE), SOUND_SAMPLES):
        at = (start + np.arange(SOUND_SAMPLES)) / SOUND_RATE
        wave = (0.1 * np.sin(2 * np.pi * 220 * at)).astype(np.float32)[None, :]
        frame = av.AudioFrame.from_ndarray(wave, "fltp", "mono")
        frame.sample_rate, frame.pts, frame.time_base = SOUND_RATE, start, Fraction(1, SOUND_RATE)
        yield frame
