import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.decoders.video.slices import UNITS, length_bytes, slices_of

SLICE, IDR, SEI, SPS, DELIMITER = 1, 5, 6, 7, 9
RECOVERY_NOW = b"\x06\x01\xc4\x80"  # message 6 of 1 byte: recovery_frame_cnt ue(0), exact_match, ...
RECOVERY_LATER = b"\x06\x02\x08\x80\x80"  # ue(15)
USER_DATA = b"\x05\x03abc"


def packet(*units: tuple[int, int, bytes], prefix: int = 4) -> bytes:
    """NAL units of (type, nal_ref_idc, payload), with lengths or (prefix 0) start codes."""
    out = b""
    for kind, refers, payload in units:
        unit = bytes([refers << 5 | kind]) + payload
        out += (len(unit).to_bytes(prefix, "big") if prefix else b"\0\0\1") + unit
    return out


@given(
    slices=st.lists(st.tuples(st.sampled_from([SLICE, IDR]), st.integers(0, 3)), max_size=6),
    before=st.lists(st.sampled_from([SEI, SPS, DELIMITER]), max_size=3),
    prefix=st.sampled_from([0, 2, 4]),
    key=st.booleans(),
)
def test_a_packet_is_disposable_if_none_of_its_slices_is_referred_to(
    slices: list[tuple[int, int]], before: list[int], prefix: int, key: bool
) -> None:
    units = [(kind, 0, b"\x80\x80") for kind in before] + [(kind, refers, b"\x88\x84") for kind, refers in slices]
    says = slices_of(packet(*units, prefix=prefix), prefix, key)

    assert says.frame == bool(slices)
    assert says.disposable == (bool(slices) and not any(refers for _, refers in slices))
    assert says.entry == (key and bool(slices))


@given(data=st.binary(max_size=60), prefix=st.sampled_from([0, 1, 2, 4]), key=st.booleans())
def test_any_bytes_are_looked_at(data: bytes, prefix: int, key: bool) -> None:
    says = slices_of(data, prefix, key)

    assert not (says.disposable and not says.frame)
    assert not says.entry or key


@pytest.mark.parametrize("prefix", [0, 4])
@pytest.mark.parametrize(
    ("message", "entry"),
    [
        (RECOVERY_NOW, True),
        (USER_DATA + RECOVERY_NOW, True),
        (RECOVERY_LATER, False),
        (USER_DATA + RECOVERY_LATER, False),
    ],
)
def test_a_recovery_point_of_some_frames_is_no_place_to_start(message: bytes, entry: bool, prefix: int) -> None:
    units = [(SEI, 0, message + b"\x80"), (SLICE, 2, b"\x88\x84")]

    assert slices_of(packet(*units, prefix=prefix), prefix, key=True).entry == entry
    assert not slices_of(packet(*units, prefix=prefix), prefix, key=False).entry


def test_an_idr_slice_is_a_place_to_start_whatever_a_message_says() -> None:
    assert slices_of(packet((SEI, 0, RECOVERY_LATER + b"\x80"), (IDR, 2, b"\x88")), 4, key=True).entry


def test_a_damaged_packet_is_what_the_container_says() -> None:
    says = slices_of(packet((SLICE, 0, bytes(20)))[:-3], 4, key=True)

    assert (says.frame, says.disposable, says.entry, says.is_complete) == (True, False, True, False)


def test_more_units_than_are_looked_at_are_not_disposable() -> None:
    assert not slices_of(packet(*[(SLICE, 0, b"\x88")] * (UNITS + 1)), 4, key=False).disposable


@pytest.mark.parametrize(
    ("extradata", "expected"),
    [
        (b"\x01\x64\x00\x0a\xff\xe1\x00", 4),
        (b"\x01\x64\x00\x0a\xfd\xe1\x00", 2),
        (b"\0\0\1\x67\x64\0\x0a", 0),
        (b"", 0),
    ],
)
def test_the_header_says_how_units_are_parted(extradata: bytes, expected: int) -> None:
    assert length_bytes(extradata) == expected
