"""Options of stores, such as region and credentials: from the program, from named profiles in a file, and from the environment.

One set of options serves Spiral and Lance; the names are those that Lance takes as ``storage_options``, such as
``region``, ``endpoint`` and ``secret_access_key``. A profile says by its prefix which URIs it is for, so a catalog or a plan
holds URIs only, and never an option. A profile takes what it does not say from those with a shorter prefix. An option that a
program gives stands before the file's, and both before the environment, which the client libraries read themselves
(``AWS_...``, ``GOOGLE_...``, ``AZURE_...``).

No value of an option is ever shown: a profile prints its name and the names of its options, and `redacted` takes the
values of secrets out of messages of other libraries.

Lance ignores options whose name it does not know. So a name that is nearly one of those that stores have is refused as a
slip, and so are values that the client would take apart late; other names are passed on.
"""

import difflib
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
from urllib.parse import urlsplit

from spiral_stream.arguments import door
from spiral_stream.errors import SourceError, cut, shown
from spiral_stream.storage.uri import is_object, parse_uri, printable

PREFIXES: Final = ("aws_", "azure_", "google_")  # that an option may have
YES: Final = frozenset(("true", "1", "yes", "y", "on"))
_NO: Final = frozenset(("false", "0", "no", "n", "off"))
FLAGS: Final = frozenset(
    (
        "allow_http",
        "allow_invalid_certificates",
        "disable_bulk_delete",
        "disable_tagging",
        "http1_only",
        "http2_keep_alive_while_idle",
        "http2_only",
        "imdsv1_fallback",
        "randomize_addresses",
        "request_payer",
        "s3_express",
        "skip_signature",
        "sse_bucket_key_enabled",
        "unsigned_payload",
        "use_azure_cli",
        "use_emulator",
        "use_fabric_endpoint",
        "virtual_hosted_style_request",
    )
)
_TIMES: Final = frozenset(
    (
        "connect_timeout",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "pool_idle_timeout",
        "read_timeout",
        "timeout",
    )
)
_COUNTS: Final = {
    "client_max_retries": "repetitions, such as 10",
    "download_retry_count": "repetitions, such as 3",
    "pool_max_idle_per_host": "connections, such as 8",
}
_DEADLINE: Final = "client_retry_timeout"
_LONGEST_S: Final = 10**9  # a deadline: 30 years
_COUNT: Final = re.compile(r"[0-9]{1,18}")
_UNITS: Final = "nsec|ns|usec|us|µs|msec|millis|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d|weeks?|w"
_TIME: Final = re.compile(rf"\s*(0|([0-9]{{1,12}}(\.[0-9]{{1,9}})?\s*({_UNITS})\s*)+)\s*")
_ADDRESSES: Final = frozenset(("endpoint", "endpoint_url", "storage_endpoint"))
_PLAIN: Final = re.compile(r"[\w.:/\[\]-]*")  # an address in which no password and no signature can be
_KEYS: Final = ("access_key_id", "secret_access_key")
OF_LANCE: Final = frozenset(("download_retry_count", "request_timeout"))  # that no other client knows
_NAMES: Final = FLAGS | _ADDRESSES | OF_LANCE | frozenset((*_KEYS, *_TIMES, *_COUNTS, _DEADLINE))
_OTHERS: Final = """
    access_key account_key account_name application_credentials authority_host authority_id base_url bearer_token bucket
    bucket_name checksum_algorithm client_id client_secret conditional_put container_authorization_token_file
    container_credentials_full_uri container_credentials_relative_uri container_name copy_if_not_exists credential_type
    default_content_type default_headers default_region encryption_key endpoint_url_s3 endpoint_url_sts
    fabric_cluster_identifier fabric_session_token fabric_token_service_url fabric_workload_host federated_token_file
    identity_endpoint master_key metadata_endpoint msi_endpoint msi_resource_id object_id proxy_ca_certificate
    proxy_excludes proxy_url region role_arn role_session_name root_certificate sas_key sas_token server_side_encryption
    service_account service_account_key service_account_path session_token sse_customer_key_base64 sse_kms_key_id
    sts_endpoint tenant_id token user_agent web_identity_token_file
"""
_KNOWN: Final = _NAMES | frozenset(_OTHERS.split())
_NEAR: Final = 0.8  # of 1, where names are equal: one wrong letter or two


def bare(name: str) -> str:
    """Return an option's name without the prefix of its store."""
    return next((name[len(each) :] for each in PREFIXES if name.startswith(each)), name)


def need_values(root: str, options: Mapping[str, str]) -> None:
    """Refuse a slip in a name, a flag, number, time or address that is none, and half of a pair of keys.

    Args:
        root: of the store, for messages.
        options: of its profiles.

    Raises:
        SourceError: names the option, and what would be right.
    """
    where = cut(printable(root))
    need_valid(where, options)
    given = {bare(name) for name in options} & set(_KEYS)
    if len(given) == 1 and not any(f"AWS_{each.upper()}" in os.environ for each in set(_KEYS) - given):
        [missing] = set(_KEYS) - given
        msg = f"{where}: its profile has option {given.pop()}, and no {missing}. Give both; or neither of them, and "
        raise SourceError(msg + "skip_signature = true where no credentials are needed")


def need_valid(where: str, options: Mapping[str, str]) -> None:
    """Refuse options that are wrong by themselves, whatever else a store is given.

    Args:
        where: how messages begin.
        options: of one profile.

    Raises:
        SourceError: names the option, and what would be right.
    """
    for name, value in options.items():
        _need_name(where, name)
        if bare(name) in FLAGS and value.lower() not in YES | _NO:
            msg = f"{where}: option {name} of its profile is {shown(value)}. Give true or false"
            raise SourceError(msg)
        right = _right_number(bare(name), value)
        if right is not None:
            msg = f"{where}: option {name} of its profile is {shown(value)}. Give {right}"
            raise SourceError(msg)
        if bare(name) in _ADDRESSES and not _is_address(value):
            found = shown(value) if _PLAIN.fullmatch(value) else "no address with a scheme"
            host = value if re.fullmatch(r"[\w.-]+(:\d+)?", value) else "minio.lab:9000"
            msg = f"{where}: option {name} of its profile is {found}. Give it with its scheme, such as https://{host}"
            raise SourceError(msg)


def _right_number(option: str, value: str) -> str | None:
    """Say what would be right for an option that is a number or a time; None if it is, or if the option is neither."""
    if option in _COUNTS:
        return None if _COUNT.fullmatch(value) else f"a whole number of {_COUNTS[option]}"
    if option in _TIMES:
        return None if _TIME.fullmatch(value) else "a time with its unit, such as 30s"
    if option == _DEADLINE:
        with suppress(ValueError):
            if 0 <= float(value) <= _LONGEST_S:
                return None
        return "a number of seconds, such as 180"
    return None


def _need_name(where: str, name: str) -> None:
    """Refuse a name that nearly is one of an option."""
    wanted = bare(name.lower()).removeprefix("storage_")  # as in azure_storage_account_name
    near = [] if wanted in _KNOWN else difflib.get_close_matches(wanted, _KNOWN, 1, _NEAR)
    if near:
        msg = f"{where}: no store has option {cut(name)} of its profile. Write {near[0]}"
        raise SourceError(msg)


def _is_address(value: str) -> bool:
    try:
        parts = urlsplit(value)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc)


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
    need_valid(where, made.options)
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
    profile_file = os.environ.get(FILE_ENV)
    if not profile_file:
        return ()
    path = Path(profile_file).expanduser()
    try:
        facts = path.stat()
    except OSError:
        return _read(profile_file, path)
    return _checked_profiles(profile_file, path, (facts.st_ino, facts.st_mtime_ns, facts.st_size))


@lru_cache(maxsize=4)
def _checked_profiles(file_name: str, path: Path, facts: tuple[int, ...]) -> tuple[StorageProfile, ...]:
    del facts
    return _read(file_name, path)


def _read(file_name: str, path: Path) -> tuple[StorageProfile, ...]:
    where = f"${FILE_ENV}={cut(file_name)}"
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
        parse_uri(prefix)
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
