"""What StreamTrainer hands to transformers' loop, and what it refuses. Training with it: tests/e2e/test_trainer.py."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import spiral_stream as sp
from tests.stream.adapters import documents

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from accelerate import skip_first_batches  # noqa: E402  after the skip
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments  # noqa: E402  after the skip

from spiral_stream.adapters import StreamTrainer  # noqa: E402
from spiral_stream.adapters.trainer import POSITION_FILE, TrainerFeed  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_threads_left")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return documents.make_catalog(tmp_path_factory.mktemp("texts"))


def stream_of(texts: sp.Catalog, formed: Any = documents.BUCKETS, **options: Any) -> Any:
    return documents.plan(texts, formed, **options).to_torch(prefetch=2)


def trainer(folder: Path, stream: Any, *, collator: Any = None, loss: Any = None, **options: Any) -> StreamTrainer:
    args = TrainingArguments(str(folder), use_cpu=True, report_to=[], disable_tqdm=True, **options)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=documents.VOCABULARY, n_positions=64, n_embd=8, n_layer=1, n_head=1))
    return StreamTrainer(model, args, train_dataset=stream, data_collator=collator, compute_loss_func=loss)


def ids(feed: TrainerFeed, batches: Any) -> list[Any]:
    return [feed.handed.popleft()[1]["sample_id"] for _ in batches]


# ---- what is handed over


def test_a_feed_of_an_epoch_gives_its_tensors_and_keeps_its_lists(texts: sp.Catalog) -> None:
    with stream_of(texts, documents.COUNTED) as stream, stream_of(texts, documents.COUNTED) as bare:
        feed = TrainerFeed(stream, len(stream))
        for epoch in range(2):
            for tensors, wanted in zip(feed, bare, strict=True):
                assert set(tensors) == {"input_ids", "attention_mask", "labels"}
                assert all(torch.equal(tensors[name], wanted[name]) for name in tensors)
                assert feed.handed.popleft() == (tensors, {"sample_id": wanted["sample_id"]}, None)
            assert stream.epoch == epoch + 1
        assert len(feed) == 15


def test_a_feed_without_length_goes_on_into_the_next_epochs(texts: sp.Catalog) -> None:
    with stream_of(texts) as stream, stream_of(texts) as bare:
        feed = TrainerFeed(stream)
        wanted = [batch["sample_id"] for _ in range(3) for batch in bare]
        assert ids(feed, islice(feed, 40)) == wanted[:40]
        with pytest.raises(TypeError, match="max_steps"):
            len(feed)
        feed.close()


def test_skipping_draws_stand_ins_and_no_batch(texts: sp.Catalog) -> None:
    with stream_of(texts) as stream, stream_of(texts) as bare:
        wanted = [batch["sample_id"] for batch in bare]
        feed = TrainerFeed(stream, None, 100_000)
        assert ids(feed, islice(skip_first_batches(feed, 100_000), 4)) == wanted[:4]
        feed.close()
        assert ids(feed, islice(feed, 4)) == wanted[4:8]  # a later pass skips nothing
        feed.close()


def test_a_state_behind_the_last_batch_starts_the_next_epoch(texts: sp.Catalog) -> None:
    with stream_of(texts, documents.COUNTED) as stream, stream_of(texts, documents.COUNTED) as bare:
        batches = iter(stream)
        for _ in range(15):
            next(batches)
        assert stream.place == (1, 0)
        batches.close()
        assert stream.place == (1, 0)
        feed = TrainerFeed(stream, 15)
        list(bare)
        assert ids(feed, feed) == [batch["sample_id"] for batch in bare]


def test_an_epoch_without_a_batch_is_an_error_and_no_endless_loop(texts: sp.Catalog) -> None:
    with (
        stream_of(texts, {"batch_size": 500}) as stream,
        pytest.warns(sp.SpiralWarning, match="DropPartial drops its only batch|gets nothing in epoch 0"),
        pytest.raises(sp.errors.StreamError, match=r"stream\.explain\(\)"),
    ):
        next(iter(TrainerFeed(stream)))


def test_a_feed_in_workers_knows_its_place(texts: sp.Catalog) -> None:
    with stream_of(texts) as stream:
        feed = TrainerFeed(stream, None, 0, 0)
        assert feed.state_dict()["batch"] == 0
        next(iter(feed))
        assert feed.state_dict()["batch"] == 1
        feed.close()


# ---- what is refused


def test_epochs_of_formed_batches_cannot_be_counted_by_trainer(texts: sp.Catalog, tmp_path: Path) -> None:
    with stream_of(texts) as stream, pytest.raises(sp.errors.BindError, match=r"max_steps=.*stream\.count\(epoch\)"):
        trainer(tmp_path, stream)


def test_a_second_collation_is_refused(texts: sp.Catalog, tmp_path: Path) -> None:
    with stream_of(texts) as stream, pytest.raises(sp.errors.BindError, match=r"data_collator.*collate\(fields="):
        trainer(tmp_path, stream, collator=list, max_steps=4)


@pytest.mark.parametrize("option", ["auto_find_batch_size", "ignore_data_skip"])
def test_what_loses_batches_is_refused(texts: sp.Catalog, tmp_path: Path, option: str) -> None:
    with stream_of(texts) as stream, pytest.raises(sp.errors.BindError, match="Leave both off"):
        trainer(tmp_path, stream, max_steps=4, **{option: True})


def test_only_streams_are_taken(texts: sp.Catalog, tmp_path: Path) -> None:
    with (
        documents.plan(texts, documents.BUCKETS).to_numpy() as arrays,
        pytest.raises(sp.errors.BindError, match=r"to_torch\(\)"),
    ):
        trainer(tmp_path, arrays, max_steps=4)


def test_labels_shifted_twice_are_refused(texts: sp.Catalog, tmp_path: Path) -> None:
    with stream_of(texts, labels=sp.ShiftedLabels("tokens")) as stream:
        with pytest.raises(
            sp.errors.BindError, match=r"'labels' is ShiftedLabels.*GPT2LMHeadModel.*Use Labels\(\.\.\.\)"
        ):
            trainer(tmp_path, stream, max_steps=4)
        trainer(tmp_path, stream, max_steps=4, loss=lambda *_, **__: None)


@pytest.mark.parametrize(("rank", "ranks"), [(0, 2), (1, 2)])
def test_a_share_that_is_not_trainers_is_refused(texts: sp.Catalog, tmp_path: Path, rank: int, ranks: int) -> None:
    with stream_of(texts) as stream:
        made = trainer(tmp_path, stream.bind(rank=rank, world_size=ranks), max_steps=4)
        with pytest.raises(sp.errors.BindError, match=rf"rank {rank} of {ranks}.*Bind no rank"):
            made.train()


def test_epochs_are_counted_from_their_beginning(texts: sp.Catalog, tmp_path: Path) -> None:
    with stream_of(texts, documents.COUNTED) as stream:
        next(iter(stream))
        with pytest.raises(
            sp.errors.BindError, match=r"epoch 0 at batch 1 .*set_epoch\(\.\.\.\) first, or give max_steps"
        ):
            trainer(tmp_path, stream, num_train_epochs=1).train()


def test_the_stream_knows_which_epoch_is_trainers_last(texts: sp.Catalog, tmp_path: Path) -> None:
    with stream_of(texts, documents.COUNTED) as stream:
        stream.set_epoch(3)
        trainer(tmp_path, stream, num_train_epochs=1.5).get_train_dataloader()
        assert stream._run.bound().epochs == 5


def test_a_checkpoint_without_a_place_is_refused(texts: sp.Catalog, tmp_path: Path) -> None:
    with stream_of(texts) as stream:
        with pytest.raises(sp.errors.ResumeError, match=rf"{POSITION_FILE}.*Resume from a checkpoint that it wrote"):
            trainer(tmp_path, stream, max_steps=4).train(str(tmp_path))
        (tmp_path / "trainer_state.json").write_text(json.dumps({"global_step": 1}))
        (tmp_path / POSITION_FILE).write_text("{")
        with pytest.raises(sp.errors.ResumeError, match="that can be read"):
            trainer(tmp_path, stream, max_steps=4).train(str(tmp_path))


def test_a_loop_that_changes_batches_is_refused(texts: sp.Catalog, tmp_path: Path) -> None:
    class Copying(StreamTrainer):
        def get_batch_samples(self, *args: Any) -> Any:
            batches, count = super().get_batch_samples(*args)
            return [dict(batch) for batch in batches], count

    with stream_of(texts) as stream:
        made = trainer(tmp_path, stream, max_steps=4)
        made.__class__ = Copying
        with pytest.raises(sp.errors.StreamError, match="Leave get_train_dataloader and get_batch_samples as they are"):
            made.train()
