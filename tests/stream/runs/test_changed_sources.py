"""A source that is overwritten before anybody reads the run: its records stay readable, and what is not known is said."""

import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spiral_stream as sp

pytestmark = pytest.mark.usefixtures("no_threads_left")
ROWS, BATCH = 64, 8


def rows(prefix: str, count: int) -> pa.Table:
    x = np.arange(count, dtype=np.float32)
    return pa.table({"sample_id": [f"{prefix}{k}" for k in range(count)], "x": x})


class Trained:
    """A catalog whose run was recorded over a file, before the file is changed."""

    def __init__(self, folder: Path, fields: dict[str, Any]) -> None:
        self.file = folder / "rows.parquet"
        pq.write_table(rows("s", ROWS), self.file)
        self.root = folder / "catalog"
        catalog = sp.connect(self.root)
        catalog.register("numbers", sp.Parquet(str(self.file)), identity="sample_id")
        plan = catalog.table("numbers").sample(order=sp.GlobalShuffle(seed=3)).collate(batch_size=BATCH, fields=fields)
        with plan.to_numpy() as stream, catalog.run("r", stream) as run:
            self.wanted = [(identity, 2.0) for batch in range(4) for identity in stream.ledger(batch)]
            for _, batch in zip(range(4), stream, strict=False):
                run.log(batch=batch, loss=2.0)
            self.state = stream.state_dict()

    def change(self, how: str) -> None:
        if how == "removed":
            self.file.unlink()
        else:
            pq.write_table({"grown": rows("s", 80), "others": rows("o", ROWS), "fewer": rows("s", 20)}[how], self.file)

    def forget_derived(self) -> None:
        """Remove what Spiral has derived of the rows, as on a machine that never trained."""
        for each in sp.connect(self.root).caches():
            if each.kind not in ("table", "quarantine") and each.path.is_dir():
                shutil.rmtree(each.path)

    def table(self) -> list[tuple[str, float]]:
        found = (
            sp.connect(self.root).table("runs.r").to_arrow().sort_by([("step", "ascending"), ("index", "ascending")])
        )
        return list(zip(found["sample_id"].to_pylist(), found["loss"].to_pylist(), strict=True))


BOTH = {"x": sp.Stack("x"), "id": sp.List("sample_id")}
ALONE = {"x": sp.Stack("x")}


@pytest.mark.parametrize("refreshed", [False, True])
@pytest.mark.parametrize("how", ["grown", "others", "fewer", "removed"])
def test_identities_that_batches_read_are_known_whatever_becomes_of_the_source(
    how: str, refreshed: bool, tmp_path: Path
) -> None:
    trained = Trained(tmp_path, BOTH)
    trained.change(how)
    if refreshed and how != "removed":
        sp.connect(trained.root).refresh("numbers")
    assert trained.table() == trained.wanted
    run = sp.connect(trained.root).run("r")
    assert run.seen().samples == 4 * BATCH
    assert run.seen().identities().num_rows == 4 * BATCH
    if refreshed and how != "removed":
        first = run.forget([trained.wanted[2 * BATCH][0]]).first
        assert first is not None
        assert first.batch == 2


@pytest.mark.parametrize("how", ["grown", "others", "removed"])
def test_identities_that_nobody_has_are_null_with_the_reason_and_come_back_with_the_data(
    how: str, tmp_path: Path
) -> None:
    trained = Trained(tmp_path, ALONE)
    before = tmp_path / "before.parquet"
    shutil.copy2(trained.file, before)
    trained.change(how)
    trained.forget_derived()
    for _ in range(2):  # whoever reads it is told, not only who makes it
        with pytest.warns(
            sp.errors.SpiralWarning, match=r"runs\.r: the identities of some rows are null.*catalog\.drop\('runs\.r'\)"
        ):
            assert trained.table() == [(None, loss) for _, loss in trained.wanted]
    with pytest.warns(sp.errors.SpiralWarning, match="null"):
        assert len(sp.connect(trained.root).run("r").outliers().table) == 0
    shutil.copy2(before, trained.file)
    catalog = sp.connect(trained.root)
    catalog.refresh("numbers")
    catalog.drop("runs.r")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert trained.table() == trained.wanted


def test_a_table_that_was_made_before_keeps_its_identities(tmp_path: Path) -> None:
    trained = Trained(tmp_path, ALONE)
    assert trained.table() == trained.wanted
    trained.change("others")
    trained.forget_derived()
    assert trained.table() == trained.wanted
