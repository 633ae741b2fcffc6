"""Verify a part as a whole: every block against its sum, without a reader."""

from pathlib import Path

import numpy as np

from spiral_stream.derived.part import DATA, SUMS
from spiral_stream.integrity import seal
from spiral_stream.integrity.blocks import Mapped, sums_of


def verify_file(path: Path) -> bool:
    """Verify one file of a derivation's folder; returns whether there were sums to verify it by.

    Raises:
        DamageError: it is not what was written.
    """
    if path.suffix == ".json":
        return seal.json_has_seal(path)
    if path.suffix != DATA:
        return seal.content(path)[1]
    sums = np.frombuffer(seal.content(path.with_suffix(SUMS), sealed=True)[0], np.uint64)
    with seal.reading(path):
        found = sums_of(Mapped(str(path))) if path.stat().st_size else np.zeros(0, np.uint64)
    if not np.array_equal(found, sums):
        raise seal.damaged(path, "a block of it has another sum than was written")
    return True
