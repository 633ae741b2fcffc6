"""Counting an epoch: alone, in parallel, by several processes at once, and after one of them was killed."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.derived.work.executors import Processes, Threads
from spiral_stream.keeping.leases import Claims
from spiral_stream.runtime.forming import counting
from spiral_stream.runtime.forming.chapter import Chapter
from spiral_stream.runtime.forming.counting import claim_of
from tests.fixtures import warm
from tests.fixtures.examples import few
from tests.fixtures.inner import batches_of, numbering_of
from tests.fixtures.streams import counted_together
from tests.fixtures.texts import fields, make_catalog, mixed, tokenized
from tests.fixtures.waits import until

OWN = few(3, 6, suppress_health_check=[HealthCheck.function_scoped_fixture])
RECORD = 32  # bytes of the formation index per chapter
FORMATIONS = {
    "bucket": sp.WindowedBucket(4, [sp.BucketKey("len(tokens)")], budget=sp.BatchBudget(max_tokens=128)),
    "packed": sp.batching.Packed(max_tokens=24, window_size=4),
    "concatenated": sp.batching.Packed(max_tokens=16, strategy="concat_and_split", window_size=4),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("counting")


@pytest.fixture(scope="module")
def catalog(folder: Path) -> sp.Catalog:
    return make_catalog(folder, {"a": 1_500, "b": 300})


def stream(
    catalog: sp.Catalog, kind: str = "packed", *, lanes: int = 1, mix: bool = False, last: Any = sp.KeepPartial
) -> Any:
    rows = mixed(catalog, {"a": 0.7, "b": 0.3}, 4_200) if mix else catalog.table("a")
    sampled = tokenized(rows, sp.GlobalShuffle(seed=3), stored=True, lanes=lanes)
    size = None if kind == "bucket" else 2
    own = fields() if kind == "bucket" else {"ids": sp.Pad("tokens"), "sample_id": sp.List("sample_id")}
    return sampled.collate(batch_size=size, formation=FORMATIONS[kind], fields=own, last=last).to_numpy()


def together(one: Any, builders: Any = lambda: Threads(2), epoch: int = 0, report: Any = None) -> int:
    return counted_together(one, builders, epoch, report)


def index_of(one: Any, epoch: int = 0) -> Path:
    return Path(batches_of(one).folder) / f"epoch-{epoch}.index"


# ---- laws


@OWN
@given(
    kind=st.sampled_from(sorted(FORMATIONS)),
    lanes=st.integers(1, 3),
    mix=st.booleans(),
    epoch=st.integers(0, 3),
    before=st.integers(0, 40),
)
def test_counted_together_is_counted_alone_is_what_iteration_delivers(
    catalog: sp.Catalog,
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    lanes: int,
    mix: bool,
    epoch: int,
    before: int,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPIRAL_CACHE", str(tmp_path_factory.mktemp("alone")))
        with stream(catalog, kind, lanes=lanes, mix=mix).bind(epoch=epoch) as one:
            delivered = [batch["sample_id"] for batch in one]
            alone = one.count(epoch)
        patch.setenv("SPIRAL_CACHE", str(tmp_path_factory.mktemp("together")))
        with stream(catalog, kind, lanes=lanes, mix=mix).bind(epoch=epoch) as other:
            other.ledger(min(before, len(delivered) - 1))  # some chapters are known before
            assert together(other, epoch=epoch) == alone == len(delivered)
            chapters = sum(batches_of(other).chapters.known_of(epoch).in_lane(lane) for lane in range(lanes))
            chapters += kind != "bucket"  # the one at the epoch's end
            assert index_of(other, epoch).stat().st_size == RECORD * chapters
            assert numbering_of(other).unknown(epoch) == 0
            assert len(other) == other.steps_per_epoch == alone


@OWN
@given(kind=st.sampled_from(sorted(FORMATIONS)), at=st.integers(0, 10**6), ranks=st.integers(1, 3))
def test_a_run_that_stops_inside_a_counted_epoch_goes_on_with_the_same_batches_on_any_number_of_ranks(
    catalog: sp.Catalog, caches: Path, kind: str, at: int, ranks: int
) -> None:
    with stream(catalog, kind) as one:
        total = together(one)
        expected = [batch["sample_id"] for batch in one]
    stop = at % total
    with stream(catalog, kind) as two:
        loop = iter(two)
        found = [next(loop)["sample_id"] for _ in range(stop)]
        loop.close()
        state = two.state_dict()
    rest: dict[int, Any] = {}
    for rank in range(ranks):
        with stream(catalog, kind).bind(data_parallel_rank=rank, data_parallel_world_size=ranks) as three:
            three.load_state_dict(state)
            rest |= {stop + rank + ranks * step: batch["sample_id"] for step, batch in enumerate(three)}
    assert found + [rest[number] for number in sorted(rest)] == expected


# ---- who counts what


def test_processes_count_as_threads_do(catalog: sp.Catalog, caches: Path) -> None:
    with stream(catalog, mix=True) as one:
        found = together(one, lambda: Processes(2))
        assert numbering_of(one).unknown(0) == 0
        counts = batches_of(one).chapters.known_of(0)
        by_processes = [counts.batches(0, chapter) for chapter in range(counts.in_lane(0))]
        index_of(one).unlink()
    with stream(catalog, mix=True) as other:
        assert together(other) == found
        counts = batches_of(other).chapters.known_of(0)
        assert [counts.batches(0, chapter) for chapter in range(counts.in_lane(0))] == by_processes


def test_two_streams_that_count_at_once_share_the_chapters(
    catalog: sp.Catalog, caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    formed: Counter[tuple[int, int]] = Counter()
    finish = Chapter.finish

    def counted(chapter: Chapter, *args: Any) -> int:
        formed[chapter.lane, chapter.number] += 1
        time.sleep(0.01)
        return finish(chapter, *args)

    with stream(catalog) as one, stream(catalog) as two:
        chapters = batches_of(one).chapters.known_of(0).uncounted
        assert batches_of(two).chapters.known_of(0).uncounted == chapters  # opened before anything is counted
        monkeypatch.setattr(Chapter, "finish", counted)
        found: list[int] = []
        threads = [
            threading.Thread(target=lambda each=each: found.append(together(each, lambda: Threads(1))))
            for each in (one, two)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert found[0] == found[1]
    assert {at: formed.pop((0, at)) for at in range(chapters)} == dict.fromkeys(range(chapters), 1)
    assert max(formed.values()) <= 2  # what they left is formed by each, unless it is in the index already
    assert set(formed) <= {(0, chapters), (1, 0)}


def test_a_chapter_that_another_process_has_is_awaited_and_counted_here_once_that_one_is_gone(
    catalog: sp.Catalog, caches: Path
) -> None:
    with stream(catalog) as one:
        folder = Path(batches_of(one).folder)
        other = Claims(folder)
        assert other.take(claim_of(0, (0, 1)))
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(together(one)))
        thread.start()
        try:
            until(lambda: batches_of(one).uncounted(0) == 1)
            assert not found
        finally:
            other.close()  # as the kernel does when a process ends
            thread.join()
        assert found == [one.count()]


def test_what_another_process_holds_for_too_long_is_counted_here_too(
    catalog: sp.Catalog, caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "WAIT_S", 0.0)
    with stream(catalog) as one:
        other = Claims(Path(batches_of(one).folder))
        assert other.take(claim_of(0, (0, 1)))
        assert together(one) == one.count()
        other.close()


def test_a_failing_chapter_keeps_what_was_counted_before_it(
    catalog: sp.Catalog, caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = Chapter.finish

    def failing(chapter: Chapter, *args: Any) -> int:
        if chapter.number == 3:
            msg = "the disk is gone"
            raise sp.errors.SourceError(msg)
        return finish(chapter, *args)

    with stream(catalog) as one:
        chapters = numbering_of(one).unknown(0)
        with monkeypatch.context() as patch:
            patch.setattr(Chapter, "finish", failing)
            with pytest.raises(sp.errors.SourceError, match="the disk is gone"):
                together(one, lambda: Threads(1))
        left = numbering_of(one).unknown(0)
        assert 1 <= left < chapters
        assert index_of(one).stat().st_size == RECORD * (chapters - left)
        assert together(one) == one.count()


def test_the_progress_ends_with_all_samples(catalog: sp.Catalog, caches: Path) -> None:
    told: list[tuple[int, int]] = []
    with stream(catalog, mix=True) as one:
        together(one, report=lambda *each: told.append(each))

    assert told[-1] == (4_200, 4_200)
    assert told == sorted(told)


def test_a_folder_that_cannot_be_written_is_refused(catalog: sp.Catalog, caches: Path) -> None:
    with stream(catalog) as one:
        (Path(batches_of(one).folder) / "claims").mkdir(parents=True)
        with pytest.raises(
            sp.errors.CacheError, match=r"formation index: cannot write .* Make the folder writable, or set"
        ):
            together(one)


# ---- processes of their own

PROGRAM = """
import sys, time
import spiral_stream as sp
from spiral_stream.runtime.forming.chapter import (Chapter)
from tests.stream.runtime.forming.test_counting import stream, together
from spiral_stream.derived.work.executors import Threads
finish = Chapter.finish
def slow(chapter, *args):
    time.sleep(float(sys.argv[2]))
    found = finish(chapter, *args)
    print(chapter.number if chapter._rests is None else "what others left", flush=True)
    return found
Chapter.finish = slow
with stream(sp.connect(sys.argv[1]), "packed", mix=True) as one:
    print("counted", together(one, lambda: Threads(1)), flush=True)
"""


def started(folder: Path, pause_s: float) -> "subprocess.Popen[str]":
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[4]), *sys.path])}
    return warm.Popen(
        [sys.executable, "-c", PROGRAM, str(folder / "catalog"), str(pause_s)],
        stdout=subprocess.PIPE,
        text=True,
        env=env,
    )


def test_two_processes_share_the_chapters(catalog: sp.Catalog, folder: Path, caches: Path) -> None:
    both = [started(folder, 0.05) for _ in range(2)]
    said = [each.communicate(timeout=300)[0].split("\n") for each in both]
    with stream(catalog, mix=True) as one:
        assert numbering_of(one).unknown(0) == 0
        chapters = batches_of(one).chapters.known_of(0).of_positions(0)
        assert all(f"counted {one.count()}" in lines for lines in said)
    formed = [int(line) for lines in said for line in lines if line.isdigit()]
    assert sorted(formed) == list(range(chapters))  # each once, by one of the two


@pytest.mark.slow
@pytest.mark.parametrize("after", [0, 1, 4])
def test_a_process_that_is_killed_while_it_counts_leaves_the_rest_to_the_other(
    catalog: sp.Catalog, folder: Path, caches: Path, after: int
) -> None:
    one, other = started(folder, 0.05), started(folder, 0.05)
    assert one.stdout is not None
    for _ in range(after):
        one.stdout.readline()
    if not after:
        time.sleep(0.3)
    one.send_signal(signal.SIGKILL)
    said = other.communicate(timeout=300)[0].split("\n")
    one.communicate()

    with stream(catalog, mix=True) as again:
        assert numbering_of(again).unknown(0) == 0
        assert f"counted {again.count()}" in said
