"""Errors of a store's client as Spiral's errors, in words that hold no secret: the client's own words quote requests.

Some web servers send a page with status 200 in place of a file: a login, or a text that says what is missing. That is
refused here, too.
"""

import re
import threading
from collections.abc import Mapping
from typing import Any, Final

from spiral_stream.errors import SourceError, cut, warn
from spiral_stream.storage.profiles import profile_names, redacted
from spiral_stream.storage.uri import printable

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
_DENIED: Final = frozenset(  # what stores answer with status 400 for credentials
    (
        "AuthenticationFailed",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "RequestExpired",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    )
)
_SKEWED: Final = frozenset(("RequestInTheFuture", "RequestTimeTooSkewed"))
PLAIN_HTTP: Final = "BadScheme"  # in messages of the client: it may not send what is not encrypted
_SILENT: Final = ("HTTP error", "error sending request", "timed out", "Timeout", "body error")


class NotThereError(SourceError):
    """There is no such object."""


class ChangedError(SourceError):
    """An object is not the one that was asked for."""


class AwayError(SourceError):
    """A store failed until the deadline, lets nobody in, or is another one: no object is to blame."""


def fault(uri: str, error: BaseException, doing: str) -> SourceError:
    """Return the error for a request that failed, for ``raise ... from None``.

    Args:
        uri: of the object.
        error: as the client raised it.
        doing: what was asked of the store, such as ``"read"``.
    """
    text, kind = str(error), type(error).__name__
    where = cut(printable(uri))
    status, code = _STATUS.search(text), _CODE.search(text)
    said = ", ".join([*([f"status {status[1]}"] if status else []), *([code[1]] if code else [])])
    answer = f" (the store answered {said})" if said else ""
    if isinstance(error, FileNotFoundError) or (code and code[1] == "NoSuchBucket"):
        missing = "its bucket is not there" if code and "Bucket" in code[1] else "there is no such object"
        return NotThereError(f"{where}: {missing}{answer}. Correct the URI, or put the object there")
    if kind == "PreconditionError":
        msg = (
            f"{where}: it changed while it was used: another object has its name now. Take the data as it is now with "
        )
        return ChangedError(msg + "catalog.refresh(<name>), or restore the object")
    if denied := _denied(kind, status and status[1], code and code[1]):
        names = profile_names(uri)
        by = f"with profile {', '.join(names)}" if names else "with the options of the environment"
        nobody = code and code[1] in _DENIED | _SKEWED
        return (AwayError if nobody else SourceError)(f"{where}: may not be {doing} {by}{answer}. {denied}")
    if "non-partial response" in text:
        msg = (
            f"{where}: another answer came than the bytes that were asked for: its server knows no ranges, or a proxy answers "
            "with a page of its own. Open the address in a browser, and read past the proxy"
        )
        return SourceError(msg)
    if kind == "TimeoutError" or (status and status[1] >= "500") or any(each in text for each in _SILENT):
        what = "the store does not answer" if not said else "the store fails"
        way = "Check its address (endpoint) and the network, or wait; a saved state resumes"
        if PLAIN_HTTP in text:
            what = f"cannot be {doing}: its address begins with http://, without encryption"
            way = "Give https://, or allow_http = true in a profile of storage"
        return AwayError(f"{where}: {what}{answer}. {way}")
    if "panicked" in text or kind == "PanicException":  # in Rust: an address is what it breaks at
        text = "the store's client broke off. An address (endpoint, or AWS_ENDPOINT_URL of the environment) begins with https://"
    first = redacted(text.splitlines()[0] if text else kind)
    return SourceError(
        f"{where}: cannot be {doing}{answer}: {cut(first)}. Check the URI and the options of its profile"
    )


def _denied(kind: str, status: str | None, code: str | None) -> str:
    """Return the way out where a store did not let somebody in; "" for another failure."""
    if code in _SKEWED:
        return "The clocks differ: set the clock of this machine"
    if kind in ("PermissionDeniedError", "UnauthenticatedError") or status in ("401", "403") or code in _DENIED:
        return "Check the credentials, whether they have expired, and their rights"
    return ""


def not_the_store(uri: str) -> SourceError:
    """Return the error for an answer that no store gives: it has neither an etag nor a time."""
    msg = (
        f"{cut(printable(uri))}: the answer is not the store's: it has no etag, as the page of a proxy or of a login. "
        "Check the address (endpoint), and read past the proxy"
    )
    return AwayError(msg)


_NAMES: Final = (".htm", ".html", ".xhtml")
_HOSTS: Final[set[str]] = set()  # that were warned of
_LOCK: Final = threading.Lock()


def warn_of_page(root: str, key: str, attributes: Mapping[str, Any]) -> None:
    """Warn, once per host, of a page under a name that says otherwise. No error: some servers give every file that type.

    Args:
        root: of the web server.
        key: of the file.
        attributes: what the answer says of its content.
    """
    kind = next((str(value) for name, value in attributes.items() if name.lower() == "content-type"), "")
    if not kind.lower().startswith("text/html") or key.lower().endswith(_NAMES):
        return
    with _LOCK:
        if root in _HOSTS:
            return
        _HOSTS.add(root)
    msg = (
        f"{cut(printable(f'{root}/{key}'))}: the server says that this is a web page (text/html), as of a login or a missing "
        "file. Open the address in a browser; a server that gives every file this type can be left as it is"
    )
    warn(msg)
