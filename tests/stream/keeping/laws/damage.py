"""Damage to what is kept: which files, in which ways, and what may come of it."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tests.stream.keeping.laws.ground import ALIKE, Ground
from tests.stream.keeping.laws.trials import Undisturbed, run

Way = Callable[[bytes, bytes], bytes | None]


def _flipped(share: float) -> Way:
    def flip(data: bytes, _: bytes) -> bytes:
        at = min(int(len(data) * share), len(data) - 1)
        return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]

    return flip


WAYS: Final[dict[str, Way]] = {
    "head": _flipped(0.0),
    "middle": _flipped(0.5),
    "tail": _flipped(1.0),
    "cut": lambda data, _: data[: len(data) // 2],
    "emptied": lambda *_: b"",
    "removed": lambda *_: None,
    "longer": lambda data, _: data + b"more",
    "another": lambda _, other: other,
}
# What an error tells to do, and who does it. Words that are none of these are no way out.
WAYS_OUT: Final = (
    (r"delete (\S+/relations\.lance) \(and streams\.lance\) and register again", "tables"),
    (r"catalog\.refresh\(\"(\w+)\"\)", "refresh"),
    (r"replace=True|with save_stream", "register"),
    (r"stream\.materialize\(\)|index_videos|catalog\.measure|builds it again|makes it again|built again", "build"),
    (r"[Rr]emove (it|the file|that file)|[Dd]elete (it|that object)", "delete"),
    (r"[Rr]estore (it|the file|a damaged one)", "restore"),
)
STEPS: Final = 6  # that a way out may have


def files_of(base: Undisturbed) -> dict[str, list[str]]:
    """The files that are the kind's own, by what is alike in their names; those of no bytes are marks and locks."""
    found: dict[str, list[str]] = {}
    base.built.again()
    files = base.ground.files()
    of_records = _parts_of_records(files)
    for name, data in files.items():
        alike = f"{ALIKE.sub('*', name)}{of_records.get(name, '')}"
        if data and any(part in alike for part in base.kind.own) and not any(part in name for part in base.kind.unread):
            found.setdefault(alike, []).append(name)
    return found


def _parts_of_records(files: Mapping[str, bytes]) -> dict[str, str]:
    """Of objects that hold the files of a catalog on a store: which kind of record names them, and for which file."""
    found: dict[str, str] = {}
    for name, data in files.items():
        if name.startswith("catalog/records/"):
            kind = ALIKE.sub("*", str(Path(name).parent))
            for path, (_, parts) in json.loads(data)["files"].items():
                said = f", {Path(path).suffix} of {kind}/"
                found |= {f"catalog/data/{part}": said for part in parts}
    return found


def damaged(base: Undisturbed, names: list[str], way: str) -> Iterator[str]:
    """Damage one file and read; yields what is wrong.

    Args:
        base: what is right.
        names: the file, and others whose bytes may take the place of its own.
        way: of the damage.
    """
    if any(pattern in name for name in names[:1] for pattern, ways in base.kind.unnoticed.items() if way in ways):
        return
    base.built.again()
    reader = base.ground.on("reader") if base.ground.endpoint else base.ground
    name, held = names[0], base.ground.files()
    other = next((held[each] for each in (*names[1:], *sorted(held)) if held[each] not in (held[name], b"")), b"")
    times_ns = 0 if base.ground.endpoint else (base.ground.home / "kept" / name).stat().st_mtime_ns
    base.ground.write(name, WAYS[way](held[name], other))
    found = run(reader, base.kind, "read")
    left: list[tuple[str, re.Match[str]]] = []
    for step in range(STEPS):
        if "raw" in found:
            yield f"raw: {found['raw']}"
        elif "error" not in found and found.get("read", base.values) != base.values:
            yield f"other values: {found['read']}"
        if "error" not in found:
            return
        error = found["error"]
        if step == 0 and way != "another" and not _is_named(error, name):  # else another file may be the wrong one
            yield f"the error does not name the file: {error}"
        left += [(action, said) for words, action in WAYS_OUT if (said := re.search(words, error))]
        if not left:
            yield f"the error has no way out: {error}"
            return
        found = _gone_out(base, reader, left.pop(0), (name, held[name], times_ns))
    yield f"the way out does not go out: {error}"


def _is_named(error: str, name: str) -> bool:
    """Whether an error names a file, or the table or record that it is of."""
    if "catalog/relations.lance/" in name or "catalog/streams.lance/" in name:
        return re.search(r"/catalog: (cannot read its (relations|streams)|(relation|stream) '\w+')", error) is not None
    table = name.partition(".lance/")[0].rpartition("/")[2] + ".lance" if ".lance/" in name else name
    is_compared = name.endswith(".pins") or "catalog/rows-" in name  # with files, or with shards
    if is_compared and re.search(r"(first|second): .*(/data/\S+|storage shard '\S+') ", error) is not None:
        return True
    return Path(name).name in error or table in error


def _gone_out(
    base: Undisturbed, reader: Ground, taken: tuple[str, re.Match[str]], damaged: tuple[str, bytes, int]
) -> dict[str, Any]:
    """Do what an error says, and read."""
    (action, said), (name, data, times_ns) = taken, damaged
    if action == "tables":
        for table in ("relations.lance", "streams.lance"):
            shutil.rmtree(Path(said[1]).with_name(table), ignore_errors=True)
    elif action == "delete":
        base.ground.write(name, None)
    elif action == "restore":  # as a backup does, with its time
        base.ground.write(name, data)
        if not base.ground.endpoint:
            os.utime(base.ground.home / "kept" / name, ns=(times_ns, times_ns))
    modes = {"build": "build", "tables": "again", "register": "again"}
    mode = f"refresh {said[1]}" if action == "refresh" else modes.get(action)
    return run(reader, base.kind, *([] if mode is None else [mode]), "read")
