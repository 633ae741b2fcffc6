"""What a store's client says, in our words. Its own words are not passed on: they quote requests, and with them secrets."""

import re
from typing import Final

from spiral_stream.errors import SourceError, cut
from spiral_stream.storage.profiles import profile_names, redacted
from spiral_stream.storage.uri import printable

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
_TIMES: Final = ("operation timed out", "Timeout", "timed out")


class NotThereError(SourceError):
    """There is no such object."""


class ChangedError(SourceError):
    """An object is not the one that was asked for."""


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
    if isinstance(error, FileNotFoundError):
        missing = "its bucket is not there" if code and "Bucket" in code[1] else "there is no such object"
        return NotThereError(f"{where}: {missing}{answer}. Correct the URI, or put the object there")
    if kind == "PreconditionError":
        msg = (
            f"{where}: it changed while it was used: another object has its name now. Take the data as it is now with "
        )
        return ChangedError(msg + "catalog.refresh(<name>), or restore the object")
    if kind in ("PermissionDeniedError", "UnauthenticatedError") or (status and status[1] in ("401", "403")):
        names = profile_names(uri)
        by = f"with profile {', '.join(names)}" if names else "with the options of the environment"
        msg = f"{where}: may not be {doing} {by}{answer}. Check the credentials, whether they have expired, and their rights"
        return SourceError(msg)
    if "retries" in text or "error sending request" in text or any(each in text for each in _TIMES):
        what = "the store does not answer" if not said else "the store fails"
        msg = f"{where}: {what}{answer}. Check its address (endpoint) and the network, or wait; a saved state resumes"
        return SourceError(msg)
    first = redacted(text.splitlines()[0] if text else kind)
    return SourceError(
        f"{where}: cannot be {doing}{answer}: {cut(first)}. Check the URI and the options of its profile"
    )
