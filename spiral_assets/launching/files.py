"""Files that several processes read and write: replaced atomically, and locked while one of them decides."""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from spiral_assets.launching.waiting import Waited

_LOOK_S: Final = 0.1


def write_json(path: Path, value: Any) -> None:
    """Replace a file. A kill leaves the old one or the new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("w") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def read_json(path: Path) -> Any:
    """Return what a file holds; None if it is not there."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None


@contextmanager
def locked(path: Path, within_s: float) -> Iterator[None]:
    """Hold a lock, which the kernel frees when its holder dies.

    Args:
        path: of the file that is locked; made if it is not there.
        within_s: seconds to wait for it.

    Raises:
        TimeoutError: somebody else holds it all the time.
    """
    waited = Waited()
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if waited.seconds() >= within_s:
                    msg = (
                        f"{path}: another run has held this lock for {within_s:g} s, while it submits the same job. "
                        "Look at what it waits for; end it if it hangs, and launch this one again"
                    )
                    raise TimeoutError(msg) from None
                time.sleep(_LOOK_S)
        yield


def tail(path: Path, lines: int = 20) -> str:
    """Return the last lines of a text file; empty if there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 200 * lines))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
