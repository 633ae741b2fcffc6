"""Streams in ``transformers.Trainer``: its training loop, fed by a stream, with one saved position for both.

Trainer wraps a data set into a DataLoader that collates again, and accelerate then distributes its batches over the ranks
again. Here Trainer gets a loader that it uses as it is: the stream's own batches of this rank.

A checkpoint holds the stream's state (``spiral_stream.json``), so resuming goes to the place at once. Trainer skips the
batches of the earlier run by drawing them; it draws empty stand-ins, for which no sample is read (7 us each). Each step
checks that Trainer trains on what the stream gave. Only public methods of Trainer are overridden (read in transformers 5.23
and accelerate 1.15).
"""

import json
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import fields
from itertools import repeat
from math import ceil
from pathlib import Path
from typing import Any, Final

from spiral_stream.adapters.cuda import Tensors
from spiral_stream.adapters.torch import StreamLoader, TorchStream
from spiral_stream.batching.tail import KeepPartial
from spiral_stream.errors import BindError, ResumeError, RunError, StreamError, shown
from spiral_stream.extras import need as need_package
from spiral_stream.fields.labels import ShiftedLabels
from spiral_stream.plan.nodes import Collate
from spiral_stream.plan.tree import need
from spiral_stream.prepared import stages_of
from spiral_stream.runs.run import RecordedRun
from spiral_stream.runtime.batch.keys import BatchKey, KeyedBatch

for _package in ("accelerate", "transformers"):  # the first comes with an extra that brings both
    need_package(_package, "spiral_stream.adapters.trainer")
from transformers import Trainer, TrainerCallback, TrainingArguments  # noqa: E402
from transformers.loss.loss_utils import ForCausalLMLoss  # noqa: E402
from transformers.trainer import TRAINER_STATE_NAME  # noqa: E402
from transformers.trainer_utils import get_last_checkpoint  # noqa: E402

POSITION_FILE: Final = "spiral_stream.json"
_OF_THE_PLAN: Final = {  # settings of TRL for data that it would prepare itself, and what does it here
    "packing": "collate(formation=spiral.batching.Packed(...)) packs",
    "eval_packing": "collate(formation=spiral.batching.Packed(...)) of the other stream packs",
    "padding_free": "collate(formation=spiral.batching.Packed(...)) packs",
    "assistant_only_loss": "Labels(..., mask=...) takes the mask that ChatTemplate makes",
    "completion_only_loss": "Labels(..., mask=...) takes the mask that ChatTemplate(..., prompt=...) makes",
    "pad_to_multiple_of": "Pad(..., pad_to_multiple_of=...) pads",
    "max_length": "ChatTemplate(..., max_length=...) cuts",
    "dataset_kwargs": "The plan makes the batches",
    "formatting_func": "map(...) calls functions",
    "precompute_ref_log_probs": "The reference model runs beside the model",
}


class TrainerFeed(StreamLoader):
    """What Trainer iterates: dicts of tensors, one epoch per pass, or epoch after epoch.

    Args:
        stream: the stream to read.
        steps: batches per epoch, so that a pass is an epoch; None continues with the next epoch without end.
        skipped: how many batches Trainer skips in the first pass, because an earlier run had them.
        num_workers: how many processes read; 0 reads in this one.
        **options: further arguments of `StreamLoader`.
    """

    # accelerate's `skip_first_batches` reads these from a loader; it draws from `dataset` with a loader without workers.
    batch_size = None
    drop_last = False
    prefetch_factor = None

    def __init__(
        self,
        stream: TorchStream,
        steps: int | None = None,
        skipped: int = 0,
        num_workers: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(stream, num_workers, **options)
        self.steps = steps
        self.handed: deque[tuple[Tensors, dict[str, list[Any]], BatchKey | None]] = deque()  # not trained on yet
        self._skipped = skipped

    @property
    def dataset(self) -> "TrainerFeed":
        """The loader itself, so that whoever draws from the data set gets the loader's batches."""
        return self

    @staticmethod
    def collate_fn(batch: Any) -> Any:
        """Return the batch as it is."""
        return batch

    def __len__(self) -> int:
        if self.steps is None:
            msg = "len: the loader goes on from epoch to epoch and has no length; TrainingArguments(max_steps=...) ends the run"
            raise TypeError(msg)
        return self.steps

    def __iter__(self) -> Iterator[Tensors]:
        skipped, self._skipped = self._skipped, 0
        yield from repeat({}, skipped)
        self.handed.clear()
        while True:
            epoch, before = self.stream.place
            had = 0
            for batch in super().__iter__():
                had += 1
                tensors = {name: value for name, value in batch.items() if not isinstance(value, list)}
                key = batch.key if isinstance(batch, KeyedBatch) else None
                self.handed.append((tensors, {name: batch[name] for name in batch if name not in tensors}, key))
                yield tensors
            if not had and not before:
                msg = f"epoch {epoch} has no batch for this rank; EXPLAIN says why: print(stream.explain())"
                raise StreamError(msg)
            if had and self.steps is not None:  # under KeepPartial the rest of an epoch may be another rank's
                return


class _Sealing(TrainerCallback):  # type: ignore[misc]  # transformers is not read by mypy
    """Makes what each rank recorded durable at the end; `StreamTrainer.save_model` does it for checkpoints."""

    def __init__(self, run: RecordedRun) -> None:
        self._run = run

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Write what was logged; another call of train() goes on recording."""
        self._run.flush()


class StreamTrainer(Trainer):  # type: ignore[misc]  # transformers is not read by mypy
    """`transformers.Trainer` on a stream: it trains on the stream's own batches, and its checkpoints hold the place.

    The tensors of a batch become the model's arguments; lists stay in ``batch_lists``. With ``max_steps``, epoch follows
    epoch and Trainer sees one long pass. Without it, Trainer counts epochs, which needs the same number of batches in each
    epoch: a fixed ``batch_size``.

    With a trainer of TRL it makes one class: ``class StreamSFT(StreamTrainer, SFTTrainer)``. TRL's settings for data that it
    would prepare itself are refused.

    ``train()`` starts where the stream stands. ``train(resume_from_checkpoint=...)`` starts where the checkpoint's stream
    stood; with ``max_steps``, on any number of ranks.

    Args:
        model: as in Trainer.
        args: as in Trainer; ``per_device_train_batch_size`` only appears in its logs.
        train_dataset: a stream from ``to_torch()``; ``eval_dataset`` may be one too.
        run: from ``catalog.run(name, stream)``: records the loss of each batch, or what `record` is given instead.
        **options: further arguments of Trainer.

    Raises:
        BindError: batches would be collated, shared out, shifted or counted twice, or not at all.

    Examples:
        >>> import torch
        >>> from spiral_stream.adapters import StreamTrainer
        >>> from transformers import TrainingArguments
        >>> class Model(torch.nn.Linear):
        ...     def forward(self, width):
        ...         return {"loss": super().forward(width[:, None] / 1_000).square().mean()}
        >>> args = TrainingArguments("trained", max_steps=4, save_strategy="no", report_to=[], use_cpu=True)
        >>> with plan.to_torch() as stream:
        ...     StreamTrainer(Model(1, 1), args, train_dataset=stream).train().global_step
        {'train_runtime': ...}
        4
    """

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        *,
        train_dataset: TorchStream,
        run: RecordedRun | None = None,
        **options: Any,
    ) -> None:
        args = TrainingArguments() if args is None else args
        _check_arguments(args, train_dataset, options.get("data_collator"))
        given: dict[str, Any] = {"train_dataset": train_dataset, "eval_dataset": options.pop("eval_dataset", None)}
        if _is_of_trl(type(self)):
            _check_settings(args, options)
            super().__init__(model, args=args, **_stand_ins(given), **options)
            self.train_dataset, self.eval_dataset = given.values()
        else:
            super().__init__(model, args, **given, **options)
        self.batch_lists: dict[str, list[Any]] = {}
        self._run, self._recorded, self._in_step = run, False, False
        self._key: BatchKey | None = None  # of the batch that is trained on
        if run is not None:
            self.add_callback(_Sealing(run))
        self._feed: TrainerFeed | None = None
        self._first_epoch: int | None = None  # of the run, in the stream's count
        self._updates = 0  # optimizer steps of the run before this call of train()
        shifts = getattr(self.model, "loss_function", None) is ForCausalLMLoss and self.compute_loss_func is None
        if shifts and (type(self).compute_loss is Trainer.compute_loss or _is_of_trl(type(self).compute_loss)):
            _check_labels(train_dataset, type(self.model).__name__)

    # ---- what Trainer reads

    def get_train_dataloader(self) -> Any:
        """Return the stream's batches for this rank; accelerate does not change them."""
        self._check_steps(self.train_dataset)
        self._feed = self._feed_of(self.train_dataset, *self._passes(self.train_dataset))
        return self._feed

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return a stream's batches as they are; other data sets are read as Trainer does."""
        found = self.eval_dataset if eval_dataset is None else eval_dataset
        found = self.eval_dataset[found] if isinstance(found, str) else found
        return self._judged(found) if isinstance(found, TorchStream) else super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Return a stream's batches as they are; other data sets are read as Trainer does."""
        found = isinstance(test_dataset, TorchStream)
        return self._judged(test_dataset) if found else super().get_test_dataloader(test_dataset)

    def _judged(self, stream: TorchStream) -> TrainerFeed:
        if isinstance(need(stream.plan, Collate).last, KeepPartial) and self.args.world_size > 1:
            msg = (
                "evaluate: with KeepPartial one rank may have one batch more than another, and Trainer's ranks would wait for "
                "each other forever. Evaluate on one rank, or give a stream with sample(epoch=0) and collate(last=PadPartial)"
            )
            raise BindError(msg)
        return self._feed_of(stream, 1)

    def _feed_of(self, stream: TorchStream, steps: int | None, skipped: int = 0) -> TrainerFeed:
        args = self.args
        self._check_share(stream)
        options: dict[str, Any] = {}
        if args.dataloader_num_workers:
            options = {
                "pin_memory": args.dataloader_pin_memory and args.device.type == "cuda",
                "persistent_workers": args.dataloader_persistent_workers,
                "prefetch_factor": args.dataloader_prefetch_factor,
                "multiprocessing_context": args.dataloader_multiprocessing_context,
            }
        return TrainerFeed(stream, steps, skipped, args.dataloader_num_workers, **options)

    def num_examples(self, dataloader: Any) -> int:
        """Return the samples per epoch, computed with ``per_device_train_batch_size``."""
        found = isinstance(dataloader, TrainerFeed)
        return int(len(dataloader) * self._train_batch_size if found else super().num_examples(dataloader))

    # ---- training

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **options: Any) -> Any:
        """Train from where the stream stands, or where a checkpoint stood; see `transformers.Trainer.train`.

        Args:
            resume_from_checkpoint: folder of a checkpoint, or True for the last one; None starts where the stream stands.
            *args: further arguments of Trainer.
            **options: further arguments of Trainer.

        Raises:
            ResumeError: the checkpoint has no state of a stream, or a state of another plan or data.
        """
        folder = resume_from_checkpoint or None
        if folder is True:
            folder = get_last_checkpoint(self.args.output_dir)
        if folder is None:
            self._first_epoch, self._updates = None, 0
        else:
            self._go_to(Path(folder))
        try:
            return super().train(resume_from_checkpoint, *args, **options)
        finally:
            if self._feed is not None:
                self._feed.close()

    def training_step(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        """Train on one batch; its lists are in ``batch_lists`` meanwhile."""
        assert self._feed is not None
        tensors, lists, self._key = self._feed.handed.popleft() if self._feed.handed else (None, {}, None)
        if inputs is not tensors:
            msg = (
                "train: Trainer trains on something other than the next batch of the stream, so that batches would be lost "
                "or repeated. Leave get_train_dataloader and get_batch_samples as they are, and sequence parallelism off"
            )
            raise StreamError(msg)
        self.batch_lists, self._recorded = lists, self._run is None
        self._in_step = True
        try:
            loss = super().training_step(model, inputs, *args, **options)
            if not self._recorded:  # Trainer returns the batch's part of the loss of an update
                self.record(loss=loss * self.current_gradient_accumulation_steps)
        finally:
            self._in_step = False
        return loss

    def record(self, *, applied: bool = True, mask: Any = None, **values: Any) -> None:
        """Record values of the batch that is trained on, in place of its loss; for `compute_loss` of your own.

        In an evaluation, which calls `compute_loss` too, nothing is recorded.

        Args:
            applied: as for `RecordedRun.log`.
            mask: as for `RecordedRun.log`.
            **values: one per sample, per token, or for the batch.

        Raises:
            RunError: the trainer has no ``run=``, or a value has another length than the batch.

        Examples:
            >>> from spiral_stream.adapters import StreamTrainer
            >>> class WithLosses(StreamTrainer):
            ...     def compute_loss(self, model, inputs, *args, **options):
            ...         losses = model(**inputs)["losses"]
            ...         self.record(loss=losses)
            ...         return losses.mean()
        """
        if self._run is None:
            msg = "record: the trainer has no run. Give StreamTrainer(..., run=catalog.run(name, stream))"
            raise RunError(msg)
        if not self._in_step:
            return
        self._recorded = True
        self._run.log(key=self._key, applied=applied, mask=mask, **values)

    def set_initial_training_values(self, *args: Any, **options: Any) -> Any:
        """Return Trainer's counts; a loader without length is one epoch of ``max_steps``."""
        epochs, *counts = super().set_initial_training_values(*args, **options)
        endless = self._feed is not None and self._feed.steps is None
        return (1 if endless else epochs, *counts)

    # ---- the place

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model; in a checkpoint also the stream's state, before ``trainer_state.json`` completes the checkpoint."""
        super().save_model(output_dir, _internal_call)
        if _internal_call and self.is_in_train and self._run is not None:  # on every rank, before one writes the state
            self._run.flush()
            self.accelerator.wait_for_everyone()
        if _internal_call and output_dir and self.is_in_train and self._feed is not None and self.args.should_save:
            target = Path(output_dir, POSITION_FILE)
            position = {"stream": self._feed.state_dict(), "first_epoch": self._first_epoch}
            written = target.with_suffix(f".{os.getpid()}.part")
            written.write_text(json.dumps(position))
            written.replace(target)

    def _go_to(self, folder: Path) -> None:
        try:
            position = json.loads((folder / POSITION_FILE).read_text())
            trained = json.loads((folder / TRAINER_STATE_NAME).read_text())
            state, self._first_epoch = position["stream"], position["first_epoch"]
            self._updates = int(trained["global_step"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            msg = (
                f"resume: {folder} has no {POSITION_FILE} that can be read ({error!r}); StreamTrainer writes it into each "
                "checkpoint. Resume from a checkpoint that it wrote, or load the weights into the model and call train()"
            )
            raise ResumeError(msg) from error
        self.train_dataset.load_state_dict(state)

    def _passes(self, stream: TorchStream) -> tuple[int | None, int]:
        """Return (batches per pass, or None if endless; batches of the first pass that Trainer believes it has consumed)."""
        accumulated = self.args.gradient_accumulation_steps
        if self.args.max_steps > 0:
            return None, self._updates % self.args.max_steps * accumulated
        steps = len(stream)
        epochs, update = divmod(self._updates, max(1, ceil(steps / accumulated)))
        _, ranks, merge = stream.share
        group, had = ranks * merge, update * accumulated
        epoch, batch = stream.place
        if batch and batch >= steps * group:  # a state of before the end of an epoch was the start of the next
            epoch, batch = epoch + 1, 0
        self._first_epoch = first = epoch if self._first_epoch is None else self._first_epoch
        if (epoch, batch) != (first + epochs, had * group):
            msg = (
                f"train: Trainer counts {epochs} epochs and {had} batches per rank; the stream stands in epoch {epoch - first} "
                f"at batch {batch} of {ranks} rank(s). Trainer can count epochs only from their beginning and with one "
                "world size and accumulation: set_epoch(...) first, or give max_steps, which needs neither"
            )
            raise BindError(msg)
        stream.bind(epochs=first + ceil(self.args.num_train_epochs))
        return steps, had

    def _check_steps(self, stream: TorchStream) -> None:
        """Refuse optimizer steps of the stream that are not those of Trainer: checkpoints would stand inside one."""
        _, ranks, merge = stream.share
        updates = self.args.gradient_accumulation_steps * ranks * merge
        if stream.step_batches not in (None, updates):
            msg = (
                f"train: the stream's optimizer steps have {stream.step_batches} batches, and Trainer's have {updates} "
                f"({ranks} rank(s), gradient_accumulation_steps={self.args.gradient_accumulation_steps}, merge={merge}). Bind "
                f"step_batches={updates}, or set the accumulation to match"
            )
            raise BindError(msg)

    def _check_share(self, stream: TorchStream) -> None:
        """Refuse a share that would repeat or lose batches: each data-parallel rank must read its own."""
        rank, ranks, _ = stream.share
        alike = self.get_tp_size() * self.get_cp_size() * self.get_sp_size()  # ranks that need the same batches
        world, expected = self.args.world_size // alike, self.args.process_index
        if ranks != world or (alike == 1 and rank != expected):
            msg = (
                f"train: the stream gives the batches of rank {rank} of {ranks}, Trainer's process is rank {expected} of "
                f"{self.args.world_size} with {world} data-parallel: batches would be repeated or lost. Bind no rank and no "
                "world size, then they come from torch.distributed; with tensor or context parallel ranks bind(mesh=...)"
            )
            raise BindError(msg)


def _is_of_trl(part: Any) -> bool:
    """Whether a class derives from a trainer of TRL, or a function is one of its own."""
    return any(each.__module__.partition(".")[0] == "trl" for each in getattr(part, "__mro__", (part,)))


def _stand_ins(given: dict[str, Any]) -> dict[str, Any]:
    """Return a data set of one row in place of each stream: TRL's constructors take those of `datasets`, and prepare them."""
    from datasets import Dataset

    texts = {"prompt": ["a"], "chosen": ["b"], "rejected": ["c"], "completion": ["b"]}
    row = Dataset.from_dict({"input_ids": [[0, 0]], "labels": [[0, 0]], **texts})
    return {name: row if isinstance(value, TorchStream) else value for name, value in given.items()}


def _check_settings(args: Any, options: dict[str, Any]) -> None:
    """Refuse settings of TRL for data that it would prepare, since the stream's batches are ready."""
    defaults = {field.name: field.default for field in fields(args)}
    for name, where in _OF_THE_PLAN.items():
        value = options.get(name, getattr(args, name, None))
        if value not in (None, False, defaults.get(name)):
            msg = (
                f"StreamTrainer: {name}={shown(value)} is for a data set that TRL prepares, and a stream's batches are ready. "
                f"Leave it out. {where}"
            )
            raise BindError(msg)


def _check_arguments(args: Any, stream: Any, collator: Any) -> None:
    if not isinstance(stream, TorchStream):
        msg = (
            f"StreamTrainer: train_dataset is a {type(stream).__name__}. Give the stream plan.to_torch() itself, without a "
            "DataLoader around it, or use transformers.Trainer for other data sets"
        )
        raise BindError(msg)
    if collator is not None:
        raise BindError(
            "StreamTrainer: batches are collated already, so data_collator would have no effect. Leave it out. "
            "Move what it did into collate(fields=...) or map(...)"
        )
    if args.auto_find_batch_size or args.ignore_data_skip:
        raise BindError(
            "StreamTrainer: auto_find_batch_size would lose the batches that it tries, and ignore_data_skip the place in the "
            "epoch. Leave both off: batches have the plan's size, and resuming reads no batch again"
        )
    if args.max_steps <= 0:
        _check_countable(args, stream)


def _check_countable(args: Any, stream: TorchStream) -> None:
    """Refuse streams whose epochs or ranks differ in their number of batches, because Trainer counts them once for all."""
    formed = stages_of(stream).formed
    if formed or (args.world_size > 1 and isinstance(need(stream.plan, Collate).last, KeepPartial)):
        why = "epochs of formed batches differ in their number" if formed else "with KeepPartial ranks differ"
        msg = (
            f"StreamTrainer: {why}, and Trainer needs one count for all. Give TrainingArguments(max_steps=...); "
            f"stream.count(epoch) // {args.world_size} are the steps of an epoch"
        )
        raise BindError(msg)


def _check_labels(stream: TorchStream, model: str) -> None:
    shifted = [name for name, field in need(stream.plan, Collate).fields if isinstance(field, ShiftedLabels)]
    if "labels" in shifted:
        msg = (
            f"StreamTrainer: field 'labels' is ShiftedLabels, and {model} shifts labels itself, so it would learn to predict "
            "the token after the next. Use Labels(...), or give a compute_loss_func that takes them as they are"
        )
        raise BindError(msg)
