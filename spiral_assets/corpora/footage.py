"""Plan, draw and write the demo's videos: a file of several scenes, or a tar with one file per scene.

A video is planned from its number alone: form, source, creator, time of upload, motions, lengths. So any process can
draw any of them. A scene's frames are those whose time, rounded to milliseconds, lies between its borders.
"""

import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_assets.corpora.encoding import NTSC, TICKS, Form, encode, times
from spiral_assets.corpora.scenes import MOTIONS, Grounds, Picture, Scene

Row = dict[str, Any]

SCENES: Final = 5  # per video
LENGTHS_MS: Final = {
    1_500: 0.08,
    2_000: 0.32,
    2_400: 0.3,
    3_000: 0.2,
    4_000: 0.07,
    6_000: 0.03,
}  # length of a scene -> its share
MILLISECOND: Final = TICKS // 1_000
FIRST_UPLOAD_NS: Final = 1_735_689_600_000_000_000  # 2025-01-01
SECOND_NS: Final = 1_000_000_000
DAY_S: Final = 86_400
SURE: Final = 0.7  # lowest confidence of a sure label
UNSURE: Final = 0.12  # share of the labels below it; half of those are wrong
CREATORS: Final = 14

# Source -> its share, and the days of the year in which it is busy.
SOURCES: Final[Mapping[str, tuple[float, tuple[int, int]]]] = {
    "upload": (0.55, (150, 360)),
    "crawl": (0.27, (60, 240)),
    "archive": (0.13, (0, 60)),
    "broadcast": (0.05, (300, 360)),
}
FORMS: Final = (
    Form(320, 240, NTSC, 48, 3),
    Form(426, 240, Fraction(24), 48, 0),
    Form(240, 320, NTSC, 12, 3),
    Form(640, 360, Fraction(24), 250, 3),
    Form(320, 240, Fraction(60), 48, 0),
    Form(320, 240, Fraction(12), 12, 0),
    Form(426, 240, NTSC, 250, 3),
    Form(240, 320, Fraction(24), 48, 3),
    Form(640, 360, Fraction(12), 48, 0),
    Form(320, 240, Fraction(24), 12, 3),
)
SPECIAL: Final = {
    0: replace(FORMS[0], variable=True),
    1: replace(FORMS[1], sound=True),
    2: replace(FORMS[2], turned=True),
}


@final
@dataclass(frozen=True, slots=True)
class Video:
    """One video before it is drawn: what its rows have in common, and when each scene begins."""

    number: int
    form: Form
    source: str
    creator: str
    uploaded_ns: int
    motions: tuple[int, ...]
    borders_ms: tuple[int, ...]  # one more than motions, from 0
    cut: bool  # into one file per scene, in a tar


def planned(seed: int, number: int, *, shorten: float, cut: bool) -> Video:
    """Return the video of a number; ``shorten`` scales the length of every scene."""
    rng = np.random.default_rng([seed, 1, number])
    source = str(rng.choice(list(SOURCES), p=[share for share, _ in SOURCES.values()]))
    popularity = 1 / np.arange(1, CREATORS + 1)
    creator = int(rng.choice(CREATORS, p=popularity / popularity.sum()))
    lengths = rng.choice(list(LENGTHS_MS), SCENES, p=list(LENGTHS_MS.values()))
    borders = accumulate((round(length * shorten) for length in lengths.tolist()), initial=0)
    return Video(
        number=number,
        form=SPECIAL.get(number, FORMS[number % len(FORMS)]),
        source=source,
        creator=f"{source}-{creator:02d}",
        uploaded_ns=FIRST_UPLOAD_NS + int(rng.uniform(*SOURCES[source][1]) * DAY_S) * SECOND_NS,
        motions=tuple((number + number // len(MOTIONS) + scene) % len(MOTIONS) for scene in range(SCENES)),
        borders_ms=tuple(borders),
        cut=cut,
    )


@final
class Studio:
    """Draws videos and writes their files. It holds its noise, so make one per process.

    Args:
        seed: two studios of one seed write the same files, in any order, on processors of one kind.
        root: folder that references start from.
        folder: under it, where the files go.
    """

    def __init__(self, seed: int, root: Path, folder: str) -> None:
        self._seed, self._root, self._folder = seed, root, folder
        self._grounds = Grounds(seed)

    def film(self, video: Video) -> list[Row]:
        """Write one video. Return one row per scene with the columns of both relations, except the storage shard."""
        rng = np.random.default_rng([self._seed, 2, video.number])
        form = video.form
        scenes = [Scene(rng, form.height, form.width, motion, self._grounds) for motion in video.motions]
        written = self._clips(video, scenes, rng) if video.cut else self._file(video, scenes, rng)
        labels, confidence = _judged(video.motions, rng)
        name = f"vid-{video.number:04d}"
        rows = []
        for at, ((begin, end), (reference, frames)) in enumerate(zip(pairwise(video.borders_ms), written, strict=True)):
            rows.append(
                {
                    "sample_id": f"{name}-{at:02d}",
                    "video_id": name,
                    "clip_ref": reference,
                    "start_time_ms": begin,
                    "duration_ms": end - begin,
                    "frame_count": frames,
                    "width": form.width,
                    "height": form.height,
                    "fps": 1_000 * frames / (end - begin) if form.variable else float(form.fps),
                    "source": video.source,
                    "creator_id": video.creator,
                    "upload_ts": video.uploaded_ns,
                    "label_id": labels[at],
                    "caption": scenes[at].caption,
                    "confidence": confidence[at],
                }
            )
        return rows

    def _file(self, video: Video, scenes: Sequence[Scene], rng: np.random.Generator) -> list[tuple[Row, int]]:
        """Write one file with all scenes. Return the reference and the frame count of each scene."""
        uri = f"{self._folder}/vid-{video.number:04d}.mp4"
        borders = np.array(video.borders_ms)
        shown = times(video.form, borders[-1] / 1_000, rng)
        encode(self._root / uri, video.form, shown, int(borders[-1]) * MILLISECOND, _pictures(scenes, borders, shown))
        reference = {"uri": uri, "offset": 0, "length": (self._root / uri).stat().st_size}
        frames = np.bincount(_scene_of(borders, shown), minlength=len(scenes))
        return [(reference, count) for count in frames.tolist()]

    def _clips(self, video: Video, scenes: Sequence[Scene], rng: np.random.Generator) -> list[tuple[Row, int]]:
        """Write a tar with one file per scene. Return the reference and the frame count of each."""
        uri = f"{self._folder}/vid-{video.number:04d}.tar"
        members = []
        with tarfile.open(self._root / uri, "w") as tar:
            for at, (begin, end) in enumerate(pairwise(video.borders_ms)):
                clip = self._root / self._folder / f"vid-{video.number:04d}-{at:02d}.mp4"
                borders = np.array([0, end - begin])
                shown = times(video.form, (end - begin) / 1_000, rng)
                pictures = _pictures([scenes[at]], borders, shown)
                encode(clip, video.form, shown, (end - begin) * MILLISECOND, pictures)
                member = tarfile.TarInfo(clip.name)
                member.size = clip.stat().st_size
                with clip.open("rb") as data:
                    tar.addfile(member, data)
                clip.unlink()
                members.append((member, len(shown)))
        with tarfile.open(self._root / uri) as tar:
            offsets = {member.name: member.offset_data for member in tar}
        return [({"uri": uri, "offset": offsets[each.name], "length": each.size}, count) for each, count in members]


def _scene_of(borders_ms: NDArray[np.int64], shown: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the scene of each frame, shape [F], by its time in milliseconds."""
    at_ms = (shown + MILLISECOND // 2) // MILLISECOND
    return np.minimum(np.searchsorted(borders_ms, at_ms, side="right") - 1, len(borders_ms) - 2)


def _pictures(scenes: Sequence[Scene], borders_ms: NDArray[np.int64], shown: NDArray[np.int64]) -> Iterator[Picture]:
    """Yield the pictures, frame by frame: 0.1 CPU ms each; encoding costs 0.5."""
    for tick, scene in zip(shown.tolist(), _scene_of(borders_ms, shown).tolist(), strict=True):
        begin, end = borders_ms[scene : scene + 2].tolist()
        yield scenes[scene].picture((tick / MILLISECOND - begin) / (end - begin))


def _judged(motions: Sequence[int], rng: np.random.Generator) -> tuple[list[int], list[float]]:
    """Return a label for each motion, and the confidence of the annotator."""
    unsure = rng.random(len(motions)) < UNSURE
    wrong = unsure & (rng.random(len(motions)) < 0.5)  # noqa: PLR2004  half of them
    labels = np.where(wrong, (np.array(motions) + 1) % len(MOTIONS), motions)
    confidence = np.where(unsure, rng.uniform(0.3, SURE - 0.01, len(motions)), rng.uniform(SURE, 1, len(motions)))
    return labels.tolist(), confidence.round(3).tolist()
