from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.decoders import _frames
from spiral_stream.decoders.video.rgb import constants, form_of, to_rgb
from spiral_stream.errors import DataError
from tests.fixtures.examples import few
from tests.fixtures.videos import Made, write_video

FORMATS = ("yuv420p", "yuvj420p", "yuv422p", "yuv444p", "yuv440p", "gray", "nv12", "gbrp")
FORMATS += ("yuv420p10le", "yuv422p10le", "yuv444p12le", "gray10le", "gbrp10le")
GRAY, SEMI, GBR = 1, 2, 3


def noise(name, height, width, seed=0):
    """A frame of random samples, padding too."""
    frame, rng = av.VideoFrame(width, height, name), np.random.default_rng(seed)
    bits = form_of(frame)[4]
    for plane in frame.planes:
        deep = bits > 8
        samples = rng.integers(0, 1 << bits, plane.buffer_size // (1 + deep), np.uint16 if deep else np.uint8)
        plane.update(samples.tobytes())
    return frame


def specified(frame, rotation, full_range, matrix):
    """The arithmetic of ``_frames.c`` in NumPy, of the whole upright picture [H, W, 3]."""
    height, width, shift_x, shift_y, bits, kind, fields = form_of(frame)
    s, dtype = bits - 8, np.uint16 if bits > 8 else np.uint8
    planes = [
        np.frombuffer(p, dtype).reshape(-1, p.line_size // np.dtype(dtype).itemsize).astype(np.int64)
        for p in frame.planes
    ]
    y, x = np.arange(height)[:, None] >> shift_y, np.arange(width)[None] >> shift_x
    if fields and shift_y:
        rows = np.arange(height)[:, None]
        y = np.minimum((rows >> 2) * 2 + (rows & 1), (height + 1) // 2 - 1)
    if kind == GBR:
        rgb = [(planes[k][:height, :width] + ((1 << s) >> 1)) >> s for k in (2, 0, 1)]
    else:
        full = full_range or frame.format.name.startswith("yuvj")
        black, luma, red_v, green_u, green_v, blue_u = constants(matrix, full).tolist()
        light = luma * (planes[0][:height, :width] - (black << s)) + (1 << (13 + s))
        u = v = np.zeros((height, width), np.int64)
        if kind == SEMI:
            u, v = planes[1][y, 2 * x] - 128, planes[1][y, 2 * x + 1] - 128
        elif kind != GRAY:
            u, v = planes[1][y, x] - (128 << s), planes[2][y, x] - (128 << s)
        sums = (light + red_v * v, light - green_u * u - green_v * v, light + blue_u * u)
        rgb = [part >> (14 + s) for part in sums]
    return np.rot90(np.clip(np.stack(rgb, -1), 0, 255).astype(np.uint8), -rotation // 90)


def boxes_of(frames, boxes, rotation=0, full_range=False, matrix=2):
    pixels = to_rgb(frames, np.array(boxes, np.int32), rotation, full_range, matrix)
    offsets = (pixels.addresses - np.uint64(pixels.memory.ctypes.data)).astype(int)
    return [
        pixels.memory[at : at + h * stride].reshape(h, stride)[:, : 3 * w].reshape(h, w, 3).copy()
        for at, stride, (_, _, h, w) in zip(offsets, pixels.strides.tolist(), boxes, strict=True)
    ]


@few(50, 150)
@given(
    name=st.sampled_from(FORMATS),
    height=st.integers(1, 60),
    width=st.one_of(st.integers(1, 60), st.integers(500, 1_100)),
    rotation=st.sampled_from([0, 90, 180, 270]),
    full_range=st.booleans(),
    matrix=st.sampled_from([0, 1, 2, 4, 5, 6, 7, 9, 10]),
    data=st.data(),
)
def test_every_byte_of_every_box_is_as_specified(name, height, width, rotation, full_range, matrix, data):
    frames = [noise(name, height, width, seed) for seed in range(2)]
    high, wide = (width, height) if rotation % 180 else (height, width)
    boxes = []
    for _ in frames:
        h, w = data.draw(st.integers(1, high)), data.draw(st.integers(1, wide))
        boxes.append((data.draw(st.integers(0, high - h)), data.draw(st.integers(0, wide - w)), h, w))

    got = boxes_of(frames, boxes, rotation, full_range, matrix)

    for frame, pixels, (top, left, h, w) in zip(frames, got, boxes, strict=True):
        whole = specified(frame, rotation, full_range, matrix)
        assert (pixels == whole[top : top + h, left : left + w]).all()


@few(15, 40)
@given(name=st.sampled_from(FORMATS), width=st.integers(1, 600), rotation=st.sampled_from([0, 90, 180, 270]))
def test_the_portable_path_gives_the_same_bytes(name, width, rotation):
    frame = noise(name, 9, width)
    planes, forms = np.zeros((1, 3, 3), np.int64), np.array([form_of(frame)], np.int32)
    for k, plane in enumerate(frame.planes):
        planes[0, k] = plane.buffer_ptr, plane.line_size, plane.buffer_size
    box = np.array([[0, 0, width, 9] if rotation % 180 else [0, 0, 9, width]], np.int32)
    outs = [np.zeros(9 * width * 3, np.uint8) for _ in range(2)]

    for portable, out in enumerate(outs):
        _frames.to_rgb(planes, forms, box, np.zeros(1, np.int64), constants(1, False), out, rotation, bool(portable))

    assert (outs[0] == outs[1]).all()


@few(70, 200)
@given(data=st.data())
def test_no_argument_makes_the_kernel_leave_its_memory(data):
    """Sizes and boxes of any kind over true addresses: a ValueError, or a conversion inside the planes."""
    frame = noise("yuv420p", 20, 30)
    small = st.integers(-3, 70)
    planes = np.zeros((1, 3, 3), np.int64)
    for k, plane in enumerate(frame.planes):
        size = data.draw(st.integers(-1, plane.buffer_size))
        line = data.draw(st.one_of(st.just(plane.line_size), small, st.integers(-(2**40), 2**40)))
        planes[0, k] = data.draw(st.sampled_from([plane.buffer_ptr, plane.buffer_ptr, 0])), line, size
    forms = np.array(
        [[data.draw(small), data.draw(small), *(data.draw(st.integers(-1, 3)) for _ in range(2))]], np.int32
    )
    forms = np.concatenate(
        [forms, [[data.draw(st.integers(7, 15)), data.draw(st.integers(-1, 4)), data.draw(st.integers(0, 1))]]], 1
    ).astype(np.int32)
    box = np.array([[data.draw(small) for _ in range(4)]], np.int32)
    place = np.array([data.draw(st.integers(-5, 5_000))], np.int64)
    out = np.zeros(data.draw(st.integers(0, 4_000)), np.uint8)
    numbers = np.array([data.draw(st.integers(-1, 2**31 - 1))] * 6, np.int32) if data.draw(st.booleans()) else None

    with suppress(ValueError):
        constant = constants(2, False) if numbers is None else numbers
        _frames.to_rgb(planes, forms, box, place, constant, out, data.draw(st.sampled_from([0, 90, 180, 270])))


def test_chroma_of_interlaced_frames_is_that_of_their_field(tmp_path):
    """Rows of a field that moved: chroma of the other field would show as combs of colour."""
    params = "interlaced=1:keyint=12:threads=1"
    path = write_video(tmp_path / "fields.mp4", Made(frames=6, options=(("x264-params", params), ("crf", "10"))))
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
    assert all(frame.interlaced_frame for frame in frames)
    for frame in frames:
        (found,) = boxes_of([frame], [[0, 0, frame.height, frame.width]])
        assert np.array_equal(found, specified(frame, 0, False, 2))
        assert np.abs(found.astype(int) - frame.to_ndarray(format="rgb24")).max() <= 3


@pytest.mark.parametrize(("name", "most"), [("yuv420p", 3), ("yuvj420p", 3), ("yuv422p", 3), ("yuv444p", 1)])
def test_pyav_is_near(name, most):
    picture = np.kron(np.random.default_rng(3).integers(0, 256, (12, 16, 3), np.uint8), np.ones((16, 16, 1), np.uint8))
    frame = av.VideoFrame.from_ndarray(picture, "rgb24").reformat(format=name)

    ours = boxes_of([frame], [(0, 0, *picture.shape[:2])])[0]

    assert abs(ours.astype(int) - frame.to_ndarray(format="rgb24")).max() <= most


@pytest.mark.parametrize(("matrix", "full_range", "expected"), [
    (1, False, [16, 19077, 29372, 3494, 8731, 34610]),
    (2, False, [16, 19077, 26149, 6419, 13320, 33050]),
    (2, True, [0, 16384, 22970, 5638, 11700, 29032]),
    (9, False, [16, 19077, 27503, 3069, 10657, 35091]),
])  # fmt: skip
def test_the_constants_are_those_of_the_standards(matrix, full_range, expected):
    assert constants(matrix, full_range).tolist() == expected


@pytest.mark.parametrize(("luma", "gray"), [(16, 0), (235, 255), (126, 128), (0, 0), (255, 255)])
def test_gray_of_limited_range_spans_black_to_white(luma, gray):
    frame = av.VideoFrame(8, 8, "yuv420p")
    for plane, value in zip(frame.planes, (luma, 128, 128), strict=True):
        plane.update(bytes([value]) * plane.buffer_size)

    assert (boxes_of([frame], [(0, 0, 8, 8)])[0] == gray).all()


def test_boxes_may_go_where_the_caller_says():
    frame, out = noise("yuv420p", 10, 12), np.zeros(1_000, np.uint8)

    pixels = to_rgb([frame, frame], np.array([[0, 0, 4, 5], [1, 2, 3, 3]], np.int32), 0, False, 2, out)

    assert pixels.memory is out
    assert (pixels.addresses - np.uint64(out.ctypes.data)).tolist() == [0, 64]
    assert (out[:60].reshape(4, 5, 3) == specified(frame, 0, False, 2)[:4, :5]).all()
    assert (out[64:91].reshape(3, 3, 3) == specified(frame, 0, False, 2)[1:4, 2:5]).all()


def test_threads_have_memory_of_their_own():
    frames = [noise("yuv420p", 120, 160, seed) for seed in range(4)]
    wanted = [specified(frame, 0, False, 2) for frame in frames]

    def work(k):
        return all((boxes_of([frames[k]], [(0, 0, 120, 160)])[0] == wanted[k]).all() for _ in range(50))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


@pytest.mark.parametrize("box", [(0, 0, 11, 4), (0, 0, 4, 13), (-1, 0, 4, 4), (0, 0, 0, 4), (2**31 - 1, 0, 4, 4)])
def test_a_box_that_leaves_the_picture_is_refused(box):
    with pytest.raises(ValueError, match=r"to_rgb: frame 0: its box leaves the upright picture"):
        to_rgb([noise("yuv420p", 10, 12)], np.array([box], np.int32), 0, False, 2, np.zeros(9_999, np.uint8))


def test_an_output_that_is_too_small_is_refused():
    with pytest.raises(ValueError, match=r"to_rgb: frame 0: its place in out is too small"):
        to_rgb([noise("gray", 10, 12)], np.array([[0, 0, 10, 12]], np.int32), 0, False, 2, np.zeros(359, np.uint8))


def test_an_unknown_rotation_is_refused():
    with pytest.raises(ValueError, match=r"rotation is 45; it must be 0, 90, 180 or 270"):
        to_rgb([noise("gray", 10, 12)], np.array([[0, 0, 10, 12]], np.int32), 45, False, 2)


def test_a_format_that_h264_does_not_have_is_refused_with_the_way_out():
    with pytest.raises(DataError, match=r"video: frames are rgb24; read are yuv420p, .* Encode again"):
        to_rgb([av.VideoFrame(8, 8, "rgb24")], np.array([[0, 0, 8, 8]], np.int32), 0, False, 2)
