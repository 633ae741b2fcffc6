"""Options that a store's client would pass over, take apart late, or refuse in words that name no option.

Lance passes over every option whose name it does not know. So a name that is nearly one of those that stores have is taken
for a slip; other names are passed on.
"""

import difflib
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from spiral_stream.errors import SourceError, cut, shown
from spiral_stream.storage.uri import printable

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
    need_each(where, options)
    given = {bare(name) for name in options} & set(_KEYS)
    if len(given) == 1 and not any(f"AWS_{each.upper()}" in os.environ for each in set(_KEYS) - given):
        [missing] = set(_KEYS) - given
        msg = f"{where}: its profile has option {given.pop()}, and no {missing}. Give both; or neither of them, and "
        raise SourceError(msg + "skip_signature = true where no credentials are needed")


def need_each(where: str, options: Mapping[str, str]) -> None:
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
    asked = bare(name.lower()).removeprefix("storage_")  # as in azure_storage_account_name
    near = [] if asked in _KNOWN else difflib.get_close_matches(asked, _KNOWN, 1, _NEAR)
    if near:
        msg = f"{where}: no store has option {cut(name)} of its profile. Write {near[0]}"
        raise SourceError(msg)


def _is_address(value: str) -> bool:
    try:
        parts = urlsplit(value)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc)
