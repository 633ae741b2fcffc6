"""The verbs of a catalog about runs: `run` records one, `seen`, `diff` and `forget` say what states, checkpoints and runs saw.

A run is given as whatever says which batches it delivered: a state, the path of a checkpoint, several of both, or legs. The
plan of a state is looked for among the catalog's saved streams, by fingerprint, unless it is given.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from spiral_stream.arguments import door
from spiral_stream.catalog.registry import AnyCatalog
from spiral_stream.errors import CatalogError, PlanError, ResumeError, RunError, TrustError, shown
from spiral_stream.plan import nodes
from spiral_stream.plan.tree import need

if TYPE_CHECKING:
    from spiral_stream.catalog.relation.entry import Entry
    from spiral_stream.plan.functions.trust import Trust
    from spiral_stream.planner.prepared_data.retention import PreparedData
    from spiral_stream.runs.difference import RunDifference
    from spiral_stream.runs.forget import Forgetting
    from spiral_stream.runs.leg import Leg
    from spiral_stream.runs.opened_leg import PlanOf
    from spiral_stream.runs.run import Recordable, RecordedRun
    from spiral_stream.runs.seen import SeenSamples

State = Mapping[str, Any] | str | os.PathLike[str]
Trusted = Iterable[ModuleType | str] | ModuleType | str
Given = State | Sequence[Any]  # of states and checkpoints, or of legs


class RunVerbs(AnyCatalog):
    """What a catalog answers of runs. `Catalog` is one."""

    @door(RunError)
    def run(
        self,
        name: str,
        stream: "Recordable | None" = None,
        *,
        attempt: str | None = None,
        every: int = 1_000,
        anew: bool = False,
        on_error: Literal["raise", "warn"] = "raise",
        shard: tuple[int, int] | None = None,
        trust: Trusted = (),
    ) -> "RecordedRun":
        """Record a training run, or open one to read it: which samples each step saw, and what the loop measured on them.

        Open it before the loop begins. A stream that goes on from a state goes on with the run that saved it, as an attempt of
        its own; `state_dict` makes what was logged durable.

        Args:
            name: of the run: letters, digits, ``_ . -``.
            stream: that the loop reads; None opens a recorded run.
            attempt: the name of this start of the training, the same on all ranks; None makes one.
            every: logged batches after which they are written, even if no state is saved.
            anew: True where the training begins anew on purpose, in a run that has attempts: it is a branch of its own,
                whatever state the stream goes on from. With False, one that goes on from no attempt of the run is warned of.
            on_error: what becomes of the training while the catalog cannot be written. ``"raise"``: the error ends it, unless
                the loop catches it. ``"warn"``: it goes on with a warning. What is logged stays in memory until it can be
                written, and a state that is saved meanwhile says so. Where the run cannot even be opened, nothing is recorded.
            shard: which of how many processes that share the rows of each batch this is, as context-parallel ranks do; None:
                it has whole batches.
            trust: as for `open_stream`, for the plans that the run was trained by.

        Raises:
            RunError: there is no such run, or the catalog cannot be written.
            CatalogError: the name is not legal.

        Examples:
            >>> run = catalog.run("run-7", stream)
            >>> for batch in stream:
            ...     run.log(batch=batch, loss=batch["width"] / 1_000)
            >>> state = stream.state_dict()
            >>> [leg.end for leg in catalog.run("run-7").legs()]
            [6]
        """
        from spiral_stream.runs.run import RecordedRun

        run_of: Any = getattr(stream, "_run", None)
        if stream is not None and run_of is None:
            msg = f"run {name!r}: {shown(stream)} is a {type(stream).__name__}. Give the stream that the loop reads"
            raise RunError(msg)
        found = self._plan_of(trust=trust)
        return RecordedRun(self, name, run_of, found, attempt, every, anew=anew, on_error=on_error, shard=shard)

    def runs(self) -> list[str]:
        """Return the names of all recorded runs, sorted.

        Examples:
            >>> run = catalog.run("run-8", stream)
            >>> "run-8" in catalog.runs()
            True
        """
        from spiral_stream.runs.files import run_names

        return run_names(self.registry.root)

    @door(RunError)
    def drop_run(self, name: str) -> None:
        """Forget a run: its history, all that it recorded, and the relations ``runs.<name>`` and of its branches.

        States that were saved while it recorded stay good; a stream goes on from them as one that no run recorded.

        Args:
            name: of the run.

        Raises:
            RunError: there is no such run, or the catalog cannot be written.

        Examples:
            >>> run = catalog.run("tried", stream)
            >>> catalog.drop_run("tried")
            >>> "tried" in catalog.runs()
            False
        """
        from spiral_stream.runs.files import RunFiles
        from spiral_stream.runs.records.run_table import drop_tables

        files = RunFiles(self.registry, name)
        files.need()
        drop_tables(self.registry, files)
        files.drop()

    @door(CatalogError)
    def entry(self, name: str) -> "Entry":
        """Return the registered relation of this name; that of a run is brought up to date.

        Raises:
            CatalogError: there is none; lists near matches.

        Examples:
            >>> catalog.entry("photos").identity
            ('photo_id',)
        """
        self._know_runs(name)
        return self.registry.entry(name)

    def _know_runs(self, text: object) -> None:
        """Bring the relations of runs up to date that a name or a query names."""
        if isinstance(text, str) and "runs." in text:
            for name in (runs := self.runs()):
                for named in re.finditer(rf"(?<![\w.-])runs\.{re.escape(name)}(?:\.([\w.-]+))?(?![\w-])", text):
                    run, branch = self.run(name), (named[1] or "").rstrip(".")
                    if not branch:
                        run.registered()
                    elif f"{name}.{branch}" not in runs and branch in (each.name for each in run.attempts()):
                        run.registered(branch)

    @door(CatalogError)
    def seen(
        self,
        run: Given,
        *,
        name: str | None = None,
        plan: Any = None,
        trust: Trusted = (),
    ) -> "SeenSamples":
        """Return what a run saw: samples, tokens and passes of each stream; see `PreparedStream.seen`.

        Args:
            run: a recorded run or its name; or a state, the path of a checkpoint, or several of one run. Each state knows its
                own epoch. Checkpoints of JSON,
                torch, Lightning, accelerate, Trainer, DCP and Orbax are read; no code of theirs is run.
            name: of the state, where a checkpoint has several.
            plan: of the run, or a stream of it; None looks for it among the saved streams.
            trust: as for `open_stream`.

        Raises:
            ResumeError: a checkpoint has no state, or several and ``name`` is missing; or a state is damaged.
            CatalogError: no saved stream has the plan of a state, or the data that it is of is not known.

        Examples:
            >>> catalog.save_stream("kept", plan.to_numpy())
            >>> stream.seek(batch=2)
            >>> catalog.seen(stream.state_dict()).samples
            16
        """
        from spiral_stream.runs.opened_leg import OpenedLegs
        from spiral_stream.runs.seen import seen

        given = self._recorded(run)
        legs = self._legs_of(given, name)
        plan_of = self._plan_of(plan, trust)
        lacking = given.not_applied() if hasattr(given, "not_applied") else ()
        return seen(legs, lambda: OpenedLegs(self.registry, plan_of), lacking)

    @door(CatalogError)
    def diff(self, first: Given, second: Given, *, plan: Any = None, trust: Trusted = ()) -> "RunDifference":
        """Return where two runs part, and what one saw that the other never did, by relation, with examples.

        Args:
            first: a recorded run or its name, a state, the path of a checkpoint, several, or the name of a saved stream: its
                first epoch on one rank.
            second: likewise.
            plan: of both runs, or a stream of it; None looks for them among the saved streams.
            trust: as for `open_stream`.

        Raises:
            ResumeError: as for `seen`.
            CatalogError: as for `seen`.

        Examples:
            >>> catalog.save_stream("kept", plan.to_numpy())
            >>> stream.seek(batch=2)
            >>> two = stream.state_dict()
            >>> stream.seek(batch=3)
            >>> catalog.diff(two, stream.state_dict()).same
            2
        """
        from spiral_stream.runs.difference import ComparedRun, difference
        from spiral_stream.runs.opened_leg import OpenedLegs

        plan_of = self._plan_of(plan, trust)
        sides = []
        for word, given in (("A", first), ("B", second)):
            if isinstance(given, str) and given in self.streams():
                legs: tuple[Leg, ...] = (self._first_epoch(given, trust),)
            else:
                legs = self._legs_of(given)
            sides.append(ComparedRun(_said(given, word), legs, lambda: OpenedLegs(self.registry, plan_of)))
        return difference(*sides)

    @door(CatalogError)
    def forget(
        self,
        run: Given,
        ids: Any,
        checkpoints: Sequence[State] = (),
        *,
        plan: Any = None,
        trust: Trusted = (),
    ) -> "Forgetting":
        """Return how a run forgets rows: where it first met them, and the state from which it goes on as if they had never been.

        A run that goes on from the state has the same batches as one that skipped the rows from batch 0. With deterministic
        operations and a checkpoint of everything that training changes, its weights are the same too. What is not undone, and
        what still holds the rows, is listed.

        Args:
            run: what it delivered: its last state or checkpoint, or several, as for `seen`.
            ids: identities of the rows, as `ledger` lists them, without part numbers. In place of more than 10,000, and up to a
                million, a table with the columns of the identity (and ``stream_id`` or ``stream``, where streams are mixed): a
                relation or its name, an Arrow table, or the path of a Parquet or Arrow file.
            checkpoints: states, or paths of checkpoints, that it can go on from; the last one before the rows is taken.
            plan: as for `seen`.
            trust: as for `open_stream`.

        Raises:
            ResumeError: as for `seen`.
            CatalogError: as for `seen`.
            StreamError: there are too many rows, or the plan assembles samples; says the way out.

        Examples:
            >>> catalog.save_stream("kept", plan.to_numpy())
            >>> stream.seek(batch=3)
            >>> found = catalog.forget(stream.state_dict(), [stream.ledger(2)[0]])
            >>> found.first.batch, found.steps
            (2, (3, 0))
        """
        from spiral_stream.runs.checkpoints import states_in
        from spiral_stream.runs.forget import Checkpoint, forget
        from spiral_stream.runs.forgotten_rows import table_named
        from spiral_stream.runs.leg import legs_of_states
        from spiral_stream.runs.opened_leg import OpenedLegs

        listed = list[Checkpoint]()
        for k, each in enumerate(checkpoints):
            if isinstance(each, Mapping):
                listed.append(Checkpoint(_said(each, f"checkpoint {k}"), each))
            else:
                listed += [Checkpoint(str(found.path), found.state) for found in states_in(_path(each))]
        catalog: Any = self
        named = table_named(ids, self.tables(), catalog.table)
        legs = self._legs_of(run)
        if all(not leg.attempt for leg in legs):  # of bare states: those of the checkpoints say more of the run
            legs = legs_of_states([*(leg.state for leg in legs if leg.known), *(each.state for each in listed)])
        with OpenedLegs(self.registry, self._plan_of(plan, trust)) as opened:
            relations = {
                stream.base.entry.name for leg in legs if leg.known for stream in opened.of(leg).stages.streams
            }
            return forget(legs, named, listed, opened, self._holders(relations, trust))

    def _holders(self, relations: set[str], trust: Trusted) -> list[str]:
        """What still holds rows of relations, in words."""
        from spiral_stream.catalog.relation.source_facts import source_facts

        out = list[str]()
        for name in sorted(relations):
            facts = source_facts(self.registry.entry(name))
            out.append(f"relation {name}: {facts}; register it again without the rows")
        for each in self._prepared_data(trust):
            if relations & set(each.relations):
                columns = f" ({', '.join(each.columns[:3])})" if each.columns else ""
                out.append(
                    f"{each.kind} {each.name[:8]} of {', '.join(each.relations[:3])}{columns}: {each.bytes:,} bytes"
                )
        out += [f"records of a run: {name}" for name in self.tables() if name.startswith("runs.")]
        return [*out, "states and checkpoints of runs that skip the rows: they name the identities"]

    def _first_epoch(self, name: str, trust: Trusted) -> "Leg":
        """The first epoch of a saved stream, on one rank."""
        from spiral_stream.plan.saving.canonical import to_json
        from spiral_stream.runs.opened_leg import first_epoch

        node = need(self._plan(name, self._trusted(trust)), nodes.Deliver)
        return first_epoch(node, to_json(node), self.registry, name)

    def _legs_of(self, run: Any, name: str | None = None) -> "tuple[Leg, ...]":
        """Return what somebody gave for a run as legs, in the order of the run.

        Raises:
            ResumeError: a checkpoint or a state in it cannot be read.
        """
        from spiral_stream.runs.checkpoints import state_in
        from spiral_stream.runs.leg import Leg, legs_of_states

        run = self._recorded(run)
        if hasattr(run, "legs") and callable(run.legs):
            return tuple(run.legs())
        several = isinstance(run, Iterable) and not isinstance(run, Mapping | str | os.PathLike)
        given = list(run) if several else [run]
        if given and all(isinstance(each, Leg) for each in given):
            return tuple(given)
        states = [each if isinstance(each, Mapping) else state_in(_path(each), name).state for each in given]
        return legs_of_states(states)

    def _recorded(self, run: Any) -> Any:
        """Return the recorded run of a name, where the name is one and no path; anything else as it is."""
        if isinstance(run, str) and run in self.runs() and not Path(run).exists():
            return self.run(run)
        return run

    def _plan_of(
        self,
        plan: Any = None,
        trust: Trusted = (),
    ) -> "PlanOf":
        """Return what finds the plan of a leg."""
        from spiral_stream.plan.saving.saved import from_json

        if plan is not None:
            given = getattr(plan, "node", None) or getattr(plan, "plan", None)  # of a relation, or of a stream
            if not isinstance(given, nodes.Node):
                msg = f"plan={shown(plan)} is a {type(plan).__name__}. Give a stream, or the plan of one"
                raise PlanError(msg)
            return lambda _: need(given, nodes.Deliver)
        allowed = self._trusted(trust)

        def found(leg: "Leg") -> nodes.Deliver:
            if leg.plan is not None:
                return need(from_json(leg.plan, self._scan, self._sql, allowed), nodes.Deliver)
            recorded = self._recorded_plan(leg.state)
            if recorded is not None:
                return need(from_json(recorded, self._scan, self._sql, allowed), nodes.Deliver)
            return self._saved_plan(str(leg.state.get("plan")), leg.state.get("drawn_seed"), allowed)

        return found

    def _recorded_plan(self, state: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The plan of a state as the run keeps it that saved the state; None if this catalog has no such run."""
        said = state.get("run")
        name = said.get("name") if isinstance(said, Mapping) else None
        if name not in self.runs():
            return None
        run = self.run(name)
        legs = (leg for attempt in run.attempts() for leg in run.legs(attempt.name))
        return next((leg.plan for leg in legs if leg.plan and leg.state.get("plan") == state.get("plan")), None)

    def _saved_plan(self, name: str, seed: Any, allowed: "Trust") -> nodes.Deliver:
        """The plan of a fingerprint among the saved streams."""
        from spiral_stream.plan.saving.drawn_seeds import drawn_seed, with_recorded
        from spiral_stream.plan.saving.fingerprint import fingerprint

        refused = list[str]()
        for stream in self.streams():
            try:
                node = need(self._plan(stream, allowed), nodes.Deliver)
            except (PlanError, TrustError, CatalogError) as error:
                refused.append(f"{stream} cannot be read ({str(error).split('. ')[0][:100]})")
                continue
            if isinstance(seed, int) and drawn_seed(need(node, nodes.Sample).order) is not None:
                node = with_recorded(node, seed)
            if fingerprint(node) == name:
                return node
        there = f"; {'; '.join(refused[:3])}" if refused else ""
        msg = (
            f"seen: no saved stream of catalog {self.uri} has plan {name[:8]}, which the state is of{there}. Save it there: "
            "catalog.save_stream(name, plan); or give it: plan="
        )
        raise CatalogError(msg)

    # ---- what the catalog itself knows

    def _prepared_data(self, trust: Trusted) -> "list[PreparedData]":
        """Return what lies in the prepared folder."""
        raise NotImplementedError

    def _plan(self, name: str, trust: "Trust") -> nodes.Node:
        """Return the plan of a saved stream."""
        raise NotImplementedError

    def _scan(self, name: str) -> nodes.Scan:
        """Return the scan of a relation."""
        raise NotImplementedError

    def _sql(self, text: str) -> nodes.Sql:
        """Return the node of a SQL text."""
        raise NotImplementedError

    def _trusted(self, modules: Trusted) -> "Trust":
        """Return which modules a saved plan may name."""
        raise NotImplementedError


def _said(given: Any, otherwise: str) -> str:
    """What a run is called where it is shown."""
    if isinstance(given, str | os.PathLike):
        return os.fspath(given)
    if isinstance(given, Mapping) and {"epoch", "batch"} <= given.keys():
        return f"a state at epoch {given['epoch']}, batch {given['batch']}"
    return str(getattr(given, "name", None) or otherwise)


def _path(given: Any) -> Path:
    if isinstance(given, str | os.PathLike):
        return Path(os.fspath(given))
    msg = f"state: {shown(given)} is a {type(given).__name__}. Give what state_dict() returned, or the path of a checkpoint"
    raise ResumeError(msg)
