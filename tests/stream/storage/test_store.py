"""The same laws for files, memory and S3; what only one of them does is at the end."""

import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spiral_stream.errors import SourceError
from spiral_stream.storage.faults import ChangedError, NotThereError
from spiral_stream.storage.opening import store_of
from spiral_stream.storage.profiles import use_storage
from spiral_stream.storage.store import Get, Got, Store, runs_of
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
    with pytest.raises(NotThereError, match="there is no such"):
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
    assert sorted(map(sorted, runs_of(wanted))) == [[0], [1, 3, 5], [2], [4]]


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


def test_a_changed_object_is_no_match(bucket: str) -> None:
    store, key = store_of(f"{bucket}/a")
    old = store.put(key, b"old")
    store.put(key, b"new")
    assert store.put(key, b"mine", unchanged=old) is None
    assert issubclass(ChangedError, SourceError)
