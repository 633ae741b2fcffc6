"""Torch streams: tensors, and the same batches under every DataLoader."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spiral_stream as sp
from tests.fixtures.streams import maker, plan

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, IterableDataset  # noqa: E402  after the skip

from spiral_stream.adapters import StreamLoader  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("no_threads_left"),
    # Both warn before every fork; what they warn of is why forked workers read in another interpreter.
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),
    pytest.mark.filterwarnings("ignore:lancedb fork support is experimental"),
]

Make = Callable[[], Any]


def torch_maker(catalog: sp.Catalog, name: str = "lance", **options: Any) -> Make:
    return lambda: plan(catalog.table(name), batch_size=30, **options).to_torch(prefetch=2)


def alike(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(
        list(a) == list(b)
        and all(torch.equal(a[k], b[k]) if isinstance(a[k], torch.Tensor) else a[k] == b[k] for k in a)
        for a, b in zip(some, others, strict=True)
    )


def loader(stream: Any, workers: int, how: str = "forkserver", **options: Any) -> Any:
    if workers:
        options |= {"multiprocessing_context": how, "timeout": 300}
    return DataLoader(stream, batch_size=None, num_workers=workers, **options)


def test_tensors_are_the_numpy_stream_without_a_copy(catalog: sp.Catalog) -> None:
    with torch_maker(catalog)() as stream, maker(catalog, batch_size=30)() as arrays:
        assert isinstance(stream, IterableDataset)
        assert len(stream) == len(arrays) == 8
        for tensors, wanted in zip(stream, arrays, strict=True):
            assert tensors["image"].dtype == torch.uint8
            assert tensors["label"].dtype == torch.int64
            assert tensors["id"] == wanted["id"]
            assert np.array_equal(tensors["image"].numpy(), wanted["image"])
            assert tensors["image"].is_contiguous()
        kept = stream.batch(3)
        assert torch.equal(kept["image"], torch.from_numpy(arrays.batch(3, epoch=0)["image"])) == (stream.epoch == 0)


@pytest.mark.parametrize(
    ("workers", "how"),
    [
        (0, "none"),
        (2, "fork"),
        pytest.param(1, "spawn", marks=pytest.mark.slow),  # by day: test_own
        pytest.param(1, "fork", marks=pytest.mark.slow),
        pytest.param(4, "fork", marks=pytest.mark.slow),
        pytest.param(2, "spawn", marks=pytest.mark.slow),
        pytest.param(4, "spawn", marks=pytest.mark.slow),
    ],
)
def test_a_loader_gives_the_batches_of_the_bare_loop(catalog: sp.Catalog, workers: int, how: str) -> None:
    make = torch_maker(catalog)
    with make() as stream, make() as shared, make() as resumed:
        expected = list(stream)
        len(shared)  # the main process has used the sources before its workers start
        assert alike(list(loader(shared, workers, how)), expected)
        if workers == 0:
            assert shared.state_dict()["epoch"] == 1
            return
        with pytest.raises(sp.errors.StreamError, match=r"iterated in DataLoader workers.*state_dict\(delivered=<"):
            shared.state_dict()
        state = json.loads(json.dumps(shared.state_dict(delivered=5)))
        resumed.load_state_dict(state)
        assert (state["epoch"], state["batch"]) == (0, 5)
        assert alike(list(resumed), expected[5:])

        next(iter(shared))  # after a bare loop in the main process the place is known again
        assert shared.state_dict()["batch"] == 1


def test_workers_of_a_resumed_rank_go_on_from_its_place(catalog: sp.Catalog) -> None:
    make = torch_maker(catalog)
    with make() as whole, make().bind(rank=1, world_size=2) as stream:
        expected = list(whole)
        stream.load_state_dict(whole.state_dict(delivered=2))
        batches = loader(stream, 1, "fork", persistent_workers=True)
        for _ in range(2):  # the second pass is read by the same interpreter
            stream.set_epoch(0)  # on purpose
            assert alike(list(batches), expected[3::2])
        assert stream.state_dict(delivered=2)["batch"] == 6


def test_persistent_workers_follow_the_main_process(catalog: sp.Catalog) -> None:
    make = torch_maker(catalog)
    with make() as bare, make() as stream:
        first, second = list(bare), list(bare)
        batches = loader(stream, 2, persistent_workers=True)
        for step, _ in enumerate(batches):
            if step == 2:
                break
        again = list(batches)  # each pass begins where the main process stands, however far the workers had read
        stream.load_state_dict(stream.state_dict(delivered=3))
        rest = list(batches)
        stream.set_epoch(1)
        other = list(batches)
        state = stream.state_dict(delivered=len(other))

        assert alike(again, first)
        assert alike(rest, first[3:])
        assert alike(other, second)
        assert (state["epoch"], state["batch"]) == (2, 0)
        with pytest.raises(sp.errors.ResumeError, match=r"batch 9 lies beyond the end of epoch 1, which has 8 batches"):
            stream.state_dict(delivered=9)
        del batches


@pytest.mark.filterwarnings("always::spiral_stream.SpiralWarning")
@pytest.mark.parametrize("persistent", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_pass_of_workers_that_nobody_asked_for_twice_says_so(
    catalog: sp.Catalog, persistent: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    said = "the workers of a DataLoader read epoch {} from batch 0 once more"
    with torch_maker(catalog)() as stream:
        batches = loader(stream, 1, "spawn", persistent_workers=persistent)  # whose errors are not pytest's
        for epoch in (0, 1):
            stream.set_epoch(epoch)
            list(batches)
        assert "once more" not in capfd.readouterr().err
        list(batches)
        told = capfd.readouterr().err
        stream.set_epoch(1)  # asked for
        list(batches)
        after = capfd.readouterr().err

    assert said.format(1) in told
    assert "Call stream.set_epoch(epoch) before each pass" in told
    assert "once more" not in after


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # StatefulDataLoader calls it; PyTorch warns
@pytest.mark.parametrize(
    ("kind", "how", "persistent"),
    [
        ("DataLoader", "fork", False),
        pytest.param("DataLoader", "fork", True, marks=pytest.mark.slow),
        pytest.param("StatefulDataLoader", "fork", False, marks=pytest.mark.slow),
        ("StatefulDataLoader", "fork", True),
        pytest.param("StreamLoader", "fork", False, marks=pytest.mark.slow),
        ("StreamLoader", "fork", True),
        pytest.param("StatefulDataLoader", "spawn", True, marks=pytest.mark.slow),
        pytest.param("DataLoader", "spawn", True, marks=pytest.mark.slow),
        pytest.param("DataLoader", "spawn", False, marks=pytest.mark.slow),
        pytest.param("StreamLoader", "spawn", False, marks=pytest.mark.slow),
    ],
)
def test_of_three_passes_without_set_epoch_each_moves_on_or_says_that_it_does_not(
    catalog: sp.Catalog, capfd: pytest.CaptureFixture[str], kind: str, how: str, persistent: bool
) -> None:
    options = {"multiprocessing_context": how, "timeout": 300, "persistent_workers": persistent}
    with torch_maker(catalog)() as bare, torch_maker(catalog)() as stream:
        epochs = [list(bare) for _ in range(3)]
        if kind == "StreamLoader":
            batches: Any = StreamLoader(stream, 2, **options)
        elif kind == "DataLoader":
            batches = DataLoader(stream, batch_size=None, num_workers=2, **options)
        else:
            stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
            batches = stateful(stream, batch_size=None, num_workers=2, **options)
        for number, epoch in enumerate(epochs):
            if kind == "StreamLoader" or number == 0:
                assert alike(list(batches), epoch)
                assert "once more" not in capfd.readouterr().err
            elif how == "fork":  # workers have the filters of this suite, where a warning is an error
                with pytest.raises(sp.SpiralWarning, match="epoch 0 from batch 0 once more"):
                    list(batches)
                break
            else:
                assert alike(list(batches), epochs[0])
                assert "epoch 0 from batch 0 once more" in capfd.readouterr().err
        if kind == "StreamLoader":
            batches.close()
        del batches


@pytest.mark.parametrize(("before", "after"), [(0, 1), (1, 0)])
def test_a_loader_loads_its_own_state_with_any_number_of_workers(catalog: sp.Catalog, before: int, after: int) -> None:
    def of(stream: Any, workers: int) -> StreamLoader:
        options = {"multiprocessing_context": "fork", "timeout": 300} if workers else {}
        return StreamLoader(stream, workers, **options)

    make = torch_maker(catalog)
    with make() as whole, make() as one, make() as other:
        expected = list(whole)
        first, second = of(one, before), of(other, after)
        start = first.state_dict()
        reading = iter(first)
        assert first.state_dict() == start  # a handler of Ctrl-C may ask before the loop has its first batch
        found = [next(reading) for _ in range(3)]
        state = json.loads(json.dumps(first.state_dict()))
        first.close()
        assert first.state_dict() == one.state_dict() == state
        second.load_state_dict(state)
        rest = list(second)
        second.load_state_dict(start)
        assert alike([next(iter(second))], expected[:1])
        second.close()

    assert alike([*found, *rest], expected)


@pytest.mark.parametrize(
    ("workers", "options", "message"),
    [
        (0, {"nonsense": 3}, "nonsense= is no option .* Leave it out; there are pin_memory, "),
        (2, {"in_order": False}, "in_order= is no option .* Leave it out"),
        (2, {"collate_fn": list}, "collate_fn= is no option .* Leave it out"),
        (2, {"batch_size": 8}, "batch_size= is no option .* Leave it out"),
        (0, {"prefetch_factor": 4}, "prefetch_factor=4 is for workers, .* or give num_workers=1"),
        (0, {"persistent_workers": True}, "persistent_workers=True is for workers, .* or give num_workers=1"),
        (-1, {}, "num_workers=-1. Give how many processes read, from 0 up"),
        (None, {}, "num_workers=None. Give how many processes read, from 0 up"),
        (True, {}, "num_workers=True. Give how many processes read, from 0 up"),
        (1.0, {}, "num_workers=1.0. Give how many processes read, from 0 up"),
    ],
)
def test_what_a_loader_would_not_follow_is_refused(
    catalog: sp.Catalog, workers: Any, options: dict[str, Any], message: str
) -> None:
    with torch_maker(catalog)() as stream, pytest.raises(sp.errors.BindError, match=message):
        StreamLoader(stream, workers, **options)


def test_a_loader_takes_a_stream_and_numbers_of_numpy(catalog: sp.Catalog) -> None:
    with pytest.raises(sp.errors.BindError, match=r"is a list. Give the stream itself: plan.to_torch\(\)"):
        StreamLoader([1, 2])  # type: ignore[arg-type]  # what somebody gives
    with torch_maker(catalog)() as stream:
        StreamLoader(stream, np.int64(1), prefetch_factor=None, timeout=0)  # type: ignore[arg-type]  # as above
        StreamLoader(stream, prefetch_factor=None, persistent_workers=False, worker_init_fn=None)


@pytest.mark.parametrize("workers", [0, 1])
def test_between_passes_a_loader_says_where_its_stream_stands(catalog: sp.Catalog, workers: int) -> None:
    options = {"multiprocessing_context": "fork", "timeout": 300} if workers else {}
    with torch_maker(catalog)() as stream:
        followed = StreamLoader(stream, workers, **options)
        reading = iter(followed)
        next(reading)
        state = followed.state_dict()
        assert len(list(reading)) == len(stream) - 1
        followed.load_state_dict(state)
        assert followed.state_dict() == state
        stream.set_epoch(5)
        assert followed.state_dict() == stream.state_dict()
        followed.seek(epoch=7, batch=2)
        assert (followed.state_dict()["epoch"], followed.state_dict()["batch"]) == (7, 2)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_moves_while_its_loader_is_not_in_a_loop(catalog: sp.Catalog, workers: int) -> None:
    options = {"multiprocessing_context": "fork", "timeout": 300} if workers else {}
    with torch_maker(catalog)() as stream:
        followed = StreamLoader(stream, workers, **options)
        for _ in followed:
            for move in (lambda: stream.set_epoch(3), lambda: stream.seek(batch=4), lambda: stream.skip(batches=[5])):
                with pytest.raises(sp.errors.StreamError, match="Leave the loop first"):
                    move()
            with pytest.raises(sp.errors.BindError, match="Leave the loop"):
                stream.bind(rank=1, world_size=2)
            with pytest.raises(sp.errors.StreamError, match="Leave it, or call close"):
                next(iter(stream))
            break
        assert stream.place == (0, 1)
        stream.set_epoch(3)
        had = 0
        for _ in followed:
            had += 1
            if had == len(stream):
                stream.set_epoch(9)  # the loop has had its last batch
        assert (had, stream.place, followed.state_dict()["epoch"]) == (len(stream), (9, 0), 9)


@pytest.mark.filterwarnings("always::spiral_stream.SpiralWarning")
def test_passes_that_are_meant_to_repeat_say_nothing(catalog: sp.Catalog, capfd: pytest.CaptureFixture[str]) -> None:
    with torch_maker(catalog)() as stream, stream.eval() as validation:
        batches = loader(validation, 1, "fork")  # where a warning is an error
        first, second = list(batches), list(batches)
        followed = StreamLoader(stream, 1, multiprocessing_context="fork")
        for _ in range(2):
            next(iter(followed))
            followed.close()

    assert alike(first, second)
    assert "once more" not in capfd.readouterr().err


@pytest.mark.parametrize("how", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_an_error_in_a_worker_keeps_its_class_and_text(own: sp.Catalog, how: str) -> None:
    import pyarrow as pa

    table = own.table("lance").to_arrow().slice(0, 60)
    images = table["image_ref"].to_pylist()
    images[7] = b"no image at all"
    table = table.set_column(2, table.schema.field("image_ref"), pa.chunked_array([images], pa.large_binary()))
    own.register("bad", sp.Arrow(table), semantic={"image_ref": "image/jpeg-ref"})
    stream = torch_maker(own, "bad", order=sp.Sequential())()
    with pytest.raises(sp.errors.DataError, match=rf"sample_id='{table['sample_id'][7]}'.*not JPEG's ff d8 ff"):
        list(loader(stream, 1, how))
    stream.close()


def running(mark: str) -> list[str]:
    """Command lines of processes, other than this one, that inherited an environment variable."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it ended meanwhile
            continue
    return found


def test_a_loop_left_early_leaves_no_process(
    catalog: sp.Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPIRAL_TEST_MARK", str(tmp_path))
    with torch_maker(catalog)() as stream:
        for _ in loader(stream, 1, "fork"):
            assert any("runtime.run.forked_worker" in command for command in running(str(tmp_path)))
            break
        until = time.monotonic() + 100
        while left := running(str(tmp_path)):
            assert time.monotonic() < until, left
            time.sleep(0.05)


def test_a_stream_that_cannot_travel_says_what_to_do(catalog: sp.Catalog) -> None:
    with torch_maker(catalog)() as stream:
        stream._run.bindings = Unpicklable(stream._run.bindings)
        with pytest.raises(sp.errors.StreamError, match=r'cannot.*multiprocessing_context="spawn"'):
            list(loader(stream, 1, "fork"))


def test_a_function_that_no_other_process_finds_says_what_to_do(catalog: sp.Catalog) -> None:
    import pyarrow as pa

    same = {"name": "same", "columns": ["label_id"], "returns": pa.int64()}
    relation = catalog.table("labels").sample(order=sp.Sequential()).map(lambda value: value, **same)
    with relation.collate(batch_size=2, fields={"same": sp.Stack("same")}).to_torch() as stream:
        with pytest.raises(sp.errors.StreamError, match=r"that no other process can find.*or read without workers"):
            list(loader(stream, 1, "fork"))
        assert len(list(stream)) == 2


def here_only() -> None:
    msg = "only in the process that made it"
    raise ImportError(msg)


class Unpicklable:
    """Bindings that another interpreter cannot import."""

    def __init__(self, bindings: Any) -> None:
        self._inside = bindings

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_inside"], name)

    def updated(self, **_: Any) -> "Unpicklable":
        return self

    def __reduce__(self) -> Any:
        return here_only, ()
