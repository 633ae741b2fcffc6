"""What a URI names, which options it has, and how long its store is waited for."""

import asyncio
import re
import secrets
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream import use_storage
from spiral_stream.errors import SourceError
from spiral_stream.storage import retry as patience
from spiral_stream.storage.objects import Objects
from spiral_stream.storage.open import store_of
from spiral_stream.storage.profiles import need_values, options_of
from spiral_stream.storage.store import Get, Got
from spiral_stream.storage.uri import joined, parse_uri
from tests.fixtures import stores
from tests.fixtures.fault_proxy import FaultProxy, fault_proxy
from tests.fixtures.waits import once, until


@pytest.mark.parametrize("key", ["a//b", "/a", "./a", "a/./b", "a/../b", "..", "a/.."])
def test_keys_that_clients_take_for_others_are_refused(key: str) -> None:
    with pytest.raises(SourceError, match="keys with an empty part"):
        parse_uri(f"s3://bucket/{key}")


@pytest.mark.parametrize("key", ["a/b", "a/", "a.b/.c", "...", "a/..b", ""])
def test_keys_that_stand_for_themselves_are_kept(key: str) -> None:
    assert parse_uri(f"s3://bucket/{key}").key == key


def test_a_relative_reference_with_an_empty_part_names_no_other_object() -> None:
    assert joined("s3://bucket/d/", "./a/b.bin") == "s3://bucket/d/a/b.bin"
    with pytest.raises(SourceError, match="keys with an empty part"):
        joined("s3://bucket/d", "a//b.bin")


def test_a_profile_takes_what_it_does_not_say_from_shorter_prefixes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "storage.toml"
    monkeypatch.setenv("SPIRAL_STORAGE", str(place))
    place.write_text('[all]\nprefix="s3://"\nregion="r"\nendpoint="https://one"\n[x]\nprefix="s3://x"\nregion="s"\n')
    assert options_of("s3://x/key") == {"region": "s", "endpoint": "https://one"}
    assert options_of("s3://y/key") == {"region": "r", "endpoint": "https://one"}
    place.write_text(place.read_text() + '[again]\nprefix="s3://x/"\n')  # the file is read again when it changed
    with pytest.raises(SourceError, match="profiles x and again have the same prefix"):
        options_of("s3://x/key")


SLIPS = {
    "regoin": "region",
    "aws_secret_acess_key": "secret_access_key",
    "endpont": "endpoint",
    "Virtual_Hosted_Style_Requests": "virtual_hosted_style_request",
    "azure_storage_acount_name": "account_name",
    "google_service_acount": "service_account",
    "client_max_retry": "client_max_retries",
}


@pytest.mark.parametrize(("given", "right"), SLIPS.items())
def test_a_slip_in_the_name_of_an_option_is_refused_for_lance_and_for_objects(
    given: str, right: str, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lance.write_dataset(pa.table({"a": [1]}), f"{bucket}/a.lance", storage_options=options_of(bucket))
    file = tmp_path / "profiles.toml"
    file.write_text(f'[slip]\nprefix = "{bucket}/a.lance"\n"{given}" = "1"\n')
    monkeypatch.setenv("SPIRAL_STORAGE", str(file))

    for look in (lambda: sp.Lance(f"{bucket}/a.lance").open(), lambda: store_of(f"{bucket}/a.lance/x")):
        with pytest.raises(SourceError, match=f"no store has option {given} of its profile. Write {right}"):
            look()
    with pytest.raises(SourceError, match=f"Write {right}"):
        sp.sources.Writer(f"{bucket}/a.lance", pa.schema([("a", pa.int64())]))
    with pytest.raises(SourceError, match=rf"use_storage\('slip'\): .*{given}.*Write {right}"):
        use_storage("slip", prefix=f"{bucket}/a.lance", **{given: "1"})


def test_options_that_lance_alone_knows_and_others_reach_it(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lance.write_dataset(pa.table({"a": [1]}), f"{bucket}/a.lance", storage_options=options_of(bucket))
    given: list[dict[str, str]] = []
    opened = lance.dataset

    def opening(uri: str, **options: Any) -> Any:
        given.append(options["storage_options"])
        return opened(uri, **options)

    monkeypatch.setattr(lance, "dataset", opening)
    for option in ("download_retry_count", "headers.x-team"):
        use_storage("more", prefix=f"{bucket}/a.lance", **{option: "2"})
        with sp.Lance(f"{bucket}/a.lance").open() as reader:
            assert reader.fetch(np.array([0], np.uint64), ["a"]).to_pydict() == {"a": [1]}
        assert given[-1] == options_of(bucket) | {option: "2", "timeout": "25s"}  # a fourth of client_retry_timeout
    use_storage("more", prefix=f"{bucket}/a.lance", client_retry_timeout=4.5)
    sp.Lance(f"{bucket}/a.lance").open().close()
    assert given[-1]["client_retry_timeout"] == "5"  # Lance passes over a fraction
    use_storage("more", prefix=f"{bucket}/a.lance", download_retry_count="2")
    assert store_of(f"{bucket}/a.lance/none")[0].put("of-lance", b"1") is not None
    use_storage("more", prefix=bucket)


@pytest.mark.parametrize(
    ("root", "names"),
    [
        ("s3://b", "region endpoint_url session_token skip_signature sse_kms_key_id role_arn request_payer"),
        ("gs://b", "service_account service_account_key application_credentials base_url bearer_token"),
        ("az://b", "account_name account_key sas_key tenant_id client_id authority_host use_azure_cli"),
    ],
)
def test_names_that_stores_have_are_no_slips(root: str, names: str) -> None:
    prefix = {"s3": "aws_", "gs": "google_", "az": "azure_"}[root[:2]]
    for name in names.split():
        need_values(root, {name: "true" if not name.startswith("endpoint") else "https://one"})
        need_values(root, {f"{prefix}{name}": "true" if not name.startswith("endpoint") else "https://one"})


@pytest.fixture(scope="module")
def proxy(s3_endpoint: str) -> Iterator[FaultProxy]:
    with fault_proxy(s3_endpoint) as found:
        yield found


@pytest.fixture
def silent(proxy: FaultProxy) -> FaultProxy:
    proxy.set(silent=True)
    return proxy


@pytest.mark.parametrize("doing", ["list", "put", "put_file", "stat", "delete", "read", "open"])
def test_whoever_waits_for_a_store_is_told_before_the_deadline(
    doing: str, silent: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "TELL_AFTER_S", 0.2)
    root = f"s3://mute-{doing.replace('_', '-')}"  # whoever waits for a place is told once a minute
    (tmp_path / "file").write_bytes(b"some")
    options = stores.options(silent.address) | {"client_max_retries": "100", "timeout": "1s"}
    use_storage("mute", prefix=root, **options)
    store = Objects(root, options_of(f"{root}/"))
    asks: dict[str, Callable[[], object]] = {
        "list": lambda: list(store.list("folder/")),
        "put": lambda: store.put("key", b"some"),
        "put_file": lambda: store.put_file("key", tmp_path / "file"),
        "stat": lambda: store.stat("key"),
        "delete": lambda: store.delete("key"),
        "read": lambda: store.read([Get("key")]),
        "open": lambda: sp.connect(str(tmp_path / "catalog")).register("rows", sp.Lance(f"{root}/rows.lance")),
    }
    words = rf"{root} has not answered a request for 0.2 s. .* up to 100 s"
    with (
        pytest.warns(sp.SpiralWarning, match=words) as told,
        once(lambda: told.list, silent.set),
        suppress(SourceError),
    ):
        asks[doing]()
    assert not [each for each in threading.enumerate() if each.name == "spiral-teller"]
    use_storage("mute", prefix=root)


def test_nobody_is_told_while_a_list_is_worked_on(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "TELL_AFTER_S", 0.05)
    now = [0.0]  # stands still while the store is asked, however busy the machine is
    monkeypatch.setattr("spiral_stream.threads.monotonic", lambda: now[0])
    root = f"s3://{stores.new_bucket(s3_endpoint)}"
    use_storage("listed", prefix=root, **stores.options(s3_endpoint))
    store = Objects(root, options_of(f"{root}/"))
    for at in range(2):
        store.put(f"{at}", b"some")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in store.list(""):
            for _ in range(20):
                now[0] += 0.005
                time.sleep(0.005)
    assert not told
    use_storage("listed", prefix=root)


def test_a_store_that_never_answers_is_named_at_the_deadline(silent: FaultProxy, tmp_path: Path) -> None:
    options = stores.options(silent.address) | {"client_retry_timeout": "2"}
    use_storage("silent", prefix="s3://silent", **options)
    with pytest.raises(SourceError, match="s3://silent"):
        sp.connect(str(tmp_path / "catalog")).register("rows", sp.Lance("s3://silent/rows.lance"))
    use_storage("silent", prefix="s3://silent")


@pytest.mark.timeout(110)  # 120 and 182 with the usual 30 s for each of four tries
def test_a_store_that_answers_a_byte_a_second_is_named_in_time(s3_endpoint: str, tmp_path: Path) -> None:
    """Lance gives up by the deadline of the options too, where it is opened and where its rows are read."""

    def named(does: Callable[[], object]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(SourceError, match=re.escape(root)):
                does()

    root, catalog = f"s3://{stores.new_bucket(s3_endpoint)}", sp.connect(str(tmp_path / "catalog"))
    table = pa.table({"sample_id": range(100), "text": [secrets.token_hex(5_000) for _ in range(100)]})
    with fault_proxy(s3_endpoint) as proxy:
        use_storage("dripping", prefix=root, **stores.options(proxy.address) | {"client_retry_timeout": "4"})
        lance.write_dataset(table, f"{root}/rows.lance", storage_options=options_of(root))
        catalog.register("rows", sp.Lance(f"{root}/rows.lance"))
        plan = catalog.table("rows").sample(order=sp.Sequential())
        with plan.collate(batch_size=10, fields={"text": sp.List("text")}).to_numpy() as stream:
            assert len(stream) == 10
            proxy.set(drip=True)
            named(lambda: stream.batch(5))
        named(lambda: catalog.register("again", sp.Lance(f"{root}/rows.lance")))
    use_storage("dripping", prefix=root)


def test_the_wait_begins_anew_with_each_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "TELL_AFTER_S", 0.05)
    now, looks = [0.0], [0]

    def clock() -> float:
        looks[0] += 1
        return now[0]

    def looked() -> None:
        before, now[0] = looks[0], now[0] + 0.005
        until(lambda: looks[0] > before)

    def looked_until_told() -> bool:
        now[0] += 0.005
        return bool(late.list)

    monkeypatch.setattr("spiral_stream.threads.monotonic", clock)
    with patience.Patience().telling("s3://parts/key") as answered:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for _ in range(3):
                for _ in range(7):
                    looked()
                answered()
        assert not told
        with pytest.warns(sp.SpiralWarning, match="s3://parts has not answered") as late:
            until(looked_until_told)


def test_an_answer_that_comes_once_the_machine_goes_on_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two looks an hour passes, as while a process is stopped or a machine is paused."""
    looks = [0.0]
    arrived: list[Callable[[], object]] = []

    def clock() -> float:
        looks[0] += 1
        if looks[0] == 5 and arrived:
            arrived.pop()()
        return 3_600 * looks[0]

    async def asked() -> str:
        answer = asyncio.get_running_loop().create_future()
        arrived.append(lambda: answer.set_result("it"))
        found: str = await answer
        return found

    async def unanswered() -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr("spiral_stream.threads.monotonic", clock)
    assert asyncio.run(patience.Patience(0, 0.1).tried(asked, "s3://paused/key", "read")) == "it"
    with pytest.raises(SourceError, match="s3://paused"):
        asyncio.run(patience.Patience(0, 0.1).tried(unanswered, "s3://paused/key", "read"))


def test_a_large_object_is_written_in_parts_from_bytes_and_from_a_file(s3_endpoint: str, tmp_path: Path) -> None:
    data = bytes(range(256)) * (1 << 16) + b"more"
    (tmp_path / "file").write_bytes(data)
    root = f"s3://{stores.new_bucket(s3_endpoint)}"
    use_storage("parts", prefix=root, **stores.options(s3_endpoint))
    store = Objects(root, options_of(f"{root}/"))
    store.put("bytes", data)
    store.put_file("file", tmp_path / "file")
    found = [each for each in store.read([Get("bytes"), Get("file")]) if isinstance(each, Got)]
    assert [each.data for each in found] == [data, data]
    assert [(each.facts.etag or "").rstrip('"')[-2:] for each in found] == ["-3", "-3"]
    use_storage("parts", prefix=root)
