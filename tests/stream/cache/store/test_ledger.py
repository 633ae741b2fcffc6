"""The ledger says which rows are finished; a part that adds none is not needed."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.cache.store.ledger import Ledger, read
from spiral_stream.errors import DamageError


def entered(folder: Path, masks: list[list[bool]]) -> Ledger:
    ledger = Ledger(folder)
    folder.mkdir(exist_ok=True)
    for at, mask in enumerate(masks):
        fragment = json.dumps({"files": [{"path": f"part-{at}.lance"}]})
        ledger.enter("shard", np.array(mask), sum(mask), fragment, "sums")
    return ledger


@given(masks=st.lists(st.lists(st.booleans(), min_size=9, max_size=9), min_size=1, max_size=6))
def test_needed_parts_cover_what_all_parts_cover_and_each_adds_a_row(
    tmp_path_factory: pytest.TempPathFactory, masks: list[list[bool]]
) -> None:
    ledger = entered(tmp_path_factory.mktemp("ledger") / "l", masks)
    assert sorted(entry.mask.tolist() for entry in ledger.entries()) == sorted(masks)

    covered = np.zeros(9, dtype=np.bool_)
    needed = ledger.needed()
    for entry in needed:
        assert (entry.mask & ~covered).any() or entry is needed[0]
        covered |= entry.mask
    assert covered.tolist() == np.any(masks, axis=0).tolist()


def test_a_part_that_readers_see_counts_before_a_larger_one(tmp_path: Path) -> None:
    ledger = entered(tmp_path / "l", [[True, True, False], [True, True, True]])

    assert [entry.file for entry in ledger.needed()] == ["part-1.lance"]
    assert [entry.file for entry in ledger.needed({"part-0.lance"})] == ["part-0.lance", "part-1.lance"]


def test_a_removed_entry_is_none_and_a_damaged_one_names_the_way_out(tmp_path: Path) -> None:
    (path,) = entered(tmp_path / "l", [[True]]).files()
    path.write_bytes(path.read_bytes().replace(b"shard", b"shorn"))
    with pytest.raises(DamageError, match=r"stream\.materialize\(\) builds what it stood for again"):
        read(path)
    path.unlink()

    assert read(path) is None
