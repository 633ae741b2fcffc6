"""Scenes of a demo video: objects that all move in the same way over a still, textured background.

How they move is the class; shape, colour, size and ground are drawn independently of it, so that no single frame
tells. Pictures are painted in YUV 4:2:0, as the encoder takes them: a frame is a copy of the ground and two small
blends, about 0.1 CPU ms at 320 x 240. A scene costs 5 to 20 ms, since turned and grown objects are drawn ahead.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_assets.corpora.drawing import CLASSES as SHAPE_NAMES
from spiral_assets.corpora.drawing import SHAPES, Plane, cut, noise

# H W picture, h w an object's square
Picture = NDArray[np.uint8]  # [3 H / 2, W]: luma, then both chroma planes at half the sides

MOTIONS: Final = ("left", "right", "up", "down", "turn", "grow")
SAID: Final = ("moves to the left", "moves to the right", "rises", "falls", "turns", "comes closer")
SEEN_TURNING: Final = tuple(SHAPE_NAMES.index(name) for name in ("diamond", "flag", "ladder", "star", "cross", "dice"))
COLOURS: Final = {
    "red": (200, 40, 40),
    "green": (40, 150, 60),
    "blue": (50, 80, 210),
    "yellow": (225, 205, 60),
    "violet": (150, 70, 190),
    "white": (235, 235, 230),
    "black": (25, 25, 30),
}
STEPS: Final = 32  # per scene when an object turns or grows
PATH: Final = (0.45, 0.8)  # range of an object's path, as a share of the shorter side
SIDE: Final = (0.28, 0.42)  # range of an object's size, as a share of the shorter side
FULL_TURN: Final = 2 * np.pi
YUV: Final = np.array([[0.257, 0.504, 0.098], [-0.148, -0.291, 0.439], [0.439, -0.368, -0.071]])  # BT.601, limited
BLACK: Final = np.array([16.0, 128.0, 128.0])


@final
@dataclass(frozen=True, slots=True)
class _Drawn:
    """An object at one step: its planes, and how much of the background it hides, 0 to 256."""

    planes: tuple[NDArray[np.uint16], NDArray[np.uint16], NDArray[np.uint16]]  # [h, w], twice [h/2, w/2]; times hiding
    seen: tuple[
        NDArray[np.uint16], NDArray[np.uint16], NDArray[np.uint16]
    ]  # how much of the background is visible, 0 to 256


@final
@dataclass(frozen=True, slots=True)
class _Object:
    """A moving object: its picture at each step, and its centre at the start and end of the scene."""

    looks: tuple[_Drawn, ...]
    begin: tuple[float, float]  # row, column
    end: tuple[float, float]


@final
class Grounds:
    """The noise that backgrounds are cut from; 0.2 CPU s once."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([seed, 0])
        self.textures = [noise(rng, slope=1.2), noise(rng, slope=1.0, stretch=4.0)]
        self.tint = noise(rng, slope=1.8)


@final
class Scene:
    """One motion over one ground.

    Args:
        rng: decides everything that is not given.
        height: of the picture; a multiple of 4.
        width: even.
        motion: the class, an index of `MOTIONS`.
        grounds: of the seed.
    """

    def __init__(self, rng: np.random.Generator, height: int, width: int, motion: int, grounds: Grounds) -> None:
        self._height, self._width = height, width
        self._ground = _ground(rng, height, width, grounds)
        self._picture = np.empty_like(self._ground)
        kind = int(rng.choice(SEEN_TURNING))
        colour = str(rng.choice(list(COLOURS)))
        self.caption = f"a {colour} {SHAPE_NAMES[kind]} {SAID[motion]}"
        count = 1 if motion > MOTIONS.index("down") else int(rng.integers(1, 3))
        self._objects = [_object(rng, (height, width), motion, kind, colour) for _ in range(count)]

    def picture(self, at: float) -> Picture:
        """Return the picture at a point of time in the scene.

        Args:
            at: from 0, the begin, to 1.

        Returns:
            shape [3 H / 2, W], uint8; overwritten by the next call.
        """
        np.copyto(self._picture, self._ground)
        planes = split(self._picture, self._height, self._width)
        for each in self._objects:
            look = each.looks[min(int(at * len(each.looks)), len(each.looks) - 1)]
            row, column = (b + at * (e - b) for b, e in zip(each.begin, each.end, strict=True))
            _blend(planes, look, row, column)
        return self._picture


def split(picture: Picture, height: int, width: int) -> tuple[Picture, Picture, Picture]:
    """Views on the three planes of a picture: [H, W], twice [H/2, W/2]."""
    flat, luma, chroma = picture.reshape(-1), height * width, height * width // 4
    half = (height // 2, width // 2)
    first, second = flat[luma : luma + chroma], flat[luma + chroma :]
    return flat[:luma].reshape(height, width), first.reshape(half), second.reshape(half)


def _ground(rng: np.random.Generator, height: int, width: int, grounds: Grounds) -> Picture:
    texture = grounds.textures[int(rng.integers(len(grounds.textures)))]
    picture = np.empty((height * 3 // 2, width), np.uint8)
    luma, *chroma = split(picture, height, width)
    light = cut(texture, height, width, rng) * np.float32(rng.uniform(8, 20)) + np.float32(rng.uniform(80, 170))
    luma[:] = np.clip(light, 16, 235)
    tint = cut(grounds.tint, height // 2, width // 2, rng)
    for plane in chroma:
        plane[:] = np.clip(tint * np.float32(rng.normal(0, 6)) + np.float32(rng.normal(128, 12)), 90, 166)
    return picture


def _object(rng: np.random.Generator, size: tuple[int, int], motion: int, kind: int, colour: str) -> _Object:
    """Return an object and its motion: along an axis, or in place."""
    short, name = min(size), MOTIONS[motion]
    side = short * rng.uniform(*SIDE)
    turn = rng.uniform(-0.4, 0.4)
    middle = [extent / 2 + short * rng.uniform(-0.18, 0.18) for extent in size]
    way = [0.0, 0.0]
    turns, sides = [turn], [side]
    if name in {"turn", "grow"}:
        steps = np.linspace(0, 1, STEPS)
        turns = list(turn + steps * rng.uniform(0.4, 0.8) * FULL_TURN) if name == "turn" else [turn] * STEPS
        sides = list(side * (0.5 + steps * rng.uniform(0.9, 1.2))) if name == "grow" else [side] * STEPS
    else:
        axis, sign = {"left": (1, -1), "right": (1, 1), "up": (0, -1), "down": (0, 1)}[name]
        way[axis] = sign * short * rng.uniform(*PATH)
    looks = tuple(_drawn(kind, one, other, colour) for one, other in zip(turns, sides, strict=True))
    begin, end = ([m + part * w for m, w in zip(middle, way, strict=True)] for part in (-0.5, 0.5))
    return _Object(looks, (begin[0], begin[1]), (end[0], end[1]))


def _drawn(kind: int, turn: float, side: float, colour: str) -> _Drawn:
    """Return the picture of an object, in a square just large enough for any rotation."""
    count = 4 * max(2, round(side * 0.36))  # room for the corners; its half is even, for the halved planes
    axis = (np.arange(count, dtype=np.float32) + np.float32(0.5) - count / 2) * np.float32(2 / side)
    y, x = axis[:, None], axis[None, :]
    cos, sin = np.float32(np.cos(turn)), np.float32(np.sin(turn))
    inside, pattern = SHAPES[kind](x * cos + y * sin, y * cos - x * sin)
    hiding = np.clip(inside * np.float32(side / 3) + np.float32(0.5), 0, 1)
    first = YUV @ np.array(COLOURS[colour]) + BLACK
    darker = first * (0.45, 1, 1) + (16, 0, 0) if first[0] > 110 else first * (1, 0.3, 0.3) + (110, 90, 90)  # noqa: PLR2004  half of luma
    parts = [(plane, share) for plane, share in zip(_painted(pattern, first, darker), _hidden(hiding), strict=True)]
    planes = [(plane * share).astype(np.uint16) for plane, share in parts]
    seen = [(256 - share).astype(np.uint16) for _, share in parts]
    return _Drawn((planes[0], planes[1], planes[2]), (seen[0], seen[1], seen[2]))


def _painted(pattern: Plane, first: NDArray[np.float64], second: NDArray[np.float64]) -> list[Plane]:
    """The three planes of a pattern of two colours."""
    full = np.broadcast_to(pattern, (len(pattern), len(pattern)))
    by_plane = (full, full[::2, ::2], full[::2, ::2])
    return [
        np.asarray(np.clip(part * (one - other) + other, 16, 240), np.float32)
        for part, one, other in zip(by_plane, first, second, strict=True)
    ]


def _hidden(hiding: Plane) -> list[Plane]:
    """0 to 256, for each plane."""
    half = (hiding[::2, ::2] + hiding[1::2, ::2] + hiding[::2, 1::2] + hiding[1::2, 1::2]) / 4
    return [np.round(hiding * 256), np.round(half * 256), np.round(half * 256)]


def _blend(planes: Sequence[Picture], look: _Drawn, row: float, column: float) -> None:
    """Put an object's centre at a place; it may lie partly outside. Places are even, for the halved planes."""
    for level, (plane, drawn, seen) in enumerate(zip(planes, look.planes, look.seen, strict=True)):
        scale, side = (1, 2, 2)[level], len(drawn)
        top, left = (2 * round(at / 2) // scale - side // 2 for at in (row, column))
        height, width = plane.shape
        rows, columns = slice(max(top, 0), min(top + side, height)), slice(max(left, 0), min(left + side, width))
        inner = slice(rows.start - top, rows.stop - top), slice(columns.start - left, columns.stop - left)
        ground = plane[rows, columns]
        ground[:] = (ground * seen[inner] + drawn[inner]) >> 8
