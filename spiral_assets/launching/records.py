"""Which job belongs to an asset, a partition and a config. It is stored before it is submitted, so that nothing is started twice.

    <root>/launched/<asset>/<partition>/<digest>/lock
                                                /<number>/record.json     the job of one try
                                                /<number>/messages.jsonl  what it says, and more that it writes

One who decides holds the lock: to open a number, and to submit it. The kernel frees the lock of a process that dies. What it
leaves is told apart by the record: none; one without an id (the job is looked up by its name, and submitted if there is none);
one with an id.
"""

import hashlib
import json
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, final
from urllib.parse import quote, unquote

from spiral_assets.launching.fields import launcher_of
from spiral_assets.launching.files import locked, read_json, write_json
from spiral_assets.launching.launcher import FarJob, Launcher

FOLDER: Final = "launched"
SUBMITTING_S: Final = 600.0  # a cluster may take minutes to answer
_STAYING: Final = 10  # numbers of one config
_RECORD: Final = "record.json"


@final
@dataclass(frozen=True)
class JobRecord:
    """The job of one try.

    Attributes:
        name: of the job.
        number: of the try.
        launcher: its fields; whoever attaches later uses these, whatever YAML says by then.
        results: folder in which the job leaves its results, such as checkpoints.
        runs: root ids of the Dagster runs that followed it.
        last_run: id of the last of them.
        opened_at: seconds since 1970.
        job_id: as its system calls it; None until it is submitted.
        end: state in which it ended, once a run reported it; empty until then.
    """

    name: str
    number: int
    launcher: Mapping[str, Any]
    results: str
    runs: Sequence[str]
    last_run: str
    opened_at: float
    job_id: str | None = None
    end: str = ""


def digest_of(config: Mapping[str, Any]) -> str:
    """Return 16 hex digits of what decides whether two runs ask for the same job.

    Args:
        config: values of JSON; others count by their text.
    """
    text = json.dumps(config, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@final
class JobRecords:
    """The jobs of one asset, partition and config.

    Args:
        root: a folder that this process and the jobs see under the same path.
        asset: parts of the key.
        partition: None for an asset without partitions.
        digest: from `digest_of`.
    """

    def __init__(self, root: Path, asset: Sequence[str], partition: str | None, digest: str) -> None:
        parts = [quote(part, safe="") for part in (*asset, "-" if partition is None else f"={partition}")]
        self.folder = root.absolute().joinpath(FOLDER, *parts, digest)
        self._slug = re.sub(r"[^a-z0-9]+", "-", "-".join([*asset, partition or ""]).lower()).strip("-")[:32].strip("-")

    def claim(self, root_run: str, run: str, launcher: Launcher, results: str) -> JobRecord:
        """Return the job to follow: the last one, unless its end was reported; else a new one, which is stored, not submitted.

        A new one that goes on for a run which followed the last one has the last one's results, so that it can resume.

        Args:
            root_run: id of the first of a Dagster run and its retries.
            run: id of the Dagster run.
            launcher: of a new job.
            results: folder of the results of a new job.

        Raises:
            TimeoutError: somebody holds the lock.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / "lock", SUBMITTING_S):
            last = self.last()
            if last is not None and not last.end:
                return self._stored(replace(last, runs=[*last.runs, *({root_run} - set(last.runs))], last_run=run))
            number = 1 if last is None else last.number + 1
            if last is not None and (root_run in last.runs or last.end == _UNSEEN):
                results = last.results
            name = f"spiral-{self._slug}-{secrets.token_hex(4)}-{number}"
            fields = launcher.model_dump(mode="json")
            self._prune(number)
            return self._stored(JobRecord(name, number, fields, results, [root_run], run, time.time()))

    def submitted(self, record: JobRecord, launcher: Launcher, job: FarJob) -> JobRecord:
        """Return the record with the id of its job. Without one, the job is looked up by name, and submitted if there is none.

        Args:
            record: from `claim`.
            launcher: of the record.
            job: what is submitted.

        Raises:
            RefusedError: its system does not take it.
            UnreachableError: its system does not answer.
            TimeoutError: somebody holds the lock.
        """
        with locked(self.folder / "lock", SUBMITTING_S):
            now = self._read(record.number) or record
            if now.job_id is not None:
                return now
            job_id = launcher.attach(job)
            return self._stored(replace(now, job_id=launcher.submit(job) if job_id is None else job_id))

    def job_id(self, record: JobRecord) -> str | None:
        """Return the id of a job; None if it is not submitted, as far as anybody stored.

        Args:
            record: of the job.
        """
        found = self._read(record.number)
        return None if found is None else found.job_id

    def ended(self, record: JobRecord, end: str, *, seen: bool = True) -> None:
        """Store that the end of a job was reported, so that the next run begins a new one.

        Args:
            record: of the job.
            end: its state.
            seen: whether a run followed it to its end; if none did, the next job goes on with its results.
        """
        with locked(self.folder / "lock", SUBMITTING_S):
            now = self._read(record.number) or record
            if not now.end:
                self._stored(replace(now, end=end if seen else _UNSEEN))

    def folder_of(self, record: JobRecord) -> Path:
        """Return the folder of a job's files.

        Args:
            record: of the job.
        """
        return self.folder / str(record.number)

    def last(self) -> JobRecord | None:
        """Return the record of the last try; None if there was none."""
        numbers = [int(each.name) for each in self.folder.iterdir() if each.name.isdigit()]
        found = (self._read(number) for number in sorted(numbers, reverse=True))
        return next((each for each in found if each is not None), None)

    def _read(self, number: int) -> JobRecord | None:
        found = read_json(self.folder / str(number) / _RECORD)
        return None if found is None else JobRecord(**found)

    def _stored(self, record: JobRecord) -> JobRecord:
        folder = self.folder_of(record)
        folder.mkdir(exist_ok=True)
        write_json(folder / _RECORD, asdict(record))
        return record

    def _prune(self, number: int) -> None:
        for each in self.folder.iterdir():
            if each.name.isdigit() and int(each.name) <= number - _STAYING:
                shutil.rmtree(each, ignore_errors=True)


_UNSEEN: Final = "unseen"


def every_records(root: Path, asset: Sequence[str]) -> Iterator[JobRecords]:
    """Yield the jobs of each partition and config of an asset.

    Args:
        root: as for `JobRecords`.
        asset: parts of the key.
    """
    for folder in sorted(root.absolute().joinpath(FOLDER, *(quote(part, safe="") for part in asset)).glob("*/*")):
        said = unquote(folder.parent.name)
        if (said == "-" or said.startswith("=")) and (folder / "lock").exists():
            yield JobRecords(root, asset, None if said == "-" else said[1:], folder.name)


def launcher_in(record: JobRecord) -> Launcher:
    """Return the launcher of a stored job.

    Args:
        record: of the job.
    """
    return launcher_of(record.launcher)
