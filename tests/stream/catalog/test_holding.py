"""Processes that begin are not disturbed by processes that end: nobody removes a folder in which another one works."""

import subprocess
import sys
from pathlib import Path

import pytest

from spiral_stream.catalog.holding import holding, unheld
from tests.fixtures import warm
from tests.fixtures.builders import ROOT
from tests.fixtures.streams import make_catalog

PROCESSES, ROUNDS = 3, 10  # of each process

# Every process makes and drops the same things, under names of its own: rows, imports and tokenizers of equal content
# lie in one place of a catalog, and writers and conversions share one folder of drafts.
WORKS = """
import random, sys, traceback, warnings
from datetime import timedelta
from pathlib import Path
import pyarrow as pa
import spiral_stream as sp
from spiral_stream.catalog.convert import convert
from tests.fixtures.streams import maker
from tokenizers import Tokenizer, models

place, who = Path(sys.argv[1]), int(sys.argv[2])
catalog, draw = sp.connect(place / "catalog"), random.Random(who)
lines = sp.sources.Jsonl(str(place / "lines.jsonl"))
rows = pa.table({"sample_id": ["a", "b", "c"], "x": [1, 2, 3]})
words = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))

def written():
    writer = sp.sources.Writer(place / "written.lance", pa.schema([("n", pa.int64())]))
    if draw.random() < 0.5:
        return writer.abort()
    writer.write({"n": who})
    writer.close()

def converted():
    convert(lines, str(place / "converted.lance"))

def read(name, count):
    sampled = catalog.table(name).filter(sp.col("x") > 0).sample(order=sp.GlobalShuffle(seed=who), epoch=draw.randrange(99))
    with sampled.collate(batch_size=1, fields={"x": sp.Stack("x")}).to_numpy() as stream:
        assert sum(len(batch["x"]) for batch in stream) == count

def imported():
    catalog.register(f"lines{who}", lines, identity="sample_id")
    read(f"lines{who}", 29)
    catalog.drop(f"lines{who}")

def copied():
    catalog.register(f"rows{who}", sp.Arrow(rows), identity="sample_id")
    read(f"rows{who}", 3)
    catalog.drop(f"rows{who}")

def tokenized():
    catalog.register_tokenizer(f"words{who}", words)
    assert catalog.tokenizer(f"words{who}").vocab_size == 2
    catalog.drop_tokenizer(f"words{who}")

pictures = sp.connect(place / "pictures" / "catalog")

def built():
    with maker(pictures, profile=sp.Raw(20))() as stream:
        stream.materialize()
        next(iter(stream))

def swept():
    for each in (catalog, pictures):
        each.caches(remove_dead=True, older_than=timedelta(0))

print("ready", flush=True)
sys.stdin.readline()
warnings.simplefilter("ignore")
for _ in range(int(sys.argv[3])):
    draw.choice([written, converted, imported, copied, tokenized, built, swept])()
"""


@pytest.mark.timeout(300)
def test_processes_that_end_do_not_disturb_processes_that_begin(tmp_path: Path) -> None:
    lines = [f'{{"sample_id": "s{k}", "x": {k}}}\n' for k in range(30)]
    (tmp_path / "lines.jsonl").write_text("".join(lines))
    (tmp_path / "pictures").mkdir()
    make_catalog(tmp_path / "pictures")
    pipe = subprocess.PIPE
    children = [
        warm.Popen(
            [sys.executable, "-c", WORKS, str(tmp_path), str(who), str(ROUNDS)],
            cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True,
        )
        for who in range(PROCESSES)
    ]  # fmt: skip
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n", child.communicate()
        said = []
        for child in children:
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()
        said = [child.communicate(timeout=240)[1] for child in children]
    finally:
        for child in children:
            child.kill()

    assert [child.returncode for child in children] == [0] * PROCESSES, "\n".join(said)
    assert list((tmp_path / "catalog" / "imports").glob("*")) == []
    assert list((tmp_path / "catalog").glob("rows-*")) == []
    assert list((tmp_path / "catalog" / "tokenizers" / "contents").glob("*")) == []
    assert list((tmp_path / "converted.lance" / "_drafts").glob("*")) == []
    assert list((tmp_path / "written.lance" / "_drafts").glob("*")) == []


def test_what_is_held_is_not_free_until_the_registration_ends(tmp_path: Path) -> None:
    with holding(tmp_path) as hold:
        hold("rows")
        with unheld(tmp_path, "rows") as is_free, unheld(tmp_path, "others") as others:
            assert (is_free, others) == (False, True)
    with unheld(tmp_path, "rows") as is_free:
        assert is_free
