"""Values of options that a store's client would take apart late, or refuse in words that name no option."""

import os
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from spiral_stream.errors import SourceError, cut, shown
from spiral_stream.storage.uri import printable

PREFIXES: Final = ("aws_", "azure_", "google_")  # that an option may have
YES: Final = frozenset(("true", "1", "yes", "y", "on"))
_NO: Final = frozenset(("false", "0", "no", "n", "off"))
_FLAGS: Final = frozenset(
    (
        "allow_http",
        "allow_invalid_certificates",
        "disable_tagging",
        "http1_only",
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
_ADDRESSES: Final = frozenset(("endpoint", "endpoint_url", "storage_endpoint"))
_PLAIN: Final = re.compile(r"[\w.:/\[\]-]*")  # an address in which no password and no signature can be
_KEYS: Final = ("access_key_id", "secret_access_key")


def bare(name: str) -> str:
    """Return an option's name without the prefix of its store."""
    return next((name[len(each) :] for each in PREFIXES if name.startswith(each)), name)


def need_values(root: str, options: Mapping[str, str]) -> None:
    """Refuse an address without a scheme, a flag that is neither yes nor no, and half of a pair of keys.

    Args:
        root: of the store, for messages.
        options: of its profiles.

    Raises:
        SourceError: names the option, and what would be right.
    """
    where = cut(printable(root))
    for name, value in options.items():
        if bare(name) in _FLAGS and value.lower() not in YES | _NO:
            msg = f"{where}: option {name} of its profile is {shown(value)}. Give true or false"
            raise SourceError(msg)
        if bare(name) in _ADDRESSES and not _is_address(value):
            found = shown(value) if _PLAIN.fullmatch(value) else "no address with a scheme"
            host = value if re.fullmatch(r"[\w.-]+(:\d+)?", value) else "minio.lab:9000"
            msg = f"{where}: option {name} of its profile is {found}. Give it with its scheme, such as https://{host}"
            raise SourceError(msg)
    given = {bare(name) for name in options} & set(_KEYS)
    if len(given) == 1 and not any(f"AWS_{each.upper()}" in os.environ for each in set(_KEYS) - given):
        [missing] = set(_KEYS) - given
        msg = f"{where}: its profile has option {given.pop()}, and no {missing}. Give both; or neither of them, and "
        raise SourceError(msg + "skip_signature = true where no credentials are needed")


def _is_address(value: str) -> bool:
    try:
        parts = urlsplit(value)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc)
