"""Sound: the part that was asked for, at its place to the sample, whatever the container; or an error that says why."""

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.decoders.limits import SampleLimits
from spiral_stream.decoders.sound.sound import decode_sound
from spiral_stream.decoders.sound.sound_selection import SoundSelection
from spiral_stream.errors import DataError
from tests.fixtures.sounds import EXACT, encoded, recording, tone, whole
from tests.fixtures.sounds import MORE_CODECS as CODECS

LONG = {name: recording(name, 4.0) for name in CODECS}
SHORT = {name: recording(name, 0.5) for name in CODECS}
DATA = (
    Path(__file__).parents[3] / "data" / "sounds"
)  # by other writers, with what other readers make of them (write.py there)
# AAC fills bands with noise, and draws it anew from where decoding begins.
TOLERANCE = {
    name: {"aac": 2e-2, "adts": 2e-2, "mkv": 2e-2}.get(name, 0.0 if name in EXACT else 2e-3) for name in CODECS
}


@pytest.mark.parametrize("name", CODECS)
@given(data=st.data())
def test_a_segment_is_that_part_of_the_whole_recording(name: str, data: st.DataObject) -> None:
    encoded_bytes, _, rate = LONG[name]
    all_CS = whole(encoded_bytes)
    begin_ms = data.draw(st.integers(0, 3_000))
    duration_ms = data.draw(st.integers(10, 4_000 - begin_ms - 100))
    length = duration_ms * rate // 1000

    found = decode_sound(encoded_bytes, SoundSelection(rate, length, len(all_CS)), segment_ms=(begin_ms, duration_ms))

    begin = begin_ms * rate // 1000
    assert np.abs(found - all_CS[:, begin : begin + length]).max() <= TOLERANCE[name]


@pytest.mark.parametrize("name", CODECS)
def test_first_centre_and_random_parts_are_where_they_should_be(name: str) -> None:
    encoded_bytes, _, rate = LONG[name]
    all_CS = whole(encoded_bytes)
    length = rate // 2
    for start, u, share in (
        ("first", 0.0, 0.0),
        ("centre", 0.0, 0.5),
        ("random", 0.25, 0.25),
        ("random", 0.999_999, 1.0),
    ):
        found = decode_sound(encoded_bytes, SoundSelection(rate, length, len(all_CS), start=start), u)  # type: ignore[arg-type]
        around = round(share * (all_CS.shape[1] - length))
        slack = rate // 20  # what headers count differently: the delay of encoders
        places = range(max(0, around - slack), min(around + slack, all_CS.shape[1] - length) + 1)
        nearest = min(np.abs(found - all_CS[:, at : at + length]).max() for at in places)
        assert nearest <= TOLERANCE[name]


@pytest.mark.parametrize(("rate", "channels"), [(16_000, 1), (48_000, 2), (8_000, 2)])
def test_a_resampled_sine_is_that_sine(rate: int, channels: int) -> None:
    data = encoded(tone(44_100, 2, 1.0, pitch=500), "wav", "pcm_s16le", 44_100)
    found = decode_sound(data, SoundSelection(rate, rate, channels))

    wanted = tone(rate, 2, 1.0, pitch=500)
    wanted = wanted.mean(axis=0, keepdims=True) if channels == 1 else wanted
    inside = slice(200, -200)  # the filter sees silence beyond both ends
    assert found.shape == (channels, rate)
    assert found.dtype == np.float32
    scale = (
        np.abs(found[:, inside]).max() / np.abs(wanted[:, inside]).max()
    )  # libswresample keeps the power of a mixdown
    assert np.abs(found - wanted * scale)[:, inside].max() < 2e-3
    assert channels == 1 or abs(scale - 1) < 1e-3


def test_mono_is_repeated_to_stereo() -> None:
    found = decode_sound(LONG["flac"][0], SoundSelection(22_050, 1_000, 2))

    assert (found[0] == found[1]).all()


def test_a_short_recording_is_followed_by_silence_or_begins_again() -> None:
    data, values, rate = recording("flac", 0.1)
    count = values.shape[1]
    silent = decode_sound(data, SoundSelection(rate, 3 * count))
    looped = decode_sound(data, SoundSelection(rate, 3 * count, short="loop"))

    assert not silent[:, count:].any()
    assert (looped[:, :count] == silent[:, :count]).all()
    assert (looped[:, count : 2 * count] == silent[:, :count]).all()
    assert (looped[:, 2 * count :] == silent[:, :count]).all()


def lying_header() -> bytes:
    """A WAV whose header says ten times what there is."""
    data = bytearray(encoded(tone(8_000, 1, 0.5), "wav", "pcm_s16le", 8_000))
    at = data.index(b"data")
    size = struct.unpack_from("<I", data, at + 4)[0]
    struct.pack_into("<I", data, at + 4, 10 * size)
    return bytes(data)


FLAC = LONG["flac"][0]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", r"the value is empty \(0 bytes\)"),
        (b"x" * 1000, r"1,000 bytes cannot be decoded \(InvalidDataError\). Fetch the file again"),
        (b"RIFF\0\0\0\0WAVEfmt ", "16 bytes cannot be decoded"),
        (lying_header(), "the WAV claims 80,000 bytes of samples and holds 8,000. Fetch the file again"),
        (FLAC[: len(FLAC) // 2], "the recording ends .* before its header says|cannot be decoded"),
    ],
)
def test_damaged_data_are_refused(data: bytes, found: str) -> None:
    with pytest.raises(DataError, match=f"audio: {found}"):
        decode_sound(data, SoundSelection(8_000, 8_000 * 5))


@given(st.data())
def test_damage_gives_an_error_or_values_never_anything_else(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([*CODECS]))
    changed = bytearray(LONG[name][0])
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    del changed[data.draw(st.integers(len(changed) // 4, len(changed))) :]
    try:
        found = decode_sound(bytes(changed), SoundSelection(8_000, 4_000), 0.5)
    except DataError as error:
        assert str(error).startswith("audio: ")  # noqa: PT017  damage may also go unseen
    else:
        assert found.shape == (1, 4_000)


@pytest.mark.parametrize("segment", [(-1, 100), (0, 0), (3_900, 1_000), (9_000, 10)])
def test_a_segment_outside_the_recording_is_refused(segment: tuple[int, int]) -> None:
    with pytest.raises(DataError, match=r"is not inside the recording, which lasts 4000 ms. Correct start_time_ms"):
        decode_sound(FLAC, SoundSelection(8_000, 800), segment_ms=segment)


def test_a_picture_and_a_recording_that_is_too_long_are_refused() -> None:
    limits = SampleLimits(pixels=1, frames=1_000, bytes=1 << 20)
    with pytest.raises(DataError, match="1,000 source samples may be decoded for one sample, and this one has more"):
        decode_sound(FLAC, SoundSelection(22_050, 22_050), limits=limits)
    with pytest.raises(DataError, match="1,000 source samples may be decoded"):
        decode_sound(LONG["mp3"][0], SoundSelection(22_050, 100, start="centre"), limits=limits)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize(("start", "u"), [("centre", 0.0), ("random", 0.3), ("random", 0.999)])
def test_parts_of_short_recordings_are_where_they_should_be(name: str, start: str, u: float) -> None:
    encoded_bytes, _, rate = SHORT[name]
    all_CS = whole(encoded_bytes)
    length = rate // 4
    found = decode_sound(encoded_bytes, SoundSelection(rate, length, len(all_CS), start=start), u)  # type: ignore[arg-type]
    share = {"centre": 0.5}.get(start, u)
    around, slack = round(share * (all_CS.shape[1] - length)), rate // 15
    places = range(max(0, around - slack), min(around + slack, all_CS.shape[1] - length) + 1)
    assert min(np.abs(found - all_CS[:, at : at + length]).max() for at in places) <= TOLERANCE[name]


OTHERS = dict(np.load(DATA / "values.npz"))


@pytest.mark.parametrize("name", OTHERS)
@given(data=st.data())
def test_recordings_of_other_writers_are_what_other_readers_make_of_them(name: str, data: st.DataObject) -> None:
    wanted = OTHERS[name].astype(np.float32) / 32_768
    rate = 48_000 if name.endswith("opus") else 8_000
    encoded_bytes = (DATA / name).read_bytes()
    end = int(0.8 * rate)
    tolerance = 2e-2 if name.endswith(("m4a", "opus")) else 3e-3  # another version of the decoder, and int16
    all_CS = decode_sound(encoded_bytes, SoundSelection(rate, end, len(wanted)))
    assert np.abs(all_CS - wanted[:, :end]).max() <= tolerance

    begin_ms = data.draw(st.integers(0, 700))
    duration_ms = data.draw(st.integers(10, 800 - begin_ms))
    begin, length = begin_ms * rate // 1000, duration_ms * rate // 1000
    found = decode_sound(encoded_bytes, SoundSelection(rate, length, len(wanted)), segment_ms=(begin_ms, duration_ms))
    assert np.abs(found - wanted[:, begin : begin + length]).max() <= tolerance
