"""Real H.264 that any machine can make: which clips the video benchmark runs on.

32 films of 20 to 60 s, half of them 320x240 and half 640x360, at 24 and at 30 frames a second: a camera that drifts,
zooms and turns over textures with the spectrum of photographs, textured objects that cross the picture, grain, and cuts.
x264 with its defaults (crf 23, 3 B-frames, key frames at most 250 apart, scene cuts found); every fourth film has a key
frame every second. Each film has six segments of 2 to 6 s at drawn places, 192 in all, which are also written as files of their
own, encoded anew. Costs 15 CPU minutes and 250 MB, once; the same machine and libx264 give nearly the same
bytes (docs/decisions/0054).

    .bench-venv/bin/python -m benchmarks.footage [--root /tmp/spiral-video] [--films 32]
"""

import argparse
import json
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np

from benchmarks.peers.segments import SEGMENTS_EACH, Footage

GROUND = 1_024  # side of a texture, pixels
SIZES = ((320, 240), (640, 360))  # width, height


@dataclass(frozen=True)
class Film:
    """What one film is; ``number`` is also its seed."""

    number: int

    @property
    def size(self) -> tuple[int, int]:
        return SIZES[self.number % 2]

    @property
    def fps(self) -> int:
        return (24, 30)[self.number // 2 % 2]

    @property
    def short_groups(self) -> bool:
        return self.number // 4 % 4 == 3

    def frames(self) -> int:
        return int(np.random.default_rng([1, self.number]).uniform(20, 60) * self.fps)

    def segments(self) -> list[tuple[int, int]]:
        """(start, duration) in milliseconds of the film's segments."""
        numbers = np.random.default_rng([2, self.number])
        whole = self.frames() * 1_000 // self.fps
        durations = numbers.integers(2_000, 6_001, SEGMENTS_EACH)
        return [(int(numbers.integers(0, whole - d + 1)), int(d)) for d in durations]


def texture(numbers: np.random.Generator) -> np.ndarray:
    """A picture with a falling spectrum and edges, [GROUND, GROUND, 3] uint8."""
    frequency = np.hypot(np.fft.fftfreq(GROUND)[:, None], np.fft.rfftfreq(GROUND)[None])
    falling = 1 / np.maximum(frequency, 2 / GROUND) ** 1.15
    grey, *tints = (
        np.fft.irfft2(falling * np.exp(2j * np.pi * numbers.random(frequency.shape)), (GROUND, GROUND))
        for _ in range(3)
    )
    picture = np.stack([grey + 0.35 * tints[0], grey, grey + 0.35 * tints[1]], -1)
    picture = 120 + 45 * picture / picture.std()
    for _ in range(24):  # edges
        centre, axes = numbers.integers(0, GROUND, 2).tolist(), numbers.integers(20, 160, 2).tolist()
        mask = np.zeros((GROUND, GROUND), np.uint8)
        cv2.ellipse(mask, centre, axes, numbers.uniform(0, 180), 0, 360, 1, -1)
        picture[mask > 0] += numbers.normal(0, 40, 3)
    return np.clip(picture, 0, 255).astype(np.uint8)


def frames(film: Film) -> Iterator[np.ndarray]:
    """Its frames [H, W, 3], uint8."""
    numbers = np.random.default_rng([3, film.number])
    width, height = film.size
    grounds = [texture(numbers) for _ in range(3)]
    grain = numbers.normal(0, 1.6, (8, height + 64, width + 64, 1)).astype(np.float32)
    left = film.frames()
    while left > 0:
        length = min(left, int(numbers.uniform(4, 16) * film.fps))
        left -= length
        ground, cover = (grounds[i] for i in numbers.permutation(3)[:2])
        yield from _scene(numbers, ground, cover, grain, length, film)


def _scene(
    numbers: np.random.Generator, ground: np.ndarray, cover: np.ndarray, grain: np.ndarray, length: int, film: Film
) -> Iterator[np.ndarray]:
    width, height = film.size
    middle, drift = numbers.uniform(0, GROUND, 2), numbers.normal(0, width / 10, 2) / film.fps
    turn, zoom = numbers.normal(0, 3) / film.fps, numbers.normal(0, 0.04) / film.fps
    objects = [
        (
            numbers.uniform(0, 1, 2) * (width, height),
            numbers.normal(0, width / 4, 2) / film.fps,
            numbers.uniform(0.08, 0.22),
        )
        for _ in range(3)
    ]
    rows, columns = np.mgrid[0:height, 0:width].astype(np.float32)
    for i in range(length):
        scale = 1.2 * (width / 320) ** -0.5 * np.exp(zoom * i)
        angle = np.radians(turn * i)
        cos, sin = scale * np.cos(angle), scale * np.sin(angle)
        x, y = middle + drift * i + 6 * np.sin(i / film.fps * np.array([2.1, 1.3]))  # a hand holds the camera
        matrix = np.array(
            [[cos, -sin, x - cos * width / 2 + sin * height / 2], [sin, cos, y - sin * width / 2 - cos * height / 2]]
        )
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        frame = cv2.warpAffine(ground, matrix, (width, height), flags=flags, borderMode=cv2.BORDER_WRAP)
        for start, speed, share in objects:
            cx, cy = (start + speed * i) % (width, height)
            inside = ((columns - cx) ** 2 + (rows - cy) ** 2) < (share * width) ** 2
            shifted = cv2.warpAffine(
                cover,
                np.float64([[1, 0, 300 - cx], [0, 1, 300 - cy]]),
                (width, height),
                flags=flags,
                borderMode=cv2.BORDER_WRAP,
            )
            cv2.copyTo(shifted, inside.astype(np.uint8), frame)
        plane, top, left = numbers.integers(0, (8, 64, 64))
        noisy = frame.astype(np.float32) + grain[plane, top : top + height, left : left + width]
        yield np.clip(noisy, 0, 255).astype(np.uint8)


def encode(path: Path, pictures: Iterator[np.ndarray], film: Film) -> None:
    """Write [H, W, 3] pictures as ``path``; x264 with its defaults, one thread so that every machine cuts alike."""
    width, height = film.size
    with av.open(str(path.with_suffix(".unfinished")), "w", format="mp4") as container:
        options = {"x264-params": f"threads=1{f':keyint={film.fps}' if film.short_groups else ''}"}
        stream = container.add_stream("libx264", rate=Fraction(film.fps), options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.gop_size = -1  # PyAV would say 12 for x264's own 250
        for number, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(cv2.cvtColor(picture, cv2.COLOR_RGB2YUV_I420), format="yuv420p")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    path.with_suffix(".unfinished").rename(path)


def _make(root: str, number: int) -> None:
    """One film and its segments cut out."""
    cv2.setNumThreads(0)
    footage, film = Footage(Path(root)), Film(number)
    target = footage.films / f"film-{number:03d}.mp4"
    if not target.exists():
        encode(target, frames(film), film)
    with av.open(str(target)) as container:
        shown = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    for place, (start, duration) in enumerate(film.segments()):
        first, stop = -(-start * film.fps // 1_000), -(-(start + duration) * film.fps // 1_000)
        encode(footage.cut / f"segment-{number * SEGMENTS_EACH + place:04d}.mp4", iter(shown[first:stop]), film)


def build(footage: Footage, films: int) -> dict[str, float]:
    """Write what is not there; what it holds, as in ``footage.json``."""
    if footage.facts.exists() and (facts := json.loads(footage.facts.read_text()))["films"] == films:
        return facts
    footage.films.mkdir(parents=True, exist_ok=True)
    footage.cut.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(_make, [str(footage.root)] * films, range(films)))
    facts = _tables(footage, films)
    footage.facts.write_text(json.dumps(facts))
    return facts


def _tables(footage: Footage, films: int) -> dict[str, float]:
    """Lance datasets `segments` (of whole films) and `cut` (files of their own); what they hold."""
    import lance
    import pyarrow as pa

    rows = []
    seconds = megabytes = 0.0
    rates = []
    for film in map(Film, range(films)):
        path = footage.films / f"film-{film.number:03d}.mp4"
        rates.append(path.stat().st_size * 8 / 1_000 / (film.frames() / film.fps))
        seconds, megabytes = seconds + film.frames() / film.fps, megabytes + path.stat().st_size / 1e6
        for start, duration in film.segments():
            number, (width, height) = len(rows), film.size
            rows.append(
                {
                    "sample_id": f"segment-{number:04d}", "number": number, "clip_ref": str(path),
                    "cut_ref": str(footage.cut / f"segment-{number:04d}.mp4"), "start_time_ms": start,
                    "duration_ms": duration, "width": width, "height": height, "fps": film.fps,
                    "frame_count": -(-(start + duration) * film.fps // 1_000) - -(-start * film.fps // 1_000),
                    "storage_shard": f"part-{film.number // 8:02d}",
                }
            )  # fmt: skip
    table = pa.Table.from_pylist(rows)
    cut = table.drop(["clip_ref", "start_time_ms", "duration_ms"]).rename_columns({"cut_ref": "clip_ref"})
    step = -(-len(rows) // 4)
    for name, columns in (("segments", table.drop(["cut_ref"])), ("cut", cut)):
        where = str(footage.tables / f"{name}.lance")
        lance.write_dataset(columns, where, mode="overwrite", max_rows_per_file=step, data_storage_version="2.1")
    return {
        "films": films, "segments": len(rows), "seconds": seconds, "megabytes": megabytes,
        "kbits": float(np.mean(rates)), "least_kbits": min(rates), "most_kbits": max(rates),
        "segment_s": sum(row["duration_ms"] for row in rows) / len(rows) / 1_000,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path, default=Path("/tmp/spiral-video"))
    parser.add_argument("--films", type=int, default=32)
    asked = parser.parse_args()
    print(json.dumps(build(Footage(asked.root), asked.films), indent=1))


if __name__ == "__main__":
    main()
