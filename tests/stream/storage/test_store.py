"""The same laws for files, memory and S3; what only one of them does is at the end."""

import logging
import math
import os
import re
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from spiral_stream import use_storage
from spiral_stream.errors import SourceError
from spiral_stream.storage.faults import ChangedError, NotThereError
from spiral_stream.storage.open import store_of
from spiral_stream.storage.profiles import profile_names
from spiral_stream.storage.ranges import coalesced
from spiral_stream.storage.store import Get, Got, Store, what_differs
from tests.fixtures import stores


@pytest.fixture(params=["files", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Store, str]:
    if request.param == "files":
        return store_of(str(tmp_path / "some folder"))
    if request.param == "memory":
        return store_of(f"memory://{tmp_path.name}/below")
    return store_of(request.getfixturevalue("bucket") + "/be low")


def read(uri: str) -> bytes:
    store, key = store_of(uri)
    return bytes(store.get(key).data)


def test_what_was_put_is_read_whole_and_in_ranges(place: tuple[Store, str]) -> None:
    store, at = place
    data = os.urandom(200_000)
    facts = store.put(f"{at}/a.bin", data)
    assert facts is not None
    assert store.stat(f"{at}/a.bin").etag == facts.etag
    asked = [Get(f"{at}/a.bin", 10, 5), Get(f"{at}/a.bin"), Get(f"{at}/a.bin", 199_990, 10), Get(f"{at}/a.bin", 7, 0)]
    asked += [Get(f"{at}/a.bin", 20, 300), Get(f"{at}/a.bin", 100, most_bytes=7)]
    found = store.read(asked)
    assert all(isinstance(each, Got) for each in found)
    parts = [None if each.data is None else bytes(each.data) for each in found]
    assert parts == [data[10:15], data, data[-10:], b"", data[20:320], None]
    assert {each.facts.etag for each in found} == {facts.etag}


def test_bytes_that_are_not_there_are_named_and_the_others_come(place: tuple[Store, str]) -> None:
    store, at = place
    store.put(f"{at}/a", b"12345")
    found = store.read([Get(f"{at}/none"), Get(f"{at}/a", 1, 2), Get(f"{at}/a", 3, 9), Get(f"{at}/a", 80, 9)])
    assert isinstance(found[0], NotThereError)
    assert bytes(found[1].data) == b"23"
    assert "has 5 bytes" in str(found[2])
    assert "80 + 9 were asked for" in str(found[3])
    assert [error.__traceback__ for error in found if isinstance(error, SourceError)] == [None] * 3, "kept, not raised"
    with pytest.raises(NotThereError, match=r"(there is n|N)o such"):
        store.stat(f"{at}/none")


def test_of_several_who_put_an_absent_object_one_wins(place: tuple[Store, str]) -> None:
    store, at = place
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda n: store.put(f"{at}/made", str(n).encode(), absent=True), range(8)))
    [winner] = [n for n, facts in enumerate(done) if facts is not None]
    assert bytes(store.get(f"{at}/made").data) == str(winner).encode()


def test_nobody_overwrites_what_another_wrote_in_between(place: tuple[Store, str]) -> None:
    store, at = place
    key = f"{at}/counter"
    store.put(key, b"0")

    def count(_: int) -> None:
        while True:
            got = store.get(key)
            if store.put(key, str(int(bytes(got.data)) + 1).encode(), unchanged=got.facts) is not None:
                return

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(count, range(12)))
    assert bytes(store.get(key).data) == b"12"
    gone = store.stat(key)
    store.delete(key)
    assert store.put(key, b"1", unchanged=gone) is None


def test_a_prefix_lists_what_lies_below_it(place: tuple[Store, str]) -> None:
    store, at = place
    for name in ("a/1", "a/2", "ab"):
        store.put(f"{at}/{name}", name.encode())
    assert {key: facts.size for key, facts in store.list(f"{at}/a/")} == {f"{at}/a/1": 3, f"{at}/a/2": 3}
    store.delete(f"{at}/a/1")
    store.delete(f"{at}/a/1")
    assert [key for key, _ in store.list(f"{at}/a/")] == [f"{at}/a/2"]


def test_neighbours_are_one_request() -> None:
    wanted = [Get("k", 1_000_000, 10), Get("k", 0, 10), Get("j", 0, 10), Get("k", 500, 10), Get("j"), Get("k", 3, 2)]
    assert sorted(map(sorted, coalesced(wanted))) == [[0], [1, 3, 5], [2], [4]]


# ---- web servers


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    with stores.web_server(tmp_path) as address:
        use_storage("web", prefix=address, allow_http=True, client_max_retries=0, timeout="5s")
        yield address, tmp_path
        use_storage("web", prefix=address)


def test_ranges_of_a_web_server_are_read(web: tuple[str, Path]) -> None:
    address, folder = web
    (folder / "a b").mkdir()
    (folder / "a b" / "c.bin").write_bytes(bytes(range(256)))
    store, key = store_of(f"{address}/a%20b/c.bin")
    assert bytes(store.get(key, 10, 3).data) == bytes((10, 11, 12))
    assert store.stat(key).size == 256
    assert bytes(store.get(key).data) == bytes(range(256))
    with pytest.raises(SourceError, match="lists nothing"):
        list(store.list(""))


# ---- secrets and faults


def test_options_come_from_the_file_the_environment_and_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3_endpoint: str
) -> None:
    bucket = stores.new_bucket(s3_endpoint)
    lines = [
        f'{name} = "{value}"' for name, value in stores.options(s3_endpoint).items() if name != "secret_access_key"
    ]
    file = tmp_path / "storage.toml"
    file.write_text('[lab]\nprefix = "s3://"\nsecret_access_key = { env = "LAB_SECRET" }\n' + "\n".join(lines))
    monkeypatch.setenv("SPIRAL_STORAGE", str(file))
    with pytest.raises(SourceError, match=r"secret_access_key is to be \$LAB_SECRET, which is not set"):
        store_of(f"s3://{bucket}/a")
    monkeypatch.setenv("LAB_SECRET", stores.SECRET)
    store, key = store_of(f"s3://{bucket}/a")
    store.put(key, b"1")
    use_storage("nowhere", prefix=f"s3://{bucket}/private/", endpoint="http://127.0.0.1:9", client_max_retries=0)
    with pytest.raises(SourceError, match="does not answer"):
        store_of(f"s3://{bucket}/private/a")[0].stat("private/a")
    assert store_of(f"s3://{bucket}/a")[0] is store
    use_storage("nowhere", prefix="s3://")


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        (f"https://me:{stores.SECRET}@host/a", "carries a password"),
        (f"https://host/a?X-Amz-Signature={stores.SECRET}", "has a query"),
        ("ftp://host/a", "a scheme that is not known here"),
        ("s3:///a", "names no bucket"),
        ("s3://missing-bucket-of-tests/a", "its bucket is not there"),
    ],
)
def test_a_uri_that_is_wrong_is_named_without_its_secrets(uri: str, words: str, bucket: str, s3_endpoint: str) -> None:
    use_storage("tests", prefix="s3://", **stores.options(s3_endpoint))
    with pytest.raises(SourceError, match=words) as caught:
        read(uri)
    assert stores.SECRET not in str(caught.value)


def test_no_secret_stands_in_an_error_or_a_log(bucket: str, s3_endpoint: str, caplog: pytest.LogCaptureFixture) -> None:
    import traceback

    caplog.set_level(logging.DEBUG)
    wrong = stores.options(s3_endpoint) | {
        "endpoint": f"http://127.0.0.1:9/?sig={stores.SECRET}",
        "client_max_retries": "0",
    }
    use_storage("tests", prefix=bucket, **wrong)
    store, key = store_of(f"{bucket}/a")
    for call in (
        lambda: store.get(key),
        lambda: store.stat(key),
        lambda: store.put(key, b""),
        lambda: list(store.list("")),
    ):
        with pytest.raises(SourceError, match="Check") as caught:
            call()
        said = "".join(traceback.format_exception(caught.value)) + caplog.text + repr(store)
        assert stores.SECRET not in said
        assert stores.KEY_ID not in said
    use_storage("tests", prefix=bucket, nonsense=stores.SECRET)
    with pytest.raises(SourceError, match="options of its profile"):
        store_of(f"{bucket}/a")


COUNTS, TIMES = (
    ("client_max_retries", "download_retry_count", "pool_max_idle_per_host"),
    (
        "timeout",
        "aws_connect_timeout",
        "read_timeout",
        "pool_idle_timeout",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
    ),
)
NO_COUNT = ["", "ten", "-1", "1.5", "1e3", "nan", "10s", -1, 1.5, True, 10**30]
NO_TIME = ["", "10", "30 fortnights", "-1s", "s", "1.5.5s", "5S", 10, 1.5, True]
NO_SECONDS = ["", "10s", "nan", "inf", "1e300", -1, -0.5, math.inf, True]
WRONG_NUMBERS = [
    *((option, value, "a whole number of") for option in COUNTS for value in NO_COUNT),
    *((option, value, "a time with its unit, such as 30s") for option in TIMES for value in NO_TIME),
    *(("client_retry_timeout", value, "a number of seconds, such as 180") for value in NO_SECONDS),
]


@pytest.mark.parametrize(("option", "value", "right"), WRONG_NUMBERS)
def test_an_option_that_is_no_number_or_time_is_named_where_it_is_given(option: str, value: object, right: str) -> None:
    given = "true" if value is True else str(value)
    says = rf"use_storage\('impatient'\): option {option} of its profile is '{re.escape(given)}'\. Give {right}"
    with pytest.raises(SourceError, match=says):
        use_storage("impatient", prefix="s3://impatient", **{option: value})
    assert "impatient" not in profile_names("s3://impatient/a")


@pytest.mark.parametrize(
    "options",
    [
        {"client_max_retries": 0, "download_retry_count": "4", "client_retry_timeout": 0.5},
        {"timeout": "1.5s", "connect_timeout": "1h 30m", "read_timeout": "0", "pool_idle_timeout": "5 sec"},
        {"http2_keep_alive_interval": "10s", "http2_keep_alive_timeout": "200ms", "http2_keep_alive_while_idle": "yes"},
        {"pool_max_idle_per_host": 8, "client_retry_timeout": "1e2", "randomize_addresses": False},
    ],
)
def test_a_right_number_or_time_opens_the_store(options: dict[str, Any]) -> None:
    use_storage("patient", prefix="s3://patient", skip_signature=True, region="eu", **options)
    try:
        store_of("s3://patient/a")
    finally:
        use_storage("patient", prefix="s3://patient")


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        (
            "endpoint",
            "127.0.0.1:5702",
            r"option endpoint .* is '127\.0\.0\.1:5702'\. Give .* such as https://127\.0\.0\.1:5702",
        ),
        ("endpoint", f"me:{stores.SECRET}@host", "option endpoint .* is no address with a scheme"),
        ("aws_endpoint_url", "", "option aws_endpoint_url .* is ''"),
        ("skip_signature", "ja", "option skip_signature .* is 'ja'. Give true or false"),
        ("allow_http", "2", "option allow_http .* is '2'. Give true or false"),
        ("access_key_id", stores.KEY_ID, "has option access_key_id, and no secret_access_key. Give both; or neither"),
    ],
)
def test_a_value_that_the_client_would_not_understand_is_named(
    option: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)

    def used() -> None:
        use_storage("odd", prefix="s3://odd", **{option: value})
        store_of("s3://odd/a")  # where half of a pair of keys is refused, since another profile may give the other half

    try:
        with pytest.raises(SourceError, match=rf"(s3://odd|use_storage\('odd'\)): .*{words}") as caught:
            used()
        assert stores.SECRET not in str(caught.value)
        assert stores.KEY_ID not in str(caught.value)
    finally:
        use_storage("odd", prefix="s3://odd")


def test_an_address_of_the_environment_without_a_scheme_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "127.0.0.1:9")
    given = stores.options("")
    del given["endpoint"]
    use_storage("odd", prefix="s3://odd2", **given)
    try:
        store, key = store_of("s3://odd2/a")
        with pytest.raises(SourceError, match="AWS_ENDPOINT_URL"):
            store.stat(key)
    finally:
        use_storage("odd", prefix="s3://odd2")


def test_http_without_encryption_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spiral_stream.storage.retry.count", lambda **_: pytest.fail("it was tried again"))
    use_storage("plain", prefix="http://127.0.0.1:9/", timeout="5s")
    try:
        store, key = store_of("http://127.0.0.1:9/a.jpg")
        for call in (lambda: store.stat(key), lambda: store.get(key)):
            with pytest.raises(SourceError, match=r"begins with http://.*allow_http = true"):
                call()
    finally:
        use_storage("plain", prefix="http://127.0.0.1:9/")


def test_only_what_differs_is_said_of_an_object_that_changed() -> None:
    assert what_differs(2470, 2480, '"b"') == "it had 2,470 bytes, now 2,480"
    assert what_differs(2470, 2470, '"b"') == 'it has another etag ("b")'
    assert what_differs(2470, 2470, None) == "it has another time"


def test_a_changed_object_is_no_match(bucket: str) -> None:
    store, key = store_of(f"{bucket}/a")
    old = store.put(key, b"old")
    store.put(key, b"new")
    assert store.put(key, b"mine", unchanged=old) is None
    assert issubclass(ChangedError, SourceError)


class Page(BaseHTTPRequestHandler):
    """Answers everything with a page, and status 200."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", "18")
        self.end_headers()
        self.wfile.write(b"<html>login</html>")

    def log_message(self, *_: object) -> None:
        pass


def test_a_page_in_place_of_a_file_is_warned_of_once_per_host() -> None:
    server = HTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    root = f"http://127.0.0.1:{server.server_port}"
    use_storage("pages", prefix=f"{root}/", allow_http=True)
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for name in ("a.html", "a.jpg", "b.jpg"):
                store, key = store_of(f"{root}/{name}")
                store.get(key)
        assert [str(each.message).partition(": ")[0] for each in said] == [f"{root}/a.jpg"]
        assert "a web page (text/html)" in str(said[0].message)
    finally:
        use_storage("pages", prefix=f"{root}/")
        server.shutdown()
        server.server_close()
