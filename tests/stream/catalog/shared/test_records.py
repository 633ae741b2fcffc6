"""A catalog on an object store: by two machines (mirrors) of one process, and by processes of their own."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from typer.testing import CliRunner

import spiral_stream as sp
from spiral_assets.relations.finding import in_catalog
from spiral_assets.resources import CatalogResource
from spiral_stream import use_storage
from spiral_stream.catalog.shared.records import SharedCatalog
from spiral_stream.commands.cli import app
from spiral_stream.errors import CatalogError, SpiralWarning
from spiral_stream.storage.open import store_of
from tests.fixtures import stores, warm

ROWS = pa.table({"sample_id": [f"{at:03}" for at in range(64)], "v": np.arange(64), "f": np.arange(64) / 7})


class Team:
    """Opens one catalog from several machines: each has a mirror of its own."""

    def __init__(self, uri: str, folder: Path, monkeypatch: pytest.MonkeyPatch, endpoint: str = "") -> None:
        self.uri, self.folder, self._monkeypatch, self.endpoint = uri, folder, monkeypatch, endpoint

    def on(self, machine: str) -> sp.Catalog:
        self._monkeypatch.setenv("SPIRAL_CATALOG_MIRROR", str(self.folder / machine))
        return sp.connect(self.uri)


@pytest.fixture
def team(bucket: str, s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Team:
    return Team(f"{bucket}/team/catalog", tmp_path, monkeypatch, s3_endpoint)


@pytest.fixture
def in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Team:
    return Team(f"memory://{tmp_path.name}/catalog", tmp_path, monkeypatch)


def plan(catalog: sp.Catalog, name: str = "rows") -> Any:
    rows = catalog.table(name).filter(sp.col("f") > 1)
    shuffled = rows.sample(order=sp.GlobalShuffle(seed=1))
    return shuffled.collate(batch_size=16, fields={"v": sp.Stack("v"), "f": sp.Stack("f")}).to_numpy()


def batches(stream: Any) -> list[tuple[bytes, bytes]]:
    with stream:
        return [(batch["v"].tobytes(), batch["f"].tobytes()) for batch in stream]


def test_another_machine_gets_the_batches_of_a_local_catalog(team: Team, tmp_path: Path) -> None:
    local = sp.connect(str(tmp_path / "local"))
    first = team.on("a")
    for catalog in (local, first):
        catalog.register("rows", sp.Arrow(ROWS))
        catalog.measure("rows")
        catalog.save_stream("run", plan(catalog))
    second = team.on("b")
    assert second.tables() == ["rows"]
    assert str(second).startswith(f"<Catalog in {team.uri}: 1 relations")
    assert second.table("rows").to_arrow().equals(local.table("rows").to_arrow())
    assert batches(second.open_stream("run")) == batches(local.open_stream("run"))
    assert second.entry("rows").data_version == first.entry("rows").data_version
    assert plan(second).fingerprint == plan(local).fingerprint
    assert second.skew("rows", "v").mean == first.skew("rows", "v").mean
    assert second.measure("rows").columns.equals(local.measure("rows").columns)
    assert "rows" in str(second.explain("run"))
    store, prefix = store_of(team.uri)
    kept = [store.get(key).data for key, _ in store.list(f"{prefix}/")]
    kept += [path.read_bytes() for path in second.root.rglob("*") if path.is_file()]
    assert not any(stores.SECRET.encode() in bytes(each) for each in kept)
    second.drop_stream("run")
    second.drop("rows")
    assert (first.tables(), first.streams()) == ([], [])


def test_imported_rows_refused_rows_and_tokenizers_are_shared(team: Team, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    lines = [json.dumps({"id": f"a{at}", "n": at}) for at in range(20)]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, "{bad"]))
    source = sp.sources.Jsonl(str(tmp_path / "*.jsonl"), on_error="skip")
    first = team.on("a")
    with pytest.warns(SpiralWarning, match="left out"):
        first.register("lines", source, identity="id")
    first.register_tokenizer("words", words)
    second = team.on("b")
    assert second.table("lines").to_arrow().equals(first.table("lines").to_arrow())
    assert second.refused("lines").equals(first.refused("lines"))
    assert second.tokenizer("words").path.read_bytes() == first.tokenizer("words").path.read_bytes()
    assert second.tokenizer("words").path.is_relative_to(tmp_path / "b")
    (tmp_path / "b.jsonl").write_text("\n".join(line.replace("a", "b") for line in lines))
    third = team.on("c")  # reads the new file only: the rows of the other one come from the store
    with pytest.warns(SpiralWarning, match="left out"):
        assert third.refresh("lines").changes.added == ("b.jsonl",)
    assert first.table("lines").to_arrow().num_rows == 40
    assert third.verify("lines").recorded == 2
    assert second.verify("lines").compared == 2
    second.drop_tokenizer("words")
    assert first.tokenizers() == []
    with pytest.raises(CatalogError, match="tokenizer 'words' is not in catalog s3://"):
        first.tokenizer("words")


def test_earlier_shard_tables_are_found_by_another_machine(in_memory: Team) -> None:
    first = in_memory.on("a")
    old = first.register("rows", sp.Arrow(ROWS))
    first.register("rows", sp.Arrow(ROWS.slice(3)), replace=True)
    second = in_memory.on("b")
    former = second.registry.relations.former(second.entry("rows"), old.data_version)
    assert former.manifest().total == 64


def test_commands_take_the_uri(in_memory: Team) -> None:
    in_memory.on("a").register("rows", sp.Arrow(ROWS))
    listed = CliRunner().invoke(app, ["tables", "--catalog", in_memory.uri])
    assert "rows" in listed.output
    assert CliRunner().invoke(app, ["show", "rows"], env={"SPIRAL_CATALOG": in_memory.uri}).exit_code == 0


def test_resources_and_components_of_dagster_take_the_uri(in_memory: Team) -> None:
    in_memory.on("a").register("rows", sp.Arrow(ROWS))
    assert CatalogResource(uri=in_memory.uri).open().tables() == ["rows"]
    assert in_catalog(in_memory.uri)["rows"]["rows"] == 64


def test_the_name_is_one_machines_and_the_other_is_told(in_memory: Team) -> None:
    first, second = in_memory.on("a"), in_memory.on("b")
    first.register("rows", sp.Arrow(ROWS))
    assert second.register("rows", sp.Arrow(ROWS)).changes is not None  # the same: nothing to do
    with pytest.raises(CatalogError, match="the name is taken"):
        second.register("rows", sp.Arrow(ROWS.slice(1)))
    assert first.table("rows").to_arrow().num_rows == 64


def test_rows_that_two_machines_keep_at_once_are_those_of_the_first(
    in_memory: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = in_memory.on("a"), in_memory.on("b")
    keep = SharedCatalog.keep

    def overtaken(self: SharedCatalog, kind: str, *args: Any, **options: Any) -> bool:
        if kind == "rows" and self.root == second.root:
            monkeypatch.setattr(SharedCatalog, "keep", keep)
            first.register("mine", sp.Arrow(ROWS))
        return keep(self, kind, *args, **options)

    monkeypatch.setattr(SharedCatalog, "keep", overtaken)
    second.register("yours", sp.Arrow(ROWS))
    assert first.table("yours").to_arrow().equals(second.table("mine").to_arrow())
    assert first.entry("yours").data_version == second.entry("mine").data_version


def test_what_is_damaged_on_the_store_is_named(in_memory: Team) -> None:
    catalog = in_memory.on("a")
    catalog.register("rows", sp.Arrow(ROWS))
    catalog.register("others", sp.Arrow(ROWS.slice(1)))
    store, prefix = store_of(in_memory.uri)
    key = f"{prefix}/records/relations/rows.json"
    store.put(key, bytes(store.get(key).data).replace(b'"shard"', b'"shade"'))
    with pytest.raises(CatalogError, match="relation 'rows' cannot be read: it is not what was written"):
        in_memory.on("b").entry("rows")
    assert in_memory.on("b").tables() == ["others", "rows"]
    store.put(f"{prefix}/records/relations/copied.json", store.get(f"{prefix}/records/relations/others.json").data)
    with pytest.raises(CatalogError, match="relation 'copied' cannot be read"):
        catalog.entry("copied")
    for path, _ in list(store.list(f"{prefix}/data/")):
        store.put(path, b"other bytes")
    with pytest.raises(CatalogError, match="is damaged: its bytes are not those that were written"):
        in_memory.on("c").entry("others")


def changed(team: Team, key: str, how: str) -> None:
    """Damage one object of the catalog, or remove it."""
    store, prefix = store_of(team.uri)
    if how == "removed":
        store.delete(f"{prefix}/{key}")
        return
    data = bytearray(store.get(f"{prefix}/{key}").data)
    data[len(data) // 2] ^= 4
    store.put(f"{prefix}/{key}", bytes(data))


def keys_of(team: Team) -> list[str]:
    store, prefix = store_of(team.uri)
    return [key.removeprefix(f"{prefix}/") for key, _ in store.list(f"{prefix}/")]


def filled(team: Team, machine: str, *, replace: bool = False) -> None:
    """A catalog with rows from memory, rows of a file and a tokenizer."""
    tokenizers = pytest.importorskip("tokenizers")
    catalog = team.on(machine)
    lines = team.folder / "lines.jsonl"
    lines.write_text("\n".join(json.dumps({"id": f"a{at}", "n": at}) for at in range(20)))
    catalog.register("rows", sp.Arrow(ROWS), identity="sample_id", replace=replace)
    catalog.register("lines", sp.sources.Jsonl(str(lines)), identity="id", replace=replace)
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    catalog.register_tokenizer("words", words, replace=replace)


def contents(team: Team, machine: str) -> Any:
    catalog = team.on(machine)
    tables = {name: catalog.table(name).to_arrow().to_pydict() for name in catalog.tables()}
    return {**tables, **{name: catalog.tokenizer(name).path.read_bytes() for name in catalog.tokenizers()}}


@pytest.mark.parametrize("how", ["removed", "flipped"])
def test_whatever_a_store_lost_is_named_and_is_there_when_it_is_registered_again(in_memory: Team, how: str) -> None:
    filled(in_memory, "a")
    right = contents(in_memory, "a")
    store, prefix = store_of(in_memory.uri)
    objects = {key: bytes(store.get(f"{prefix}/{key}").data) for key in keys_of(in_memory)}
    whole = ("records/relations/", "records/tokenizers/") if how == "removed" else ()  # as if it were not registered
    for at, key in enumerate(each for each in objects if not each.startswith(whole)):
        for name in {*keys_of(in_memory), *objects}:
            store.put(f"{prefix}/{name}", objects[name]) if name in objects else store.delete(f"{prefix}/{name}")
        changed(in_memory, key, how)
        with pytest.raises(CatalogError, match=re.escape(Path(key).name)) as raised:
            contents(in_memory, f"reader {at}")
        assert re.search("(?i)register .*replace=True", str(raised.value))
        filled(in_memory, "a" if at % 2 else f"other {at}", replace=True)
        assert contents(in_memory, f"next {at}") == right


@pytest.mark.parametrize("how", ["removed", "flipped"])
def test_lost_statistics_are_counted_again(in_memory: Team, how: str) -> None:
    catalog = in_memory.on("a")
    catalog.register("rows", sp.Arrow(ROWS))
    before = set(keys_of(in_memory))
    right = catalog.measure("rows").columns
    for at, key in enumerate(sorted(set(keys_of(in_memory)) - before)):
        changed(in_memory, key, how)
        if "data/" in key:
            with pytest.raises(CatalogError, match=r'Count again with catalog\.measure\("rows"\)'):
                in_memory.on(f"reader {at}").skew("rows", "v")
        assert in_memory.on(f"b {at}").measure("rows").columns.equals(right)
        assert in_memory.on(f"c {at}").skew("rows", "v").mean == catalog.skew("rows", "v").mean


def test_lost_digests_are_recorded_again_when_their_record_is_removed(in_memory: Team) -> None:
    catalog = in_memory.on("a")
    catalog.register("rows", sp.Arrow(ROWS))
    before = set(keys_of(in_memory))
    assert catalog.verify("rows").recorded > 0
    new = set(keys_of(in_memory)) - before
    [data] = [key for key in new if key.startswith("data/")]
    [record] = new - {data}
    changed(in_memory, data, "flipped")
    with pytest.raises(CatalogError, match=f"Remove the object .*{record}, and verify again"):
        in_memory.on("b").verify("rows")
    changed(in_memory, record, "removed")
    assert in_memory.on("c").verify("rows").recorded > 0
    assert in_memory.on("d").verify("rows").compared > 0


def test_a_damaged_mirror_is_mended(in_memory: Team) -> None:
    catalog = in_memory.on("a")
    entry = catalog.register("rows", sp.Arrow(ROWS))
    path = entry.root / "manifests" / entry.manifest_name
    path.write_bytes(path.read_bytes()[:-9])
    assert catalog.entry("rows").manifest().total == 64


def test_a_record_that_names_a_path_outside_is_damaged(in_memory: Team) -> None:
    shared = SharedCatalog(in_memory.uri, in_memory.on("a").root)
    (shared.root / "file").write_text("text")
    shared.keep("rows", "r", {}, [shared.root / "file"])
    store, key = store_of(f"{in_memory.uri}/records/rows/r.json")
    from spiral_stream.integrity.seal import parse_json, sealed_json

    body = parse_json(Path("r"), bytes(store.get(key).data))
    body["files"] = {"../file": body["files"]["file"]}
    store.put(key, sealed_json(body))
    with pytest.raises(CatalogError, match="is damaged"):
        shared.record("rows", "r")


@pytest.fixture
def proxy(s3_endpoint: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """An S3 server that is read only, or loses answers, as ``rules`` say."""
    rules: dict[str, Any] = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.command in rules.get("denied", ()):
                text = b"<Error><Code>AccessDenied</Code></Error>"
                return self.reply(403, {}, text)
            kept = {"Content-Type": "application/octet-stream"}  # or the server takes the body for a form
            kept |= {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection")}
            request = Request(s3_endpoint + self.path, data=body or None, headers=kept, method=self.command)
            try:
                with urlopen(request) as got:
                    status, headers, data = got.status, dict(got.headers), got.read()
            except HTTPError as error:
                status, headers, data = error.code, dict(error.headers), error.read()
            if self.command == "PUT" and status == 200 and rules.pop("lose", None):
                status, headers, data = 503, {}, b""  # it was written, and nobody says so
            return self.reply(status, headers, data)

        def reply(self, status: int, headers: dict[str, str], data: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in ("content-length", "connection", "transfer-encoding", "date", "server"):
                    self.send_header(name, value)
            length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(data))
            self.send_header("Content-Length", length)
            self.end_headers()
            self.wfile.write(data)

        # the names that the server's class looks for
        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", rules
    server.shutdown()
    thread.join()
    server.server_close()


def test_who_may_not_write_reads_and_a_lost_answer_is_no_other_registration(
    team: Team, bucket: str, proxy: tuple[str, dict[str, Any]]
) -> None:
    address, rules = proxy
    use_storage("proxy", prefix=f"{bucket}/team", **stores.options(address))
    try:
        catalog = team.on("a")
        catalog.register("rows", sp.Arrow(ROWS))
        rules["lose"] = True
        assert SharedCatalog(team.uri, catalog.root).keep("streams", "lost", {"name": "lost"}, absent=True)
        assert not rules
        assert not SharedCatalog(team.uri, catalog.root).keep("streams", "lost", {"name": "lost"}, absent=True)
        rules["denied"] = ("PUT", "POST", "DELETE")
        reader = team.on("b")
        assert batches(plan(reader)) == batches(plan(catalog))
        for change in (lambda: reader.drop("rows"), lambda: reader.register("more", sp.Arrow(ROWS))):
            with pytest.raises(CatalogError, match=r"catalog s3://.*AccessDenied.*Check the credentials") as caught:
                change()
            assert stores.SECRET not in str(caught.value)
    finally:
        use_storage("proxy", prefix=f"{bucket}/team")


def test_a_store_that_is_away_or_has_no_such_bucket_is_named(
    s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPIRAL_CATALOG_MIRROR", str(tmp_path))
    use_storage("away", prefix="s3://away", **stores.options("http://127.0.0.1:9") | {"client_max_retries": "0"})
    use_storage("none", prefix="s3://none", **stores.options(s3_endpoint))
    with pytest.raises(CatalogError, match=r"catalog s3://away/c: cannot read its relations: .*does not answer"):
        sp.connect("s3://away/c").tables()
    with pytest.raises(CatalogError, match="its bucket is not there"):
        sp.connect("s3://none/c").tables()
    with pytest.raises(CatalogError, match="its bucket is not there"):
        sp.connect("s3://none/c").register("rows", sp.Arrow(ROWS))
    with pytest.raises(CatalogError, match="carries a password"):
        sp.connect("s3://me:secret@away/c")
    monkeypatch.setenv("SPIRAL_CATALOG_MIRROR", "s3://away/mirror")
    with pytest.raises(CatalogError, match="SPIRAL_CATALOG_MIRROR"):
        sp.connect("s3://away/d")


def test_two_who_register_at_once_lose_nothing_and_double_nothing(team: Team) -> None:
    machines = [team.on("a"), team.on("b")]

    def register(me: int) -> list[bool]:
        won = []
        for each in range(4):
            machines[me].register(f"own{me}{each}", sp.Arrow(ROWS.slice(me, 5)))
            try:
                machines[me].register(f"both{each}", sp.Arrow(ROWS.slice(me, 5)))
                won.append(True)
            except CatalogError as error:
                won.append("the name is taken" not in str(error))
        return won

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(register, range(2))
    third = team.on("c")
    assert len(third.tables()) == 12
    for each in range(4):
        assert first[each] != second[each]
        assert third.table(f"both{each}").to_arrow().column("v")[0].as_py() == (0 if first[each] else 1)


@pytest.mark.parametrize("at", ["rows", "manifests", "relations"])
def test_who_is_killed_between_the_files_and_the_record_leaves_nothing_broken(
    in_memory: Team, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    catalog, keep = in_memory.on("a"), SharedCatalog.keep

    def killed(self: SharedCatalog, kind: str, *args: Any, **options: Any) -> bool:
        if kind == at:
            raise KeyboardInterrupt
        return keep(self, kind, *args, **options)

    monkeypatch.setattr(SharedCatalog, "keep", killed)
    with pytest.raises(KeyboardInterrupt):
        catalog.register("rows", sp.Arrow(ROWS))
    monkeypatch.setattr(SharedCatalog, "keep", keep)
    for machine in ("b", "a"):
        assert in_memory.on(machine).tables() == ([] if machine == "b" else ["rows"])
        in_memory.on(machine).register("rows", sp.Arrow(ROWS))
        assert in_memory.on(machine).table("rows").to_arrow().num_rows == 64


CODE = """
import sys, time
from pathlib import Path
import pyarrow as pa
import spiral_stream as sp
from spiral_stream.errors import CatalogError
uri, me, rounds, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
catalog = sp.connect(uri)
won = []
for each in range(rounds):
    (folder / f"{each}-{me}").touch()
    until = time.monotonic() + 60
    while len(list(folder.glob(f"{each}-*"))) < 2:
        assert time.monotonic() < until, "the other one is gone"
        time.sleep(0.001)
    catalog.register(f"{me}{each}", sp.Arrow(pa.table({"sample_id": [f"{me}{each}"]})))
    try:
        catalog.register(f"both{each}", sp.Arrow(pa.table({"sample_id": [me] })))
        won.append(each)
    except CatalogError as error:
        assert "the name is taken" in str(error), error
    catalog.register(f"same{each}", sp.Arrow(pa.table({"sample_id": ["x"], "v": [each]})))
print(won)
"""
KILLED = """
import os, signal, sys
import pyarrow as pa
import spiral_stream as sp
from spiral_stream.catalog.shared.records import SharedCatalog
keep = SharedCatalog.keep
def dying(self, kind, *args, **options):
    if kind == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
    return keep(self, kind, *args, **options)
SharedCatalog.keep = dying
sp.connect(sys.argv[1]).register(f"killed-{sys.argv[2]}", sp.Arrow(pa.table({"sample_id": [sys.argv[2]]})))
"""


@pytest.mark.slow
def test_processes_that_register_at_once_and_are_killed_lose_nothing_and_double_nothing(
    team: Team, tmp_path: Path
) -> None:
    rounds = 20
    profile = "\n".join(f"{name} = {json.dumps(value)}" for name, value in stores.options(team.endpoint).items())
    (tmp_path / "profiles.toml").write_text(f'[tests]\nprefix = "{team.uri}"\n{profile}')
    (tmp_path / "meet").mkdir()

    def started(code: str, machine: str, *args: str) -> subprocess.Popen[str]:
        env = os.environ | {"SPIRAL_STORAGE": str(tmp_path / "profiles.toml"), "HOME": str(tmp_path / machine)}
        env.pop("SPIRAL_CATALOG_MIRROR", None)
        return warm.Popen([sys.executable, "-c", code, team.uri, *args], env=env, stdout=subprocess.PIPE, text=True)

    killed = ("rows", "manifests", "relations")
    dead = [started(KILLED, "c", kind) for kind in killed]
    both = [started(CODE, me, me, str(rounds), str(tmp_path / "meet")) for me in "ab"]
    won = [json.loads(each.communicate()[0]) for each in both]
    assert sorted([*won[0], *won[1]]) == list(range(rounds))
    assert [each.wait() for each in dead] == [-signal.SIGKILL] * len(dead)
    for each in dead:
        each.stdout.close()
    catalog = team.on("d")
    named = [f"{name}{each}" for name in ("a", "b", "both", "same") for each in range(rounds)]
    assert catalog.tables() == sorted(named)
    for name in named:
        [value] = catalog.table(name).to_arrow().column("sample_id").to_pylist()
        winner = "a" if name.removeprefix("both").isdigit() and int(name[4:]) in won[0] else "b"
        assert value == (winner if name.startswith("both") else "x" if name.startswith("same") else name)
    for kind in killed:
        catalog.register(f"killed-{kind}", sp.Arrow(pa.table({"sample_id": [kind]})))
        assert catalog.table(f"killed-{kind}").to_arrow().num_rows == 1


def test_a_catalog_whose_records_a_later_version_wrote_is_refused_and_stays(in_memory: Team) -> None:
    rows = sp.sources.Arrow(ROWS)
    in_memory.on("a").register("rows", rows)
    store, key = store_of(in_memory.uri)
    name = f"{key}/records/relations/rows.json"
    written = {key: value for key, value in json.loads(bytes(store.get(name).data or b"")).items() if key != "seal"}
    body = json.dumps({**written, "version": 2, "row": {"in": "another form"}})[1:]
    later = f'{{"seal": "{xxhash.xxh3_128_hexdigest(body.encode())}", {body}'.encode()
    store.put(name, later)
    before = sorted(each for each, _ in store.list(f"{key}/"))

    for machine in ("a", "b"):
        catalog = in_memory.on(machine)
        deeds = (
            catalog.tables,
            partial(catalog.table, "rows"),
            partial(catalog.register, "rows", rows),
            partial(catalog.refresh, "rows"),
            partial(catalog.verify, "rows"),
        )
        for deed in deeds:
            with pytest.raises(CatalogError, match=r"a later version of Spiral wrote it.*Upgrade Spiral here"):
                deed()
    assert sorted(each for each, _ in store.list(f"{key}/")) == before
    assert bytes(store.get(name).data or b"") == later
