"""Long work says what it does: one line on a terminal within three seconds, and nothing in a pipe unless asked."""

import os
import pty
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from spiral_stream.display import progress
from spiral_stream.display.progress import working
from tests.fixtures.long_works import WORKS
from tests.fixtures.streams import our_threads
from tests.fixtures.waits import until

ROOT = Path(__file__).parents[3]


def seen(command: list[str], environment: dict[str, str]) -> str:
    """What a process writes to a terminal of 200 columns, without colours."""
    ours, theirs = pty.openpty()
    found: list[bytes] = []

    def read() -> None:
        while True:
            try:
                more = os.read(ours, 65_536)
            except OSError:  # Linux says so where the last one closed the terminal
                return
            if not more:
                return
            found.append(more)

    reading = threading.Thread(target=read)
    reading.start()
    done = subprocess.run(
        command, cwd=ROOT, stdout=theirs, stderr=theirs, stdin=theirs, check=False, env=environment, timeout=300
    )
    os.close(theirs)
    reading.join()
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(found).decode())
    assert done.returncode == 0, text[-3000:]
    return text


def environment(**more: str) -> dict[str, str]:
    decided = {"TTY_COMPATIBLE", "TTY_INTERACTIVE", "FORCE_COLOR", "RANK", "SPIRAL_CACHE", "SPIRAL_CATALOG"}
    kept = {name: value for name, value in os.environ.items() if name not in decided}
    return {**kept, "TERM": "xterm", "COLUMNS": "200", "LINES": "50", **more}


def long_works(folder: Path) -> list[str]:
    return [sys.executable, "-m", "tests.fixtures.long_works", str(folder)]


def test_every_long_work_says_on_a_terminal_what_it_does(tmp_path: Path) -> None:
    text = seen(long_works(tmp_path), environment())

    parts = {name.strip(): said for name, said in re.findall(r"@begin ([^\r\n]*)(.*?)@end", text, re.DOTALL)}
    assert list(parts) == list(WORKS)
    silent = {name: said for name, said in parts.items() if WORKS[name][1] not in said}
    assert silent == {}
    assert progress.SHOWN_AFTER_S <= 2  # the process waits less, so that the test takes less


@pytest.mark.slow  # a pipe gets no line of one work
def test_no_long_work_says_anything_in_a_pipe(tmp_path: Path) -> None:
    done = subprocess.run(
        long_works(tmp_path), cwd=ROOT, capture_output=True, text=True, check=True, env=environment(), timeout=300
    )

    lines = [line for line in done.stderr.splitlines() if line]
    assert lines == [line for name in WORKS for line in (f"@begin {name}", f"@end {name}")]
    assert done.stdout == ""


SHORT = """
from spiral_stream.display.progress import working
from tests.fixtures.long_works import until_shown, watched
watched()
with working("reading 2,000 footers", "files", 2_000) as told:
    told(7)
    until_shown("7 of 2,000 files")
"""


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        ({}, False),
        ({"TTY_COMPATIBLE": "1"}, True),
        ({"FORCE_COLOR": "1"}, True),
        ({"TTY_COMPATIBLE": "1", "RANK": "0"}, True),
        ({"TTY_COMPATIBLE": "1", "RANK": "3"}, False),
    ],
)
def test_a_pipe_gets_the_line_if_it_asks(more: dict[str, str], shown: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHORT],
        capture_output=True,
        text=True,
        check=True,
        env=environment(**more),
        cwd=ROOT,
        timeout=300,
    )

    assert ("reading 2,000 footers" in done.stderr) == shown
    assert ("7 of 2,000 files" in done.stderr) == shown


def test_a_terminal_gets_no_line_if_it_does_not_want_one() -> None:
    assert "footers" in seen([sys.executable, "-c", SHORT], environment())
    assert "footers" not in seen([sys.executable, "-c", SHORT], environment(TTY_COMPATIBLE="0"))


def shown(capfd: pytest.CaptureFixture[str], words: str) -> str:
    """What was written, once it has these words."""
    said = [""]

    def has_words() -> bool:
        said[0] += capfd.readouterr().err
        return re.search(words, said[0]) is not None

    until(has_words)
    return said[0]


@pytest.mark.usefixtures("no_threads_left")
def test_the_line_shows_the_work_inside_and_no_thread_stays(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(progress, "SHOWN_AFTER_S", 0.0)
    with working("register photos", "rows"), working("reading files", "files") as told:
        told(3, 9)
        shown(capfd, r"register photos: reading files .*3 of 9 files")
    capfd.readouterr()
    with working("told by another", hidden=True), working("reading files"):
        time.sleep(2 * progress.EVERY_S)

    assert capfd.readouterr().err == ""
    assert our_threads() == []


def test_work_of_another_thread_leaves_the_line_alone(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setattr(progress, "SHOWN_AFTER_S", 0.0)

    said: list[str] = []

    def other() -> None:
        with working("elsewhere"):
            said.extend(shown(capfd, "here") for _ in range(2))  # drawn anew

    with working("here"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    assert len(said) == 2
    assert "elsewhere" not in "".join(said) + capfd.readouterr().err


def lines_of(shell: Any) -> list[str]:
    return [each["data"]["text/plain"] for each in shell.display_pub.outputs]


def test_a_notebook_shows_the_line_below_the_cell_and_takes_it_away(monkeypatch: pytest.MonkeyPatch) -> None:
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell

    class ZMQInteractiveShell(InteractiveShell):  # what a kernel's is called
        """A shell without a terminal."""

    monkeypatch.setattr(progress, "SHOWN_AFTER_S", 0.0)
    shell = ZMQInteractiveShell.instance()
    try:
        shell.display_pub = CapturingDisplayPublisher()
        with working("looking at 100,000 files", "files", 100_000) as told:
            told(4_210)
            until(lambda: any("4,210" in line for line in lines_of(shell)))
        lines = lines_of(shell)
        again = {each["update"] for each in shell.display_pub.outputs[1:]}
    finally:
        ZMQInteractiveShell.clear_instance()

    assert re.fullmatch(r"looking at 100,000 files 4,210 of 100,000 files \d+ s", lines[-2])
    assert lines[-1] == ""
    assert again == {True}


FORKS = """
import os, sys, threading, time
from spiral_stream.display import progress

progress.SHOWN_AFTER_S = 0.0
with progress.working("outer"):
    time.sleep(0.1)
    with progress._SHOWN.lock:  # as another thread does that begins or ends a work
        child = os.fork()
    if not child:
        with progress.working("inner"):
            pass
if not child:
    os._exit(7)
print("status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_leaves_the_work_of_its_parent_and_waits_for_nobody() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKS]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment(TTY_COMPATIBLE="1"), timeout=300
    )
    assert done.stdout == "status 7\n"
