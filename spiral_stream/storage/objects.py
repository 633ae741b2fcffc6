"""Object stores and web servers, by the client ``obstore`` (Rust's ``object_store``).

The requests of one call run together, at most `IN_FLIGHT` of them; the thread that calls waits for all. What fails on the
way is asked for again, with growing pauses, until a deadline (``client_retry_timeout``, in seconds): reads by `patience`,
writes and lists by the client. Every answer carries the facts of its object, so that a changed one is found without a
further request.
"""

import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from datetime import timedelta
from functools import partial
from io import BytesIO
from pathlib import Path
from time import perf_counter
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar, final

from spiral_stream.errors import SourceError, anew, cut, is_failure
from spiral_stream.extras import need
from spiral_stream.storage.counters import count, count_answer
from spiral_stream.storage.faults import fault, not_the_store, warn_of_page
from spiral_stream.storage.local import too_short
from spiral_stream.storage.profiles import FLAGS, OF_LANCE, YES, bare, need_values
from spiral_stream.storage.ranges import coalesced
from spiral_stream.storage.retry import Patience, ShortError
from spiral_stream.storage.store import Buffer, Get, Got, ObjectStat, Store
from spiral_stream.storage.uri import WEB, printable, scheme_of
from spiral_stream.threads import Stopped, stop_requested

if TYPE_CHECKING:
    from obstore.store import ObjectStore

IN_FLIGHT: Final = 32  # requests of one call
_CLIENT: Final = frozenset(  # options of the connection; the others are those of the store
    (
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_headers",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "randomize_addresses",
        "read_timeout",
        "root_certificate",
        "timeout",
        "user_agent",
    )
)
MOST_PARTS: Final = 9_000  # of one object: stores take 10,000
PART_BYTES: Final = 8 << 20  # a larger file is written in parts
PARTS: Final = 8  # in flight
_LOOK_S: Final = 0.25  # how often a thread that waits looks whether it was told to stop
_OURS: Final = frozenset(("client_max_retries", "client_retry_timeout"))
T = TypeVar("T")


@final
class Objects(Store):
    """One bucket, container or host."""

    def __init__(self, root: str, options: Mapping[str, str]) -> None:
        """Open it; asks nothing of it.

        Raises:
            MissingExtraError: ``obstore`` is not installed.
            SourceError: an option is none, or some are missing.
        """
        need("obstore", f"reading {scheme_of(root)}:// URIs", "copy the data, and use local paths")
        need_values(root, options)
        self._root, self._pid = root, os.getpid()
        self._patience = _patience(options)
        self._store = _opened(root, options, self._patience)  # that writes and lists
        self._reads = _opened(root, options, Patience(0, self._patience.timeout_s))

    def stat(self, key: str) -> ObjectStat:
        self._need_same_process()
        [(facts, _)] = _together([self._patience.tried(partial(self.head, key), self._uri(key), "looked at")])
        return facts

    def read(self, wanted: Sequence[Get]) -> list[Got | SourceError]:
        self._need_same_process()
        found: list[Got | SourceError | None] = [None] * len(wanted)
        runs = coalesced(wanted)
        answers = [self._run(wanted, run) for run in runs]
        for run, answer in zip(runs, _together(answers), strict=True):
            for at, each in zip(run, answer, strict=True):
                found[at] = each
        return [each for each in found if each is not None]

    async def _run(self, wanted: Sequence[Get], run: Sequence[int]) -> list[Got | SourceError]:
        """One request for neighbours of one object."""
        requests = [wanted[at] for at in run]
        key, start = requests[0].key, requests[0].start
        is_all = requests[0].length is None
        stop = max(each.start + (each.length or 0) for each in requests)
        try:
            facts, data = await self.get_range(key, start, None if is_all else stop, requests[0].most_bytes)
        except SourceError as error:
            return [anew(error)] * len(requests)
        out: list[Got | SourceError] = []
        for each in requests:
            if data is None:
                out.append(Got(None, facts))
                continue
            end = len(data) if each.length is None else each.start - start + each.length
            if end > len(data):
                out.append(too_short(printable(self._uri(key)), facts.size, each.start, each.length or 0))
            else:
                out.append(Got(data[each.start - start : end], facts))
        return out

    async def get_range(
        self, key: str, start: int, stop: int | None, most: int | None
    ) -> tuple[ObjectStat, memoryview | None]:
        ask = partial(self.head, key) if stop == start else partial(self._once, key, start, stop, most)
        return await self._patience.tried(ask, self._uri(key), "read")

    async def head(self, key: str) -> tuple[ObjectStat, memoryview | None]:
        import obstore

        begun = perf_counter()
        count(requests=1)
        meta = await obstore.head_async(self._reads, key)
        count_answer(perf_counter() - begun)
        return self._known(key, meta), memoryview(b"")

    async def _once(
        self, key: str, start: int, stop: int | None, most: int | None
    ) -> tuple[ObjectStat, memoryview | None]:
        import obstore

        span: Any = {"offset": start} if stop is None else (start, stop)
        begun = perf_counter()
        count(requests=1)
        try:
            answer = await obstore.get_async(
                self._reads, key, options={} if stop is None and not start else {"range": span}
            )
        except Exception as error:
            if "status code: 416" not in str(error):
                raise
            return await self.head(key)  # it ends before the range
        count_answer(perf_counter() - begun)
        facts = self._known(key, answer.meta)
        if scheme_of(self._root) in WEB:
            warn_of_page(self._root, key, answer.attributes)
        if stop is None and most is not None and facts.size - start > most:
            return facts, None
        data = memoryview(await answer.bytes_async())
        count(bytes=len(data))
        first, last = answer.range
        if len(data) != last - first:
            msg = f"{len(data):,} bytes came of {last - first:,}"
            raise ShortError(msg)
        return facts, data

    def _known(self, key: str, meta: Any) -> ObjectStat:
        facts = _facts(meta)
        if facts.etag is None and not facts.modified_ns and scheme_of(self._root) not in WEB:
            raise not_the_store(self._uri(key))
        return facts

    def list(self, prefix: str, ending: str = "") -> Iterator[tuple[str, ObjectStat]]:
        import obstore

        self._need_same_process()
        if scheme_of(self._root) in WEB:
            where = cut(printable(self._uri(prefix)))
            msg = (
                f"{where}: a web server lists nothing. Name the files one by one, or by a pattern such as {{000..127}}"
            )
            raise SourceError(msg)
        with _StoreErrors(self._uri(prefix), "listed"):
            parts = iter(obstore.list(self._store, prefix=prefix.rstrip("/") or None))
        while True:
            with self._waiting(prefix, "listed"):
                part = next(parts, None)
            if part is None:
                return
            for each in part:
                if each["path"].startswith(prefix) and each["path"].endswith(ending):
                    yield each["path"], _facts(each)

    def put(
        self, key: str, data: Buffer, *, absent: bool = False, unchanged: ObjectStat | None = None
    ) -> ObjectStat | None:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        self._need_same_process()
        mode: Any = "create" if absent else "overwrite"
        if unchanged is not None:
            mode = {"e_tag": unchanged.etag} | ({"version": unchanged.version} if unchanged.version else {})
        payload = bytes(data)
        with self._waiting(key, "written") as answered:
            large = mode == "overwrite" and len(payload) > PART_BYTES
            given: Any = _parts(BytesIO(payload), PART_BYTES, answered) if large else payload
            try:
                done = obstore.put(self._store, key, given, mode=mode, use_multipart=large, chunk_size=PART_BYTES)
            except (AlreadyExistsError, PreconditionError):
                return None
            except FileNotFoundError:
                if unchanged is None:
                    raise
                return None
            return ObjectStat(len(payload), done["e_tag"], done["version"])

    def put_file(self, key: str, path: Path) -> None:
        import obstore

        self._need_same_process()
        size = path.stat().st_size
        part = max(PART_BYTES, -(-size // MOST_PARTS))
        with self._waiting(key, "written") as answered, path.open("rb") as file:
            given: Any = _parts(file, part, answered) if size > part else path
            obstore.put(self._store, key, given, chunk_size=part, max_concurrency=PARTS)

    def delete(self, key: str) -> None:
        import obstore

        self._need_same_process()
        with self._waiting(key, "deleted"):
            try:
                obstore.delete(self._store, key)
            except FileNotFoundError:
                return

    @contextmanager
    def _waiting(self, key: str, doing: str) -> Iterator[Callable[[], None]]:
        """While the client is called: say so if it waits for long (`Patience.telling`), and turn its errors into ours."""
        uri = self._uri(key)
        with _StoreErrors(uri, doing), self._patience.telling(uri) as answered:
            yield answered

    def _uri(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _need_same_process(self) -> None:
        if os.getpid() != self._pid:  # the client's threads are not there, so a request would never end
            msg = (
                f"{cut(printable(self._root))}: it was opened before this process was forked, and no connection outlives that. "
                'Start processes with "spawn" or "forkserver"'
            )
            raise SourceError(msg)


def _parts(file: IO[bytes], size: int, answered: Callable[[], None]) -> Iterator[bytes]:
    """Yield the parts of a file; a further one is taken when the store has answered for an earlier one."""
    while data := file.read(size):
        answered()
        yield data


@final
class _StoreErrors:
    """Turn the client's errors into ours. Panics of Rust are no `Exception`, and count too."""

    def __init__(self, uri: str, doing: str) -> None:
        self._uri, self._doing = uri, doing

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, SourceError):
            return
        if is_failure(error):
            raise fault(self._uri, error, self._doing) from None


def _patience(options: Mapping[str, str]) -> Patience:
    usual = Patience()
    retries, timeout_s = options.get("client_max_retries"), options.get("client_retry_timeout")
    return Patience(
        usual.retries if retries is None else int(retries), usual.timeout_s if timeout_s is None else float(timeout_s)
    )


def _opened(root: str, options: Mapping[str, str], patience: Patience) -> "ObjectStore":
    from obstore.store import from_url

    config: Any = {}
    client: dict[str, Any] = {}
    retry: Any = {"max_retries": patience.retries, "retry_timeout": timedelta(seconds=patience.timeout_s)}
    for name, value in options.items():
        if name in _OURS or name in OF_LANCE:
            continue
        if (option := bare(name)) in _CLIENT:
            client[option] = value.lower() in YES if option in FLAGS else value
        else:
            config[name] = value
    with _StoreErrors(root, "opened"):
        given: dict[str, Any] = {"client_options": client or None, "retry_config": retry}
        if scheme_of(root) in WEB:
            return from_url(root, **given)
        return from_url(root, config=config or None, **given)


def _together(answers: "Sequence[Coroutine[Any, Any, T]]") -> list[T]:
    """Run requests at the same time, and wait for all."""
    import asyncio

    async def bounded() -> list[T]:
        slots = asyncio.Semaphore(IN_FLIGHT)

        async def one(answer: "Coroutine[Any, Any, T]") -> T:
            async with slots:
                return await answer

        all_of_them = asyncio.gather(*(one(each) for each in answers))
        while not (await asyncio.wait((all_of_them,), timeout=_LOOK_S))[0]:
            if stop_requested():
                all_of_them.cancel()
                with suppress(asyncio.CancelledError):
                    await all_of_them
                raise Stopped
        return all_of_them.result()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(bounded())
    done: list[list[T]] = []  # called inside of a loop, as in a notebook: it may not be entered again
    failed: list[BaseException] = []

    def work() -> None:
        try:
            done.append(asyncio.run(bounded()))
        except BaseException as error:  # noqa: BLE001  raised again below
            failed.append(error)

    helper = threading.Thread(target=copy_context().run, args=(work,), name="spiral-store", daemon=True)
    helper.start()
    helper.join()
    if failed:
        raise failed.pop()
    return done[0]


def _facts(meta: Any) -> ObjectStat:
    when = meta["last_modified"]
    modified = 0 if when is None else int(when.timestamp()) * 10**9 + when.microsecond * 1000
    return ObjectStat(meta["size"], meta["e_tag"], meta["version"], modified)
