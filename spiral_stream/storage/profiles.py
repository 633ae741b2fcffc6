"""Options of stores: from the environment, from named profiles in a file, and from the program.

One set of options serves Spiral and Lance; the names are those that Lance takes as ``storage_options``, such as
``region``, ``endpoint`` and ``secret_access_key``. A profile says by its prefix which URIs it is for, so a catalog or a plan
holds URIs only, and never an option. A profile takes what it does not say from those with a shorter prefix. An option that a
program gives stands before the file's, and both before the environment, which the client libraries read themselves
(``AWS_...``, ``GOOGLE_...``, ``AZURE_...``).

No value of an option is ever shown: a profile prints its name and the names of its options, and `redacted` takes the
values of secrets out of messages of other libraries.
"""

import os
import re
import threading
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, final

from spiral_stream.arguments import door
from spiral_stream.errors import SourceError, cut, shown
from spiral_stream.storage.option_values import need_each
from spiral_stream.storage.uri import is_object, place_of, printable

FILE_ENV: Final = "SPIRAL_STORAGE"
_SECRET: Final = re.compile(
    r"key|secret|token|password|credential|sas|auth|service_account|header|proxy", re.IGNORECASE
)
_SHORTEST: Final = 6  # characters of a secret that is searched for in messages
_MESSAGE: Final = re.compile(
    r"(?i)((?:aws_?)?(?:secret_?)?access_?key(?:_?id)?|account_?key|authorization|bearer|x-amz-[a-z-]+|token|signature|sig)"
    r"(\"?\s*[:=>]\s*\"?)[^\s\"<&,;)}]+"
)


@final
@dataclass(frozen=True, slots=True)
class StorageProfile:
    """Options for the URIs that begin with a prefix."""

    name: str
    prefix: str
    options: Mapping[str, str] = field(repr=False)

    def covers(self, uri: str) -> bool:
        """Whether a URI lies at the prefix or below it."""
        bare = self.prefix.rstrip("/")
        return uri == bare or uri.startswith(f"{bare}/") or bare.endswith(":")


_GIVEN: Final[dict[str, StorageProfile]] = {}  # by the program
_LOCK: Final = threading.Lock()


@door(SourceError)
def use_storage(name: str, prefix: str, **options: Any) -> None:
    """Give the options of a store, in this process.

    Processes that it starts do not have them: give theirs in the environment, or in the file ``$SPIRAL_STORAGE``.

    Args:
        name: of the profile; a second one of the same name takes the place of the first.
        prefix: the URIs that it is for, such as ``"s3://bucket/"``, or ``"s3://"`` for every bucket.
        **options: as Lance names them in ``storage_options``, such as ``endpoint="https://minio:9000"``. None of them: the
            profile is forgotten.

    Raises:
        SourceError: the prefix or an option is none.

    Examples:
        >>> spiral.use_storage(
        ...     "minio", "s3://team/", endpoint="http://localhost:9000", allow_http="true"
        ... )
    """
    where = f"use_storage({shown(name)})"
    if not isinstance(name, str):
        msg = f"{where}: the name is a {type(name).__name__}. Give a text"
        raise SourceError(msg)
    made = _profile(name, {"prefix": prefix, **options}, where)
    need_each(where, made.options)
    with _LOCK:
        _GIVEN.pop(name, None)
        if options:
            _GIVEN[name] = made


def options_of(uri: str) -> dict[str, str]:
    """Return the options of the profiles that a URI lies below; of each option, the longest prefix that says it wins.

    Raises:
        SourceError: the file of profiles cannot be read.
    """
    found: dict[str, str] = {}
    for profile in _covering(uri):
        found |= profile.options
    return found


def profile_names(uri: str) -> list[str]:
    """Return the names of the profiles that a URI lies below, the most general first; all that may be shown of them."""
    return [profile.name for profile in _covering(uri)]


def redacted(text: str) -> str:
    """Return a text of another library without the secrets that this process knows, and without signed queries."""
    for secret in sorted(_secrets(), key=len, reverse=True):
        text = text.replace(secret, "***")
    return _MESSAGE.sub(r"\1\2***", printable(text))


def _covering(uri: str) -> list[StorageProfile]:
    with _LOCK:
        given = list(_GIVEN.values())
    ordered = [*_of_file(), *given]  # at one prefix the program's come last
    return sorted((each for each in ordered if each.covers(uri)), key=lambda each: len(each.prefix.rstrip("/")))


def _secrets() -> set[str]:
    found = {value for name, value in os.environ.items() if _is_secret_variable(name)}
    with _LOCK:
        profiles = list(_GIVEN.values())
    with suppress(SourceError):  # a message about something else shall not fail
        profiles += _of_file()
    for profile in profiles:
        found |= {value for name, value in profile.options.items() if _SECRET.search(name)}
    return {value for value in found if len(value) >= _SHORTEST}


def _is_secret_variable(name: str) -> bool:
    return name.startswith(("AWS_", "AZURE_", "GOOGLE_", "GCS_")) and bool(_SECRET.search(name))


def _of_file() -> tuple[StorageProfile, ...]:
    """Return the profiles of the file; it is read again when it was changed, and this is asked for every reference."""
    place = os.environ.get(FILE_ENV)
    if not place:
        return ()
    path = Path(place).expanduser()
    try:
        facts = path.stat()
    except OSError:
        return _read(place, path)
    return _kept(place, path, (facts.st_ino, facts.st_mtime_ns, facts.st_size))


@lru_cache(maxsize=4)
def _kept(place: str, path: Path, facts: tuple[int, ...]) -> tuple[StorageProfile, ...]:
    del facts
    return _read(place, path)


def _read(place: str, path: Path) -> tuple[StorageProfile, ...]:
    where = f"${FILE_ENV}={cut(place)}"
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"\(at .*\)$", str(error))  # its other words may quote the file
        msg = f"{where}: it is no TOML {at[0] if at else ''}. Give one table per profile: [name], prefix and options"
        raise SourceError(msg) from None
    except (OSError, UnicodeDecodeError) as error:
        msg = (
            f"{where}: {getattr(error, 'strerror', None) or 'it is no UTF-8'}. Correct the path, or unset the variable"
        )
        raise SourceError(msg) from None
    profiles = []
    for name, table in found.items():
        if not isinstance(table, dict):
            msg = f"{where}: {cut(name)} stands outside of a profile. Put it below a line that names a profile, such as [lab]"
            raise SourceError(msg)
        profiles.append(_profile(name, table, f"{where}, profile {cut(name)}"))
        same = next(
            (each for each in profiles[:-1] if each.prefix.rstrip("/") == profiles[-1].prefix.rstrip("/")), None
        )
        if same is not None:
            msg = f"{where}: profiles {cut(same.name)} and {cut(name)} have the same prefix. Make them one, or correct a prefix"
            raise SourceError(msg)
    return tuple(profiles)


def _profile(name: str, table: Mapping[str, Any], where: str) -> StorageProfile:
    prefix = table.get("prefix")
    if not isinstance(prefix, str) or not is_object(prefix):
        found = shown(printable(prefix)) if isinstance(prefix, str) else "missing"
        msg = f'{where}: prefix is {found}. Say which URIs the profile is for, such as prefix = "s3://bucket/"'
        raise SourceError(msg)
    if prefix.partition("://")[2]:
        place_of(prefix)
    options = {each: _value(value, each, where) for each, value in table.items() if each != "prefix"}
    return StorageProfile(name, prefix, options)


def _value(value: Any, option: str, where: str) -> str:
    """The value of an option: itself, that of an environment variable, or the content of a file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, Mapping) and len(value) == 1:
        [(kind, name)] = value.items()
        if kind == "env" and isinstance(name, str):
            if name in os.environ:
                return os.environ[name]
            msg = f"{where}: option {option} is to be ${cut(name)}, which is not set. Set it, or take the option away"
            raise SourceError(msg)
        if kind == "file" and isinstance(name, str):
            try:
                return Path(name).expanduser().read_text(encoding="utf-8").strip()
            except OSError as error:
                msg = f"{where}: option {option} is to be what {cut(name)} holds: {error.strerror}. Correct the path"
                raise SourceError(msg) from None
    msg = (
        f'{where}: option {option} is a {type(value).__name__}. Give a text, {{ env = "NAME" }} or {{ file = "path" }}'
    )
    raise SourceError(msg)
