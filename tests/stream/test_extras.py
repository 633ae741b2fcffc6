"""What is imported when, what runs without any extra, and what a missing extra says."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.extras import EXTRA_OF
from spiral_stream.semantic import H264_REF
from tests.fixtures import texts
from tests.fixtures.inner import stages_of

ROOT = Path(__file__).parents[2]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
CALLED = {"vortex": "vortex-data"}  # packages whose name is not what is imported
HEAVY = {"av", "dagster", "duckdb", "jax", "lance", "lancedb", "pandas", "rich", "tiktoken", "tokenizers", "torch"}
HEAVY |= {"torchvision", "transformers", "typer"}


def python(program: str, *arguments: object) -> str:
    """What a fresh interpreter prints."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def heavy_after(program: str, *arguments: object) -> set[str]:
    """Heavy packages that a fresh interpreter has imported after a program."""
    told = python(f"import sys\n{program}\nprint(*{{name.split('.')[0] for name in sys.modules}})", *arguments)
    return HEAVY & set(told.split())


def test_importing_the_library_imports_nothing_heavy() -> None:
    assert heavy_after("import spiral_stream") == set()
    assert heavy_after("from spiral_stream import *") == set()


def test_a_look_into_the_catalog_imports_lance_and_nothing_else_that_is_heavy(catalog: sp.Catalog) -> None:
    program = "import spiral_stream as sp\nassert sp.connect(sys.argv[1]).tables() == ['labels', 'lance', 'parquet']"

    pandas = {"pandas"}  # where it is installed, pyarrow imports it to look at the first list that it is given
    assert heavy_after(program, catalog.root) - pandas == {"lance"}


FIRST_BATCH = """
import spiral_stream as sp
rows = sp.connect(sys.argv[1]).table("parquet").sample(identity="sample_id", order=sp.Sequential())
stream = rows.collate(batch_size=4, fields={"label": sp.Stack("label_id"), "id": sp.List("sample_id")}).to_numpy()
assert next(iter(stream))["label"].shape == (4,)
"""
OF_OTHER_PLANS = (  # rooms below these are imported when a plan, a source or a verb needs them
    *(
        "catalog.registering.register",
        "looking.contact_sheet",
        "looking.sampled",
        "runs.seen",
        "transforms.text.encoder",
    ),
    *("runtime.fields.clips", "runtime.fields.image_lists", "runtime.fields.images", "runtime.fields.patches"),
    *("runtime.fields.sounds", "sources.columnar.huggingface", "sources.image_folder", "sources.mds", "sources.tar"),
    *("explain", "sources.text", "sources.tokens"),
)


def test_a_first_batch_of_numbers_imports_no_room_of_other_plans(catalog: sp.Catalog) -> None:
    told = python(f"import sys\n{FIRST_BATCH}\nprint(*sys.modules)", catalog.root).split()
    ours = [name.removeprefix("spiral_stream.") for name in told if name.startswith("spiral_stream.")]

    assert [name for name in ours if f"{name}.".startswith(tuple(f"{each}." for each in OF_OTHER_PLANS))] == []
    assert {"prepared", "sources.columnar.parquet"} <= set(ours)


WITHOUT_EXTRAS = """
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in sys.argv[2].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import spiral_stream as sp
from tests.fixtures import streams

catalog = streams.make_catalog(Path(sys.argv[1]))
labels = catalog.table("labels")
counted = catalog.sql('select count(*) as n from "lance" where label_id > 1').to_arrow()
found = {}
for name in ("lance", "parquet"):
    relation = catalog.table(name).filter(sp.col("label_id") > 1).join(labels, on="label_id")
    plan = streams.plan(relation, profile=sp.profiles.Jpeg(shorter_side=20, quality=90), last=sp.KeepPartial, epoch=0)
    with plan.to_numpy() as stream:
        assert "EXPLAIN DATA" in str(stream.explain())
        batches = list(stream)
        built = stream.materialize()
        again = next(iter(stream))
        found[name] = sorted(streams.identities(batches))
    assert batches[0]["image"].shape == again["image"].shape == (16, 3, 16, 16)
    assert built.rows == len(found[name]) == counted["n"][0].as_py()
assert found["lance"] == found["parquet"]
print(catalog.verify("parquet").different, len(found["lance"]))
"""


def test_plans_caches_and_numpy_streams_of_images_and_numbers_need_no_extra(tmp_path: Path) -> None:
    missing = [*EXTRA_OF, "torchvision", "lancedb", "pandas"]

    different, rows = python(WITHOUT_EXTRAS, tmp_path, ",".join(missing)).split()

    assert (int(different), int(rows) > 100) == (0, True)


TOKENIZED = """
import hashlib
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in sys.argv[2].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import pyarrow as pa
import spiral_stream as sp
from spiral_stream.transforms.text import splitting
from tests.fixtures.vocabularies import TEXTS, byte_level

splitting.COVERED = (range(0x3100),)  # both are compared on fewer code points; all of them take 4 CPU s
catalog = sp.connect(sys.argv[1])
rows = pa.table({"id": range(len(TEXTS)), "text": TEXTS})
catalog.register("texts", sp.Arrow(rows), identity="id")
engine = catalog.register_tokenizer("bytes", byte_level()).engine
plan = (
    catalog.table("texts")
    .sample(identity="id", order=sp.GlobalShuffle(seed=1))
    .map(sp.Tokenize("text", tokenizer="bytes") >> "tokens")
    .collate(batch_size=4, last=sp.KeepPartial(), fields={"tokens": sp.Pad("tokens", pad_value=0)})
)
with plan.to_numpy() as stream:
    told = str(stream.explain())
    read = hashlib.sha256(b"".join(batch["tokens"].tobytes() for batch in stream)).hexdigest()
    state = hashlib.sha256(repr(stream.state_dict()).encode()).hexdigest()
print(engine.split(":")[0], state, read)
"""


def test_tokens_need_the_tokenizers_library_alone(tmp_path: Path) -> None:
    missing = ",".join(sorted({"tiktoken", *EXTRA_OF} - {"tokenizers"}))
    whole = python(TOKENIZED, tmp_path, "nothing").split()
    alone = python(TOKENIZED, tmp_path, missing).split()  # in the same catalog, which has a proof already

    assert whole[0] == "compiled"
    assert alone == whole


def test_every_package_comes_with_the_extra_that_its_error_names() -> None:
    name = re.compile(r"[A-Za-z0-9_-]+")
    brought = {extra: {name.match(each)[0] for each in wanted} for extra, wanted in EXTRAS.items()}

    assert {
        package: CALLED.get(package, package) in brought.get(extra, ()) for package, extra in EXTRA_OF.items()
    } == dict.fromkeys(EXTRA_OF, True)
    for wanted in EXTRAS.values():
        inner = [each for spec in wanted if spec.startswith("spiral-stream[") for each in spec[14:-1].split(",")]
        assert set(inner) <= set(EXTRAS)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    """Texts with a tokenizer, and clips whose files are not there: nothing here reads them."""
    catalog = texts.make_catalog(tmp_path_factory.mktemp("extras"), {"a": 20})
    clips = pa.table({"sample_id": ["x"], "clip": ["nowhere.mp4"]})
    catalog.register("clips", sp.Arrow(clips), semantic={"clip": H264_REF})
    return catalog


def clips(catalog: sp.Catalog) -> sp.Relation:
    clip = sp.Stack(
        "clip", decode="h264", sequence_length=4, transforms=[sp.transforms.Resize(32), sp.transforms.CenterCrop(32)]
    )
    return (
        catalog.table("clips")
        .sample(identity="sample_id", order=sp.Sequential())
        .collate(batch_size=1, fields={"clip": clip})
    )


def images(catalog: sp.Catalog) -> sp.Relation:
    return (
        catalog.table("a")
        .sample(identity="sample_id", order=sp.Sequential())
        .collate(batch_size=1, fields={"id": sp.List("sample_id")})
    )


def chat(catalog: sp.Catalog) -> sp.Relation:
    """Conversations as their template writes them; rendered when a batch is made."""
    template = "{% for each in messages %}{{ each['content'] }} {% endfor %}"
    sampled = catalog.table("a").sample(identity="sample_id", order=sp.Sequential())
    turned = sp.transforms.ChatTemplate("text", tokenizer=texts.TOKENIZER, template=template) >> "ids"
    return sampled.map(turned).collate(batch_size=1, fields={"ids": sp.Pad("ids", pad_value=0)})


# package -> what needs it, the first words of the error, and what is offered instead
NEEDED: dict[str, tuple[str, Callable[[sp.Catalog], Any], str, str]] = {
    "a stream of torch": ("torch", lambda c: images(c).to_torch(), "to_torch", "; or use to_numpy()"),
    "a stream of jax, bound": ("jax", lambda c: images(c).to_jax().bind(epoch=0), "to_jax", "; or use to_numpy()"),
    "a stream of jax, read": ("jax", lambda c: next(iter(images(c).to_jax())), "to_jax", "; or use to_numpy()"),
    "clips, lowered": ("av", lambda c: stages_of(clips(c).to_numpy()), "collate: field 'clip' (decode='h264')", ""),
    "an index of videos": ("av", lambda c: sp.index_videos(c, "clips", "clip"), "index_videos", ""),
    "tokens": ("tokenizers", lambda c: texts.tokenized(c.table("a"), sp.Sequential()), "Tokenize", ""),
    "a tokenizer's file": (
        "tokenizers",
        lambda c: c.register_tokenizer("other", c.tokenizer("words").path),
        "Tokenize",
        "",
    ),
    "a chat": ("transformers", lambda c: chat(c).to_numpy(), "ChatTemplate", ""),
    "a chat's template": ("jinja2", lambda c: chat(c).to_numpy(), "ChatTemplate", ""),
    "a tokenizer's object": ("tokenizers", lambda c: c.register_tokenizer("other", object()), "register_tokenizer", ""),
    "a tokenizer's folder": (
        "transformers",
        lambda c: c.register_tokenizer("other", str(c.root)),
        "register_tokenizer",
        "; or give the path of a tokenizer.json",
    ),
}


@pytest.mark.parametrize("what", NEEDED)
def test_a_missing_extra_is_named_before_anything_is_read(
    rows: sp.Catalog, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    package, use, by, otherwise = NEEDED[what]
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(sp.errors.MissingExtraError) as told:
        use(rows)

    install = f'pip install "spiral-stream[{EXTRA_OF[package]}]"'
    assert str(told.value) == f"{by} needs the package {package}, which is not installed. Run: {install}{otherwise}"
    assert told.value.name == package
    assert isinstance(told.value, sp.SpiralError)
    assert isinstance(told.value, ImportError)


WITHOUT_ONE = """
import importlib
import sys
from spiral_stream.errors import MissingExtraError

for room, package in (each.split("/") for each in sys.argv[1:]):
    sys.modules[package] = None
    try:
        importlib.import_module(f"spiral_stream.{room}")
    except MissingExtraError as error:
        print(error)
    del sys.modules[package]
"""


def test_an_adapter_that_is_imported_without_its_package_says_so() -> None:
    needs = ["adapters.torch/torch", "adapters.trainer/transformers", "adapters.trainer/accelerate"]
    told = python(WITHOUT_ONE, *needs).splitlines()

    assert len(told) == len(needs)
    for line, (room, package) in zip(told, (each.split("/") for each in needs), strict=True):
        assert line.startswith(f"spiral_stream.{room} needs the package {package}, ")


def test_the_dagster_location_without_dagster_says_so() -> None:
    told = python(
        "import sys\nsys.modules['dagster'] = None\nimport spiral_stream\ntry:\n    import spiral_assets.definitions\n"
        "except spiral_stream.errors.MissingExtraError as error:\n    print(error)"
    )

    assert told.endswith('Run: pip install "spiral-stream[dagster]"\n')


def test_a_saved_stream_of_torch_says_so_when_it_is_opened(rows: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    rows.save_stream("tensors", images(rows).to_torch())
    monkeypatch.setitem(sys.modules, "torch", None)

    with pytest.raises(sp.errors.MissingExtraError, match=r"to_torch needs the package torch.*spiral-stream\[torch\]"):
        rows.open_stream("tensors")


def test_a_refused_binding_leaves_the_stream_as_it_was(rows: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = images(rows).to_jax()
    monkeypatch.setitem(sys.modules, "jax", None)

    with pytest.raises(sp.errors.MissingExtraError):
        stream.bind(epoch=3, run_seed=9)

    assert stream.epoch == 0
    assert stream.state_dict()["run_seed"] != 9


def test_a_package_that_is_there_is_not_imported_to_find_out() -> None:
    assert heavy_after("from spiral_stream.extras import need\nneed('torch', 'x')\nneed('av', 'x')") == set()
