"""Errors of the operating system name a way out of their own kind."""

import errno
import os

import pytest

from spiral_stream.integrity.faults import failed, number_of


@pytest.mark.parametrize(
    ("number", "way_out"),
    [
        (errno.ENOSPC, "The disk is full: free space"),
        (errno.EMFILE, r"ulimit -n"),
        (errno.EACCES, r"set \$SPIRAL_CACHE to a folder of its own"),
        (errno.EIO, "The disk failed"),
        (errno.ENOENT, "build it again"),
    ],
)
def test_each_kind_has_its_way_out(number: int, way_out: str) -> None:
    error = failed(OSError(number, os.strerror(number)), "build it again", "cache: cannot open", "file")

    with pytest.raises(type(error), match=rf"cache: cannot open file \({os.strerror(number)}\)\. .*{way_out}"):
        raise error


def test_errors_out_of_rust_have_their_number_in_the_text() -> None:
    assert number_of(OSError("LanceError(IO): disk, No space left on device (os error 28)")) == errno.ENOSPC
    assert number_of(OSError("something else")) is None
    assert "free space" in str(failed(OSError("it broke (os error 28)"), "look at it", "x"))
