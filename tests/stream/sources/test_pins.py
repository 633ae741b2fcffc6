"""A pinned file may be read as long as size, time and, on the host that pinned it, inode are what they were."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiral_stream.errors import SourceError
from spiral_stream.sources import Pin
from spiral_stream.sources import pins as numbers
from spiral_stream.sources.pins import NOT_THERE, Collected, Pins, pin_of

WAY_OUT = r'Take the data as it is now with catalog\.refresh\("r"\), or restore the file'


def pinned(folder: Path, **files: Pin) -> Pins:
    with Collected() as collected:
        collected.add(list(files), list(files.values()))
        collected.write(folder / "r.pins")
    return Pins(folder / "r.pins", "r")


def looked(found: os.stat_result) -> numbers.ObjectStat:
    return numbers.ObjectStat(found.st_size, modified_ns=found.st_mtime_ns, inode=(found.st_dev, found.st_ino))


def facts_of(path: Path, size: int, mtime_ns: int) -> numbers.ObjectStat:
    path.write_bytes(bytes(size))
    os.utime(path, ns=(0, mtime_ns))
    return looked(path.stat())


def fault_of(pins: Pins, name: str, facts: numbers.ObjectStat) -> str | None:
    assert facts.inode is not None
    return pins.fault(name, facts.size, facts.mark, facts.inode[1])


@settings(max_examples=25)
@given(
    was=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    now=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_a_file_is_refused_when_and_only_when_its_size_or_time_differs(
    was: tuple[int, int], now: tuple[int, int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("pins")
    pins = pinned(folder, a=pin_of(facts_of(folder / "a", *was)))
    fault = fault_of(pins, "a", facts_of(folder / "a", *now))

    assert (fault is None) == (was == now)
    if fault is not None:
        assert fault.startswith(
            f"changed since registration: it had {was[0]} bytes of 1970-01-01 00:00:00.00000000{was[1]}, "
        )


def test_another_file_of_the_same_size_and_time_is_told_by_its_inode_on_the_same_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = facts_of(tmp_path / "a", 7, 5)
    pins = pinned(tmp_path, a=Pin(7, 5, (tmp_path / "a").stat().st_ino + 1), unknown=Pin(7, 5, 0))
    monkeypatch.setattr(numbers, "host_number", lambda: 1)
    elsewhere = Pins(tmp_path / "r.pins", "r")

    replaced = rf"changed since registration: another file of 7 bytes and the same time took its place\. {WAY_OUT}"
    assert re.fullmatch(replaced, str(fault_of(pins, "a", facts)))
    assert fault_of(pins, "unknown", facts) is None
    assert fault_of(elsewhere, "a", facts) is None


def test_a_file_that_was_not_there_may_come_and_one_that_nobody_named_may_not(tmp_path: Path) -> None:
    facts = facts_of(tmp_path / "a", 7, 5)
    pins = pinned(tmp_path, late=NOT_THERE)

    assert len(pins) == 1
    assert fault_of(pins, "late", facts) is None
    foreign = rf"was not among the files of r when it was registered\. {WAY_OUT}"
    assert re.fullmatch(foreign, str(fault_of(pins, "other", facts)))


@pytest.mark.parametrize("second", [2**33 + 1, 2**40])
def test_a_file_may_be_dated_after_the_year_2262(second: int, tmp_path: Path) -> None:
    was = facts_of(tmp_path / "a", 7, second * 10**9)
    pins = pinned(tmp_path, a=pin_of(was))

    assert fault_of(pins, "a", was) is None
    assert "now 7 of 1970-01-01 00:00:00.000000005. " in str(fault_of(pins, "a", facts_of(tmp_path / "a", 7, 5)))


def test_a_time_beyond_any_calendar_is_told_as_a_number(tmp_path: Path) -> None:
    far = looked(os.stat_result([0] * 10, {"st_mtime_ns": 10**22}))  # as file systems in memory keep it

    assert "now 0 of time 10000000000000000000000 ns. " in str(fault_of(pinned(tmp_path, a=Pin(6, 0, 0)), "a", far))


def test_lost_pins_are_named_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r'^r: pins .*No such file.*Write them again with catalog\.refresh\("r"\)'):
        Pins(tmp_path / "r.pins", "r")
