"""Forms in which a cache could keep the frames of a clip: JPEGs beside H.264 in short groups, at equal PSNR.

What is kept is what a clip cache of `Frames(shorter_side=256)` has: RGB frames of the films of `benchmarks.footage`. Two ways
to read them: ``chosen``, where the 16 frames of a segment are kept and all are read, and ``random``, where 32 frames
in a row are kept and 16 are read, every or every second one, from a drawn start. Each form ends in RGB of the centre crop
of 224. One thread, CPU seconds of the process; repetitions are interleaved. What a clip costs beside that is the same for
all forms.

    python -m benchmarks.footage --films 12
    python -m benchmarks.clip_forms [--root /tmp/spiral-video] [--clips 24] [--repeats 5]
"""

import argparse
import json
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path

import av
import numpy as np
import simplejpeg

from benchmarks.peers.segments import FRAMES, SHORTER, SIDE, Footage
from spiral_stream.cache.kinds.clip_layout import bytes_at
from spiral_stream.decoders.image import region
from spiral_stream.decoders.image.image import shrink
from spiral_stream.decoders.video.rgb import to_rgb

Pictures = list[np.ndarray]  # [H, W, 3] uint8
WAYS = {  # preset of x264, and what is set beyond it; the first is what tune=fastdecode sets, the third all defaults
    "CAVLC, no deblocking": ("medium", "cabac=0:no-deblock=1:weightp=0"),
    "CABAC, no deblocking": ("medium", "cabac=1:no-deblock=1:weightp=0"),
    "CABAC": ("medium", "cabac=1"),
    "CAVLC": ("medium", "cabac=0:weightp=0"),
    "CAVLC, no deblocking, one vector of whole pixels a macroblock": (
        "medium", "cabac=0:no-deblock=1:weightp=0:ref=1:subme=0:partitions=none",
    ),
    "CAVLC, no deblocking, superfast": ("superfast", "cabac=0:no-deblock=1:weightp=0"),
}  # fmt: skip
IN_A_ROW = 32  # frames that are kept where the start is drawn


def crop_box(height: int, width: int) -> np.ndarray:
    """Top, left, height, width of the centre crop."""
    return np.array([(height - SIDE) // 2, (width - SIDE) // 2, SIDE, SIDE], np.int32)


class Form(ABC):
    """How a clip is kept, and how wanted frames of it become RGB."""

    title: str

    @abstractmethod
    def keep(self, frames: Pictures) -> list[bytes]:
        """One piece for each frame."""

    @abstractmethod
    def read(self, pieces: list[bytes], wanted: list[int], box: np.ndarray) -> Iterator[np.ndarray]:
        """Boxes of the wanted frames, ascending; a view of memory that is used again, each until the next."""


@dataclass(frozen=True)
class Jpegs(Form):
    """One JPEG for each frame, as the clip cache has them."""

    quality: int
    indexed: bool = False

    @property
    def title(self) -> str:
        return f"JPEG {self.quality}{', with an index' * self.indexed}"

    def keep(self, frames: Pictures) -> list[bytes]:
        made = [simplejpeg.encode_jpeg(frame, self.quality, "RGB", "420") for frame in frames]
        return [bytes(region.indexed(each)) for each in made] if self.indexed else made

    def read(self, pieces: list[bytes], wanted: list[int], box: np.ndarray) -> Iterator[np.ndarray]:
        some = [np.frombuffer(pieces[at], np.uint8) for at in wanted]
        addresses = np.array([each.ctypes.data for each in some], np.uint64)
        lengths = np.array([len(each) for each in some], np.int64)
        boxes, ours = np.tile(box, (len(some), 1)), np.full(len(some), self.indexed)
        yield from _views(*region.decode_regions(addresses, lengths, boxes, ours), box)


@dataclass(frozen=True)
class H264(Form):
    """H.264 with a key frame in every ``group`` frames, no B-frames."""

    group: int
    crf: int
    way: str = "CAVLC, no deblocking"

    @property
    def title(self) -> str:
        return f"H.264, groups of {self.group}, {self.way}, crf {self.crf}"

    def keep(self, frames: Pictures) -> list[bytes]:
        coder = av.CodecContext.create("libx264", "w")
        coder.height, coder.width = frames[0].shape[:2]
        coder.pix_fmt, coder.framerate, coder.time_base = "yuvj420p", Fraction(24), Fraction(1, 24)
        coder.gop_size = self.group
        preset, more = WAYS[self.way]
        knobs = f"threads=1:keyint={self.group}:min-keyint=1:scenecut=0:bframes=0:repeat-headers=1:{more}"
        coder.options = {"preset": preset, "crf": str(self.crf), "x264-params": knobs}
        pieces = []
        for number, frame in enumerate(frames):
            unit = av.VideoFrame.from_ndarray(_yuv(frame), format="yuvj420p")
            unit.pts = number
            pieces += coder.encode(unit)
        pieces += coder.encode(None)
        assert len(pieces) == len(frames), (len(pieces), len(frames))
        return [bytes(piece) for piece in pieces]

    @cached_property
    def decoder(self) -> "av.VideoCodecContext":
        context = av.CodecContext.create("h264", "r")
        context.thread_count = 1
        return context

    def read(self, pieces: list[bytes], wanted: list[int], box: np.ndarray) -> Iterator[np.ndarray]:
        frames, goals = [], set(wanted)
        groups = sorted({at // self.group for at in wanted})
        for group in groups:
            start = group * self.group
            stop = 1 + max(at for at in wanted if at // self.group == group)
            for at in range(start, stop):
                unit = av.Packet(pieces[at])
                unit.pts = at
                frames += [frame for frame in self.decoder.decode(unit) if frame.pts in goals]
        frames += [frame for frame in self.decoder.decode(None) if frame.pts in goals]
        self.decoder.flush_buffers()
        assert len(frames) == len(wanted)
        yield from _views(*to_rgb(frames, np.tile(box, (len(frames), 1)), 0, True, 5)[:2], box)


def _views(origins: np.ndarray, strides: np.ndarray, box: np.ndarray) -> Iterator[np.ndarray]:
    height, width = int(box[2]), int(box[3])
    for origin, stride in zip(origins.tolist(), strides.tolist(), strict=True):
        memory = bytes_at(origin, stride * (height - 1) + 3 * width)
        yield np.lib.stride_tricks.as_strided(memory, (height, width, 3), (stride, 3, 1))


def _yuv(rgb: np.ndarray) -> np.ndarray:
    """[3 H / 2, W]: 4:2:0 of full range, BT.601, chroma the mean of its four pixels."""
    red, green, blue = np.moveaxis(rgb.astype(np.float32), -1, 0)
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    blues, reds = 128 + (blue - luma) / 1.772, 128 + (red - luma) / 1.402
    height, width = luma.shape
    planes = [each.reshape(height // 2, 2, width // 2, 2).mean((1, 3)) for each in (blues, reds)]
    flat = np.concatenate([luma.ravel(), *(plane.ravel() for plane in planes)])
    return np.clip(np.rint(flat), 0, 255).astype(np.uint8).reshape(3 * height // 2, width)


@dataclass(frozen=True)
class Clip:
    """The frames that a cache would keep of one segment, and which of them a sample reads."""

    frames: Pictures
    wanted: list[int]


def clips(footage: Footage, count: int, way: str) -> list[Clip]:
    """Clips of the films that a cache makes smaller; of even sides, so that 4:2:0 needs no padding."""
    out, numbers = [], np.random.default_rng(5)
    segments = [each for each in footage.segments("segments") if each.height > SHORTER]
    for segment in segments[:: max(1, len(segments) // count)][:count]:
        with av.open(segment.path) as container:
            first = segment.ordinals[0]
            ordinals = segment.ordinals if way == "chosen" else list(range(first, first + IN_A_ROW))
            kept = {
                number: frame.to_ndarray(format="rgb24")
                for number, frame in zip(range(ordinals[-1] + 1), container.decode(video=0), strict=False)
                if number in set(ordinals)
            }
        shrunk = [shrink(kept[number], SHORTER) for number in ordinals if number in kept]
        frames = [np.ascontiguousarray(each[: each.shape[0] // 2 * 2, : each.shape[1] // 2 * 2]) for each in shrunk]
        stride = int(numbers.integers(1, 3))
        start = int(numbers.integers(0, IN_A_ROW - (FRAMES - 1) * stride))
        every = list(range(len(frames))) if way == "chosen" else list(range(start, start + FRAMES * stride, stride))
        out.append(Clip(frames, [at for at in every if at < len(frames)]))
    return out


def psnr(errors: list[float]) -> float:
    return float(10 * np.log10(255**2 / np.mean(errors)))


def quality(form: Form, clip: Clip, pieces: list[bytes]) -> tuple[float, float]:
    """Mean squared error of RGB and of luma, over the wanted frames' crops."""
    box = crop_box(*clip.frames[0].shape[:2])
    top, left, height, width = box.tolist()
    rgb, luma = [], []
    for number, picture in zip(clip.wanted, form.read(pieces, clip.wanted, box), strict=True):
        off = picture.astype(np.float32) - clip.frames[number][top : top + height, left : left + width]
        rgb.append(float((off**2).mean()))
        luma.append(float(((off @ np.array([0.299, 0.587, 0.114], np.float32)) ** 2).mean()))
    return float(np.mean(rgb)), float(np.mean(luma))


def measure(forms: list[Form], some: list[Clip], repeats: int) -> list[dict[str, float]]:
    kept, rows = [], []
    for form in forms:
        began = time.process_time()
        pieces = [form.keep(clip.frames) for clip in some]
        spent = time.process_time() - began
        errors = [quality(form, clip, made) for clip, made in zip(some, pieces, strict=True)]
        frames = sum(len(clip.frames) for clip in some)
        kept.append(pieces)
        rows.append(
            {
                "title": form.title, "bytes": sum(len(piece) for made in pieces for piece in made) / frames,
                "psnr": psnr([each[0] for each in errors]), "luma": psnr([each[1] for each in errors]),
                "keep_us": 1e6 * spent / frames, "all": [],
            }
        )  # fmt: skip
        print(json.dumps(rows[-1]), flush=True)
    wanted = sum(len(clip.wanted) for clip in some)
    boxes = [crop_box(*clip.frames[0].shape[:2]) for clip in some]
    for repeat in range(repeats):
        for number in range(len(forms)):
            at = (number + repeat) % len(forms)
            began = time.process_time()
            for clip, pieces, box in zip(some, kept[at], boxes, strict=True):
                for _ in forms[at].read(pieces, clip.wanted, box):
                    pass
            rows[at]["all"].append(1e6 * (time.process_time() - began) / wanted)
    return rows


def forms_of(way: str) -> list[Form]:
    jpegs: list[Form] = [Jpegs(q, indexed) for q in (80, 85, 90, 95) for indexed in (False, True)]
    crfs, ways = (12, 15, 18, 21, 24), list(WAYS)
    films: list[Form] = [H264(group, crf) for group in (1, 4, 8) for crf in crfs]
    if way == "chosen":
        films += [H264(group, crf, each) for group in (1, 8) for each in ways[1:4] for crf in crfs[::2]]
        films += [H264(8, crf, each) for each in ways[4:] for crf in crfs[::2]]
    return [*jpegs, *films]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path, default=Path("/tmp/spiral-video"))
    parser.add_argument("--clips", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--ways", default="chosen,random")
    asked = parser.parse_args()
    for way in asked.ways.split(","):
        rows = measure(forms_of(way), clips(Footage(asked.root), asked.clips, way), asked.repeats)
        print(f"\n| {way} | bytes a frame | PSNR, dB | of luma | us a frame: least | median | most | to keep, us |")
        print("|---|---:|---:|---:|---:|---:|---:|---:|")
        for row in rows:
            least, median, most = min(row["all"]), statistics.median(row["all"]), max(row["all"])
            print(
                f"| {row['title']} | {row['bytes']:,.0f} | {row['psnr']:.1f} | {row['luma']:.1f} | {least:,.0f} | {median:,.0f} "
                f"| {most:,.0f} | {row['keep_us']:,.0f} |"
            )


if __name__ == "__main__":
    main()
