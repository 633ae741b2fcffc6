"""Machines that share prepared data on an S3 server: processes with working folders of their own, and one that is killed."""

import random
import signal
import time
from pathlib import Path

import pytest

from spiral_stream import use_storage
from spiral_stream.errors import CacheError
from spiral_stream.storage.open import store_of
from tests.fixtures import stores
from tests.fixtures.sharing import finished, machine
from tests.fixtures.two_machines import Team

ROWS = 148
DEAD_S = 4.0  # so that what a killed machine had leased is soon free


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Team:
    return Team(tmp_path_factory.mktemp("team"), "memory://nobody/machines")


@pytest.fixture
def team(made: Team, bucket: str) -> Team:
    made.uri = f"{bucket}/team/prepared"
    return made


def shards(keys: list[str]) -> list[str]:
    return [key.rpartition("/")[2].partition(".")[0] for key in keys]


@pytest.mark.slow
def test_three_build_at_once_while_two_read_and_nothing_is_lost_or_double(
    team: Team, s3_endpoint: str, tmp_path: Path
) -> None:
    modes = ["build", "build", "build", "read", "read"]
    every = [machine(tmp_path / f"m{k}", team.uri, mode, team.folder, s3_endpoint) for k, mode in enumerate(modes)]
    done = [finished(each) for each in every]
    assert {each["batches"] for each in done} == {team.batches}
    assert all(each["caches"][0]["built"] == ROWS for each in done[:3])
    entries = shards(team.objects("/ledger/"))
    assert len(entries) == len(set(entries)) == 12
    for kind in ("columns", "survivors"):
        records = team.objects(f"/derived/{kind}/", ".sealed.arrow")
        assert len(records) == 12 * len({key.partition("/records/")[0] for key in records})
    late = finished(machine(tmp_path / "late", team.uri, "read", team.folder, s3_endpoint))
    assert (late["batches"], late["put"], late["caches"][0]["built"]) == (team.batches, 0, ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_machine_that_is_killed_at_any_moment_leaves_nothing_that_is_served_broken(
    team: Team, s3_endpoint: str, tmp_path: Path, seed: int
) -> None:
    drawn = random.Random(seed)
    for k in range(2):
        victim = machine(tmp_path / f"m{k}", team.uri, "build", team.folder, s3_endpoint, DEAD_S)
        goal = drawn.randint(1, 80)
        while victim.poll() is None and len(team.objects()) < goal:
            time.sleep(0.01)
        victim.send_signal(signal.SIGKILL)
        victim.communicate()
    home = tmp_path / f"m{drawn.randint(0, 2)}"
    again = finished(machine(home, team.uri, "build", team.folder, s3_endpoint, DEAD_S))
    assert (again["batches"], again["caches"][0]["built"]) == (team.batches, ROWS)
    late = finished(machine(tmp_path / "late", team.uri, "read", team.folder, s3_endpoint))
    assert (late["batches"], late["put"], late["caches"][0]["built"]) == (team.batches, 0, ROWS)


def test_faults_of_the_store_are_named_without_secrets(made: Team, s3_endpoint: str) -> None:
    for endpoint, said in (
        (s3_endpoint, r"its bucket is not there \(the store answered status 404, NoSuchBucket\)"),
        ("http://127.0.0.1:9", "the store does not answer"),
    ):
        made.uri = f"s3://absent-{len(said)}/team/prepared"
        use_storage("tests", prefix=made.uri, **stores.options(endpoint))
        with pytest.raises(CacheError, match=rf"^\$SPIRAL_CACHE: s3://absent-.*{said}") as error:
            made.run("none")
        assert stores.SECRET not in str(error.value)
        use_storage("tests", prefix=made.uri)


@pytest.mark.slow
def test_a_large_file_is_put_in_parts(bucket: str, tmp_path: Path) -> None:
    store, key = store_of(f"{bucket}/large")
    data = random.Random(1).randbytes(20 << 20)
    (tmp_path / "large").write_bytes(data)
    store.put_file(key, tmp_path / "large")
    got = store.get(key)
    assert bytes(got.data or b"") == data
    assert got.facts.etag is not None
    assert "-3" in got.facts.etag  # S3 says how many parts there were
