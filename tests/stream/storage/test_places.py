"""What a URI names, which options it has, and how long its store is waited for."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import spiral_stream as sp
from spiral_stream.errors import SourceError
from spiral_stream.storage import patience
from spiral_stream.storage.profiles import options_of, use_storage
from spiral_stream.storage.uri import joined, place_of
from tests.fixtures import stores
from tests.fixtures.fault_proxy import FaultProxy, fault_proxy


@pytest.mark.parametrize("key", ["a//b", "/a", "./a", "a/./b", "a/../b", "..", "a/.."])
def test_keys_that_clients_take_for_others_are_refused(key: str) -> None:
    with pytest.raises(SourceError, match="keys with an empty part"):
        place_of(f"s3://bucket/{key}")


@pytest.mark.parametrize("key", ["a/b", "a/", "a.b/.c", "...", "a/..b", ""])
def test_keys_that_stand_for_themselves_are_kept(key: str) -> None:
    assert place_of(f"s3://bucket/{key}").key == key


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


@pytest.fixture(scope="module")
def silent(s3_endpoint: str) -> Iterator[FaultProxy]:
    with fault_proxy(s3_endpoint) as found:
        found.set(silent=True)
        yield found


def test_a_store_that_never_answers_is_named_in_time(
    silent: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "TELL_AFTER_S", 0.2)
    options = stores.options(silent.address) | {"client_retry_timeout": "2"}
    use_storage("silent", prefix="s3://silent", **options)
    begun = time.monotonic()
    with (
        pytest.warns(sp.SpiralWarning, match="s3://silent has not answered a request for 0.2 s"),
        pytest.raises(SourceError, match="s3://silent"),
    ):
        sp.connect(str(tmp_path / "catalog")).register("rows", sp.Lance("s3://silent/rows.lance"))
    assert time.monotonic() - begun < 20
    use_storage("silent", prefix="s3://silent")
