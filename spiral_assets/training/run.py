"""One process of a training run: where it goes on, what it tells, and what stays when it is killed.

A training script needs five lines of it, and no Dagster to run::

    with connect(catalog).open_stream("photos") as stream, TrainingRun(folder, stream, name="photos") as run:
        run.resume(model=model, optimizer=optimizer)
        while run.step < steps:
            for batch in stream:
                ...
                run.record(loss.item(), len(batch["label"]), batch, losses=losses)
                if run.step % 100 == 0 or run.step == steps:
                    run.save(model=model, optimizer=optimizer)
                if run.step == steps:
                    break
        run.done({"accuracy": 0.93})

Where an asset trains, or ``record=`` says so, the catalog records the run: which samples each step saw, and their losses.
"""

# ruff: noqa: E402
import os
from collections.abc import Mapping
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self, cast, final

from spiral_assets import need

need("torch", "torch", "spiral_assets.training")  # the import below would say it worse

import torch

import spiral_stream as spiral
from spiral_assets.training import progress
from spiral_assets.training.checkpoint import Checkpoint, Stateful
from spiral_assets.training.reporting import Reporter, ToNobody, reporter

_DEADLINE_S: Final = 600.0  # for the ranks of one step


@final
class TrainingRun:
    """One process of a training run in a folder.

    It resumes from the checkpoint in the folder, writes loss and speed there, and reports to Dagster if Dagster started it.
    Of several processes that torchrun starts, each makes one; the first of them saves and reports. While another process
    still trains in the folder, it waits.

    Args:
        folder: of the run; a retry gets the same.
        stream: that the run trains from.
        name: under which the stream is saved, so that others can replay what the model saw.
        steps: of the whole run, if that is known.
        unit: what `record` counts: ``samples``, ``tokens``.
        record: the name of the run in the catalog, which a retry goes on with as an attempt of its own. None takes what the
            asset says (``$SPIRAL_RECORD``), and outside of one records nothing; an empty name never does.

    Examples:
        >>> from spiral_assets.training.run import TrainingRun
        >>> with catalog.open_stream("shop-labels") as stream, TrainingRun("a-run", stream) as training:
        ...     step = training.resume()
        ...     for batch in stream:
        ...         step = training.record(1.5, len(batch["label"]))
        ...     training.save()
        process ... begins at epoch 0, batch 0
        step 3, epoch 1, batch 0: loss 1.500
    """

    def __init__(
        self,
        folder: Path | str,
        stream: spiral.PreparedStream,
        *,
        name: str = "",
        steps: int | None = None,
        unit: str = "samples",
        record: str | None = None,
    ) -> None:
        self.stream, self.name, self.steps, self.unit = stream, name, steps, unit
        self.recorded: spiral.results.RecordedRun | None = None
        self.rank, self.world = (int(os.environ.get(each, given)) for each, given in (("RANK", 0), ("WORLD_SIZE", 1)))
        self.checkpoint = Checkpoint(Path(folder), self.rank)
        self.step = 0
        self.resumed = False
        self._report: Reporter = ToNobody()
        self._stack = ExitStack()
        self._progress: progress.ProgressFile
        self._position: dict[str, Any] = {}
        self._losses, self._counted = 0.0, 0  # since the last save
        self._record = os.environ.get(progress.RECORD, "") if record is None else record
        self._by_hand, self._logs = record is not None, True
        self._after: tuple[int, int] | None = (
            None  # epoch, and its batches that were had, with the last one that was logged
        )

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if self.rank == 0:
                self._report = stack.enter_context(reporter())
                stack.enter_context(self.checkpoint.exclusively(self.log))
            self._together("TrainingRun", None)
            self._progress = stack.enter_context(closing(progress.ProgressFile(self.checkpoint.folder, self.rank)))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        if self.recorded is not None:
            self._stack.callback(self.recorded.close)
        self._stack.close()

    def resume(self, **parts: Stateful) -> int:
        """Go to the checkpoint, if there is one: load every part, and move the stream to its next batch.

        Args:
            **parts: by the names under which `save` gets them: ``model=``, ``optimizer=``.

        Returns:
            the steps done so far, 0 at the start; `step` has them too.

        Raises:
            ResumeError: the stream's plan or data changed since, or a part was not saved.
        """
        done = self.checkpoint.load(self.stream, parts)
        self.resumed, self.step = done is not None, done or 0
        if self._record:
            catalog = cast("spiral.Catalog", self.stream.catalog)
            self.recorded = catalog.run(
                self._record, self.stream, anew=not self.resumed, on_error="raise" if self._by_hand else "warn"
            )
            if not self.recorded.is_recording:
                self.log(f"run {self._record}: nothing is recorded, since the catalog cannot be written here")
                self.recorded = None
        state = self._position = self.stream.state_dict()
        verb = "resumes" if self.resumed else "begins"
        self.log(f"process {os.getpid()} {verb} at epoch {state['epoch']}, batch {state['batch']}")
        metadata = {
            "process": os.getpid(),
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "rank": self.rank,
            "world": self.world,
            "unit": self.unit,
            "catalog": self.stream.catalog.uri,
            "stream": self.name,
            "fingerprint": self.stream.fingerprint,
            "data_versions": self.stream.data_versions,
            "run_seed": state["run_seed"],
            "step": self.step,
            "epoch": state["epoch"],
            "batch": state["batch"],
        }
        if self.recorded is not None:
            metadata |= {"recorded": self.recorded.name, "attempt": self.recorded.attempt}
        self._progress.begin(metadata)
        return self.step

    def record(
        self,
        loss: float,
        units: int,
        batch: Mapping[str, Any] | None = None,
        *,
        losses: Any = None,
        mask: Any = None,
        applied: bool = True,
    ) -> int:
        """Count a step that is done.

        Args:
            loss: its mean loss.
            units: how many samples, or tokens, its batch held on this rank.
            batch: is entered in the ledger of the run, if it is given: its ``sample_id`` and a digest of its tensors. As the
                loop got it, it says which samples the losses are of.
            losses: of its samples [B] or of its tokens [B, T], for the run that is recorded; None records their mean.
            mask: which tokens count, shape [B, T]; None counts all tokens of a sample.
            applied: False where the step was not taken.

        Returns:
            the steps done so far.

        Raises:
            RunError: the losses are not of this batch.
        """
        if batch is not None:
            position = self._log(loss if losses is None else losses, mask, batch, applied=applied)
            if position is None:
                position = self._position["epoch"], self._position["batch"] + self.rank
                self._position = self.stream.state_dict()
            self.checkpoint.enter(position, batch, self.step, self.steps)
        self.step += 1
        self._losses, self._counted = self._losses + loss, self._counted + 1
        if self._progress.add(loss, units):
            self._tell(self._reached())
        return self.step

    def save(self, **parts: Stateful) -> None:
        """Replace the checkpoint: the parts, the steps done, and the stream's place. A kill leaves the old or the new one.

        Each process calls it. The first one writes the file, once all have made durable what they recorded.

        Args:
            **parts: what has a state: ``model=``, ``optimizer=``.

        Raises:
            StreamError: a process does not come; says how long the others waited.
        """
        position = self._flush()
        self._together("save")
        if self.rank == 0:
            self.checkpoint.save(position, self.step, parts)
        if self._counted:
            of = "" if self.steps is None else f"/{self.steps}"
            loss = self._losses / self._counted
            self.log(f"step {self.step}{of}, epoch {position['epoch']}, batch {position['batch']}: loss {loss:.3f}")
        self._losses, self._counted = 0.0, 0

    def log(self, text: str) -> None:
        """Write a line to the log of the run; the first rank does."""
        self._report.log(text)

    def check(self, name: str, passed: bool, facts: Mapping[str, Any]) -> None:
        """Report an asset check of the model's asset, which warns.

        Args:
            name: as the asset declares it: ``beats_chance``.
            passed: whether it holds.
            facts: the figures.
        """
        self._report.check(name, passed, facts)

    def done(self, facts: Mapping[str, Any]) -> None:
        """Report the results, and keep them in ``result.json`` with what the model saw.

        Args:
            facts: numbers, texts or truth values by name.
        """
        position = self._flush()
        if self.rank == 0:
            all_facts, seen = self.facts(), progress.read(self.checkpoint.folder).seen()
            self.checkpoint.keep_result({**all_facts, **facts, "samples_seen": seen, "final_cursor": position})
            cursor = {"raw_value": position, "type": "json"}
            self._report.done({"cache_hit_rate": all_facts["cache_hit_rate"], **facts, "final_cursor": cursor})

    def facts(self) -> dict[str, Any]:
        """Return figures of the whole run, over all its processes: steps, speed, waiting, and cache hits of this one."""
        found = progress.read(self.checkpoint.folder)
        share, bound_by = found.waiting()
        hits = self.stream.metrics()["cache_hit_rate"]
        return {
            "steps": found.step,
            f"{found.unit}_per_s": round(found.rate(), 1),
            "waiting_share": round(share, 4),
            "bound_by": bound_by,
            "processes": len(found.begins),
            "cache_hit_rate": 0.0 if hits is None else round(hits, 4),
            "checkpoint": str(self.checkpoint.folder.resolve()),
        }

    def _log(self, losses: Any, mask: Any, batch: Mapping[str, Any], *, applied: bool) -> tuple[int, int] | None:
        """Record the losses of a batch in the catalog, and return its epoch and number.

        None if none is recorded. A batch that was made anew lost its key: it says so, once.
        """
        if self.recorded is None or not self._logs:
            return None
        try:
            key = self.recorded.key(batch)
        except spiral.errors.RunError as error:
            if self._by_hand:
                raise
            self.log(f"run {self._record}: its history is recorded, and no losses: {error}")
            self._logs, self._after = False, None
            return None
        self.recorded.log(key=key, loss=losses, mask=mask, applied=applied)
        self._after = key.epoch, key.after
        return key.epoch, key.numbers.start

    def _reached(self) -> dict[str, Any]:
        """Return epoch and batch where the run stands. A state would seal what is recorded, at each step."""
        if self._after is None:
            return self.stream.state_dict()
        epoch, batch = self._after
        return {"epoch": epoch, "batch": batch}

    def _flush(self) -> dict[str, Any]:
        position: dict[str, Any] = self.stream.state_dict()
        self._tell(position)
        return position

    def _tell(self, position: Mapping[str, Any]) -> None:
        self._progress.flush(self.step, position, self.stream.metrics())

    def _together(self, verb: str, deadline_s: float | None = _DEADLINE_S) -> None:
        """Wait for all ranks; without a deadline of ours, as the first waits for whoever trains in the folder."""
        if self.world == 1:
            return
        if not torch.distributed.is_initialized():
            msg = (
                f"{verb}: this is rank {self.rank} of {self.world}, and they cannot wait for each other. "
                'Call torch.distributed.init_process_group("gloo"), or "nccl", before'
            )
            raise spiral.errors.StreamError(msg)
        try:
            arrived = torch.distributed.barrier(async_op=True)
            arrived.wait() if deadline_s is None else arrived.wait(timedelta(seconds=deadline_s))
        except RuntimeError as error:
            msg = (
                f"{verb}: rank {self.rank} of {self.world} waited for the others, and one did not come ({error}). Call {verb} on "
                "every rank at the same step; if a rank has ended, its own error says why"
            )
            raise spiral.errors.StreamError(msg) from error
