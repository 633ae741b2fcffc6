"""Find the states of streams in checkpoints: files and folders of JSON, torch, Lightning, accelerate, Trainer, DCP and Orbax.

A state is found by its values, under whatever name. Nothing that is read can run code: JSON is parsed, pickles are read by
`inert`, and tensors not at all.

| written by | is found in |
|---|---|
| ``json.dump``, ``catalog.export_state`` | the file |
| ``StreamTrainer`` | ``spiral_stream.json`` of a checkpoint; of an output folder, in the last checkpoint |
| Lightning, ``torch.save`` | the file: ``.ckpt``, ``.pt``, ``.pth``, ``.pkl``, ``.bin`` |
| accelerate | ``custom_checkpoint_0.pkl`` of the folder |
| ``torch.distributed.checkpoint`` | what ``.metadata`` of the folder lists as bytes, as one JSON text or flattened |
| Orbax | ``metadata`` of ``JsonSave``, in the folder of the last step |
"""

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from spiral_stream.errors import ResumeError, cut
from spiral_stream.integrity.regular_files import regular_bytes
from spiral_stream.runs.inert import NotReadError, Opaque, torch_saved, unpickled, walked

_JSON_BYTES: Final = 1 << 26
_ENTRY_BYTES: Final = 1 << 22  # of a value that DCP saved as bytes
_ENTRIES: Final = 100_000
_FILES: Final = 2_000  # of a folder
_DEEP: Final = 4  # folders below the one that is given
_TORCH: Final = (".ckpt", ".pt", ".pth", ".pkl", ".bin", ".tar")
_DCP: Final = ".metadata"
_TEXTS: Final = (".json", "")  # Orbax gives its files no ending
_NUMBERED: Final = re.compile(r"\d+$")
_KEYS: Final = ("plan", "run_seed", "epoch", "batch", "step", "segments")


@final
@dataclass(frozen=True, slots=True)
class CheckpointState:
    """A state in a checkpoint.

    Attributes:
        path: of the file or folder that holds it.
        name: how it is called there; empty if it is all of the file.
        state: it, as ``state_dict`` returned it.
    """

    path: Path
    name: str
    state: Mapping[str, Any]

    def __str__(self) -> str:
        where = f"{self.path}" + (f" name {self.name!r}" if self.name else "")
        return f"{where}: plan {self.state['plan'][:8]}, epoch {self.state['epoch']:,}, batch {self.state['batch']:,}"


def states_in(path: Path | str) -> list[CheckpointState]:
    """Return the states in a checkpoint, in the order of files and names; the same state of several files once.

    Raises:
        ResumeError: there is nothing at the path, or no state in it.
    """
    given = Path(path)
    try:
        found = list(_once(_in_folder(given, _DEEP) if given.is_dir() else _in_file(given)))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        msg = f"states: {cut(str(path))}: {reason}. Give a checkpoint: a file or a folder that can be read"
        raise ResumeError(msg) from error
    if not found:
        msg = (
            f"states: {cut(str(path))} holds no state of a stream. Give a checkpoint that was saved with stream.state_dict(), "
            "as docs/howto/checkpoint.md shows, or a JSON file of the state alone"
        )
        raise ResumeError(msg)
    return found


def state_in(path: Path | str, name: str | None = None) -> CheckpointState:
    """Return the one state in a checkpoint, or the one of a name.

    Raises:
        ResumeError: there are several, or none of the name; lists them.
    """
    found = states_in(path)
    if name is not None:
        named = [each for each in found if each.name == name]
        if len(named) == 1:
            return named[0]
    elif len(found) == 1:
        return found[0]
    lines = "; ".join(str(each) for each in found[:10])
    wanted = "it holds several states" if name is None else f"it holds no single state of the name {name!r}"
    msg = f"states: {cut(str(path))}: {wanted}: {lines}. Name one: name= (on the command line --name NAME)"
    raise ResumeError(msg)


def is_state(value: Any) -> bool:
    """Whether a value looks like what ``state_dict`` returns; loading it checks it."""
    if not isinstance(value, Mapping) or not isinstance(value.get("spiral"), int):
        return False
    return (
        isinstance(value.get("plan"), str)
        and isinstance(value.get("epoch"), int)
        and all(key in value for key in _KEYS)
    )


def _once(found: Iterable[CheckpointState]) -> Iterator[CheckpointState]:
    known = set[str]()
    for each in found:
        try:
            text = json.dumps(each.state, sort_keys=True)
        except (TypeError, ValueError, RecursionError):  # such as an opaque value in it
            continue
        if text not in known:
            known.add(text)
            yield each


# ---- folders


def _in_folder(folder: Path, deep: int) -> Iterator[CheckpointState]:
    """The states in the files of a folder; if there are none, those of the last numbered folder in it, or of all its folders."""
    inside = sorted(folder.iterdir(), key=lambda path: path.name)[:_FILES]
    found = list(_in_dcp(folder)) if (folder / _DCP).is_file() else []
    for each in inside:
        if each.is_file() and (each.suffix in _TORCH or each.suffix in _TEXTS) and not each.name.startswith("."):
            found += _in_file(each)
    if found or not deep:
        yield from found
        return
    folders = [each for each in inside if each.is_dir()]
    numbered = [each for each in folders if _NUMBERED.search(each.name)]
    for each in sorted(numbered, key=_number, reverse=True):
        found = list(_in_folder(each, deep - 1))
        if found:
            yield from found
            return
    for each in folders:
        if each not in numbered:
            yield from _in_folder(each, deep - 1)


def _number(folder: Path) -> int:
    match = _NUMBERED.search(folder.name)
    return int(match[0]) if match else -1


# ---- files


def _in_file(path: Path) -> list[CheckpointState]:
    """The states in a file; none if it is none of the kinds that are known."""
    if path.suffix in _TORCH:
        try:
            with path.open("rb") as file:
                return list(_in_value(path, torch_saved(file)))
        except NotReadError:
            return list(_in_value(path, _pickled(path)))
    size = path.stat().st_size
    if path.suffix in _TEXTS and size > _JSON_BYTES:
        return []
    data = regular_bytes(path)
    if data[:2] == b"PK":
        try:
            return list(_in_value(path, torch_saved(io.BytesIO(data))))
        except NotReadError:
            return []
    return list(_in_value(path, _parsed(data.decode("utf-8", "replace"))))


def _pickled(path: Path) -> Any:
    """What a plain pickle holds, as accelerate and older torch write it; None if the file is none."""
    if path.stat().st_size > _JSON_BYTES:
        return None
    try:
        return unpickled(regular_bytes(path))
    except NotReadError:
        return None


def _in_value(path: Path, value: Any, prefix: tuple[str, ...] = ()) -> Iterator[CheckpointState]:
    for names, each in walked(value):
        text = each.decode("utf-8", "replace") if isinstance(each, bytes) else each
        if isinstance(text, str):
            text = _parsed(text) if text.lstrip().startswith("{") and '"spiral"' in text else None
        if is_state(text):
            yield CheckpointState(path, "/".join((*prefix, *names)), _plain(text))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _plain(value: Any) -> Any:
    """A state as JSON has it: lists for tuples."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


# ---- torch.distributed.checkpoint


def _in_dcp(folder: Path) -> Iterator[CheckpointState]:
    """The states in a folder of DCP: in single values, and in dicts that were saved value by value."""
    try:
        metadata = unpickled(regular_bytes(folder / _DCP))
    except NotReadError:
        return
    facts = _fields_of(metadata)
    stored, paths = facts.get("storage_data"), facts.get("planner_data")
    kinds = facts.get("state_dict_metadata")
    if not isinstance(stored, Mapping) or not isinstance(kinds, Mapping):
        return
    names = paths if isinstance(paths, Mapping) else {}
    saved: dict[Any, Any] = {}
    for key, where in list(stored.items())[:_ENTRIES]:
        fields, at = _fields_of(key), _fields_of(where)
        name, size = fields.get("fqn"), at.get("length")
        if (
            fields.get("offset") is not None
            or not isinstance(name, str)
            or not isinstance(size, int)
            or size > _ENTRY_BYTES
        ):
            continue
        if "size" in _fields_of(kinds.get(name)):  # a tensor
            continue
        value = _entry(folder, at.get("relative_path"), at.get("offset"), size)
        if value is not None:
            path = names.get(name)
            _put(saved, path if isinstance(path, tuple) and path else tuple(name.split(".")), value[0])
    yield from _in_value(folder, saved)


def _entry(folder: Path, name: Any, offset: Any, size: int) -> tuple[Any] | None:
    """A value that DCP saved as bytes, in a tuple; None if it cannot be read."""
    if not isinstance(name, str) or not isinstance(offset, int) or Path(name).name != name or offset < 0 or size < 0:
        return None
    try:
        with (folder / name).open("rb") as file:
            file.seek(offset)
            return (torch_saved(io.BytesIO(file.read(size))),)
    except (NotReadError, OSError, OverflowError):
        return None


def _put(into: dict[Any, Any], path: tuple[Any, ...], value: Any) -> None:
    for name in path[:-1]:
        inner = into.setdefault(name, {})
        if not isinstance(inner, dict):
            return
        into = inner
    into[path[-1]] = value


def _fields_of(value: Any) -> Mapping[str, Any]:
    """The attributes that a pickle gave an object."""
    given = value.__dict__.get("given", []) if isinstance(value, Opaque) else []
    states = [
        part for each in given for part in (each if isinstance(each, tuple) else (each,)) if isinstance(part, Mapping)
    ]
    return {str(name): inner for part in states for name, inner in part.items()}
