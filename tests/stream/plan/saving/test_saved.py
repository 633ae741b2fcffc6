"""A saved plan that somebody else wrote, or that is damaged, is read or refused by name, and never does anything."""

import copy
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.plan.saving.canonical import VALUES, to_json
from tests.fixtures import saved_plans
from tests.fixtures.inner import stages_of
from tests.fixtures.mutations import COUNTS, _places, mutated_json, shown, survives
from tests.fixtures.saved_plans import read_back
from tests.fixtures.texts import SMALL_PLANS

pytestmark = SMALL_PLANS

ROOT: Final = Path(sp.__file__).parents[1]
FEW: Final = 10_000  # samples of an epoch that EXPLAIN may form; with windows of a few, many more take seconds


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> saved_plans.Held:
    return saved_plans.make_catalog(tmp_path_factory.mktemp("saved"))


@pytest.fixture(scope="module")
def plans(catalog: saved_plans.Held) -> dict[str, Any]:
    return saved_plans.sound(catalog)


def used(catalog: saved_plans.Held, plan: Any) -> str:
    """Open a plan by the public door, and use it as far as no payload is read."""
    with catalog.open_stream(json.dumps(plan)) as stream:
        stream.spec()
        if stages_of(stream).epochs.total < FEW:
            stream.explain()
        return stream.fingerprint


_ANOTHER: Final = (
    r"saved plan: {} was saved at version 1, here it is {}: its results differ. Run the version of spiral that saved it"
)
REFUSED: Final = {
    "packed": _ANOTHER.format("Packed", 2),
    "tokenized": _ANOTHER.format("WindowedBucket", 4),
    "mapped": _ANOTHER.format("WindowedBucket", 3),
    "mixed": rf"({_ANOTHER.format('WindowedBucket', 3)}|Sequential goes through the rows .* Take concat)",
}  # of what the first version saved: batches of another version, and the order of storage in a mixture

# ---- fuzzing


NUMBERS: Final = (0, 1, -1, 2, 3, 7, 2**15, 2**24, 2**31 - 1, 2**31, 2**40, 2**62, 2**63, 2**64, 2**70, -(2**63))
FLOATS: Final = (0.0, -1.0, 1e-300, 1e308, 0.5, 1e15, float("inf"), float("nan"), 3)
TEXTS: Final = ("", "x", "n", "tokens", "é" * 300, "\0", "a/b", "cuda:7", "float16", "\ud800", "storage_shard", "..")


def same_kind(plan: Any, seed: int) -> Any:
    """One to three values of a plan exchanged for others of their type, which types alone do not refuse."""
    draw, out = random.Random(seed), copy.deepcopy(plan)
    for _ in range(draw.choice((1, 1, 2, 3))):
        leaves = [(h, k) for h, k in _places(out) if isinstance(h[k], int | float | str) and k != "verb"]
        holder, key = draw.choice([(h, k) for h, k in leaves if not str(k).startswith("@")])
        value = holder[key]
        others = [h[k] for h, k in leaves if isinstance(h[k], str)]
        if isinstance(value, bool):
            holder[key] = not value
        elif isinstance(value, str):
            holder[key] = draw.choice((*TEXTS, *others))
        else:
            holder[key] = draw.choice(NUMBERS if isinstance(value, int) else FLOATS)
    return out


@pytest.mark.parametrize("count", COUNTS)
def test_a_damaged_plan_is_refused_by_name_or_opens(
    catalog: saved_plans.Held, plans: dict[str, Any], count: int
) -> None:
    opened = 0
    for seed in range(count):
        kind, sound = list(plans.items())[seed // 2 % len(plans)]
        mutant = (mutated_json, same_kind)[seed % 2](sound, seed)

        def parse(mutant: Any = mutant) -> str:
            return used(catalog, mutant)

        opened += not survives(parse, None, says=f"{seed} ({kind}): {shown(mutant)}", other_is_fine=True)
    assert count // 20 < opened < count // 2  # the loader is no wall, and what it lets through is used


def test_sound_plans_open_as_they_were_saved(catalog: saved_plans.Held, plans: dict[str, Any]) -> None:
    for kind, plan in plans.items():
        again = read_back(plan, catalog)

        assert json.loads(json.dumps(to_json(again))) == plan, kind
        assert used(catalog, plan) == used(catalog, plan)


@pytest.mark.filterwarnings("ignore:saved plan. an earlier version saved")
def test_what_the_first_version_saved_still_opens_as_the_same_plan(
    catalog: saved_plans.Held, plans: dict[str, Any]
) -> None:
    """``saved_plans.json`` was written by 0.1.0, before plans held fingerprints of code; it never changes."""
    for kind, old in json.loads((ROOT / "tests" / "replay" / "saved_plans.json").read_text()).items():
        if kind == "tokenized":  # of the file that this version of the tokenizers library writes
            place = old["source"]["@node"]["source"]["@node"]
            place["digest"] = plans[kind]["source"]["@node"]["source"]["@node"]["digest"]

        if kind in REFUSED:
            with pytest.raises(sp.errors.PlanError, match=REFUSED[kind]):
                used(catalog, old)
            continue
        assert used(catalog, old) == used(catalog, plans[kind]), kind


def test_the_plans_name_nearly_every_class_of_ours(plans: dict[str, Any]) -> None:
    absent = {name for name in VALUES if f'"@class": "{name}"' not in json.dumps(plans)}

    orders = {"ExpandedRange", "Weighted", "WindowShuffle", "WithReplacement", "WithinShards"}
    pixels = {
        "BoxLabels",
        "Boxes",
        "ColorJitter",
        "GaussianBlur",
        "Grayscale",
        "KeyPoints",
        "RandAugment",
        "RandomAffine",
    }
    pixels |= {
        "Albumentations",
        "CenterCropDown",
        "ChatTemplate",
        "CropRecord",
        "CropTopLeft",
        "FitToShape",
        "OneShape",
        "OriginalSize",
        "PatchGrid",
        "PatchMask",
        "Patches",
        "RandomErasing",
        "RandomGrayscale",
        "RandomRotation",
        "Real",
        "RowExchange",
        "StepTotal",
        "Torchvision",
    }  # saved by tests of their own
    pixels |= {"FixedLayout", "FlatImages", "GridPositions", "ImageExtents", "ImageGrids", "ImagePlaces"}
    pixels |= {"ImageTokens", "PatchLayout", "TileLayout"}
    assert absent == {"CenterCrop", "Jpeg", "OneStream", "RandomCrop", "Resize", "Source", *orders, *pixels}


@pytest.mark.parametrize(
    "text", ["null", "3", '"deliver"', "[]", "{}", '{"verb": "sort"}', '{"verb": {}}', '{"verb": "deliver", "x": 1}']
)
def test_what_is_no_plan_is_refused(catalog: saved_plans.Held, text: str) -> None:
    with pytest.raises(sp.errors.PlanError, match=r"saved plan|Upgrade spiral"):
        read_back(json.loads(text), catalog)


@pytest.mark.parametrize("what", ["verbs", "expressions", "lists"])
def test_a_plan_nested_beyond_reason_is_refused(catalog: saved_plans.Held, plans: dict[str, Any], what: str) -> None:
    plan = copy.deepcopy(plans["relational"])
    collate = plan["source"]["@node"]
    inner: Any = {"verb": "scan", "relation": "d"}
    if what == "verbs":
        for _ in range(5_000):
            inner = {"verb": "limit", "source": {"@node": inner}, "count": 9}
        collate["source"]["@node"]["source"] = {"@node": inner}
    elif what == "expressions":
        for _ in range(5_000):
            inner = ["not", inner]
        collate["source"]["@node"]["source"] = {
            "@node": {
                "verb": "filter",
                "source": {"@node": {"verb": "scan", "relation": "d"}},
                "predicate": {"@expr": inner},
            }
        }
    else:
        for _ in range(5_000):
            inner = [inner]
        collate["fields"] = inner

    with pytest.raises(sp.errors.PlanError):
        read_back(plan, catalog)


# ---- what each place may hold


def changed(plan: Any, path: str, value: Any) -> Any:
    """A copy of a plan with one place exchanged."""
    out = copy.deepcopy(plan)
    *steps, last = [int(step) if step.isdigit() else step for step in path.split("/")]
    at = out["source"]["@node"]
    for step in steps:
        at = at[step]
    at[last] = value
    return out


@pytest.mark.parametrize(
    ("kind", "path", "value", "says"),
    [
        ("images", "batch_size", "4", r"collate\.batch_size is '4'; it should be int or null"),
        ("images", "batch_size", True, r"collate\.batch_size is True; it should be int or null"),
        ("images", "batch_size", 2**31, r"batch_size is 2147483648. Give at most 2147483647"),
        ("images", "on_error", "ignore", r'on_error is \'ignore\'; it should be "raise" or "skip"'),
        ("images", "fields/0", ["a"], r"collate\.fields\[0\] is \['a'\]; it should be \[str, Field\]"),
        ("images", "fields/0/1", {"@class": "Raw"}, r"fields\[0\]\[1\] is 'Raw'; it should be Field"),
        ("images", "fields/0/1/transforms/0", 3, r"fields\[0\]\[1\]\.transforms\[0\] is 3; it should be Transform"),
        ("images", "fields/0/1/decode", {}, r"\.decode is an object of ; it should be str or null"),
        ("images", "fields/0/0", "\ud800", r"fields\[0\]\[0\] is .*; it should be text of whole characters"),
        ("images", "fields/1/0", "image", r"two columns would be called 'image'. Give each field a name of its own"),
        ("images", "source", {"@expr": ["col", "n"]}, r"collate\.source is an object of '@expr'; it should be Node"),
        ("images", "source/@node/assignment/lanes", 2**40, r"lanes is 1099511627776. Give at most 65536"),
        ("images", "source/@node/identity", ["sample_id"] * 2, r"called 'sample_id'. Name it once"),
        ("images", "source/@node/epoch", 2**40, r"epoch is 1099511627776. Give at most 2147483647"),
        ("images", "source/@node/order/shard_key", "n", r"sample\.order\.shard_key is 'n'; it should be \[str, ...\]"),
        ("tokenized", "formation/budget/count", "guess", r'it should be "padded" or "real"'),
        ("tokenized", "source/@node/transform/tokenizer", "é" * 300, r"tokenizer .* is not in catalog"),
        ("tokenized", "source/@node/item_bytes", 3, r"tokenize: ids take 2 or 4 bytes, not 3. Save the stream again"),
        ("mapped", "source/@node/function/kind", "00ff", r"assemble\.function\.kind is no Arrow type"),
        ("mapped", "source/@node/function/columns", ["n", 3], r"function\.columns\[1\] is 3; it should be str"),
        (
            "mixed",
            "source/@node/source/@node/schedule",
            [[0, [1e308, 1]], [1, [-1.0, 1]]],
            r"mix: schedule at sample 1",
        ),
    ],
)
def test_a_value_that_does_not_fit_is_named_by_its_place(
    catalog: saved_plans.Held, plans: dict[str, Any], kind: str, path: str, value: Any, says: str
) -> None:
    with pytest.raises(sp.SpiralError, match=says):
        used(catalog, changed(plans[kind], path, value))


@pytest.mark.parametrize(
    ("saved", "says"),
    [
        (["col"], "is not a saved expression"),
        (["col", 3], "3 is no text"),
        (["==", ["col", "n"]], r"'==' takes 2 values, here are 1"),
        (["and", ["col", "n"]], r"'and' takes 2 or more values"),
        (["lit", "python int", 3], "3 is no text"),
        (["lit", "python float", "much"], "is not a saved expression"),
        (["lit", "date32[day]", str(2**40)], r"1099511627776 is beyond date32\[day\]"),
        (["lit", "python list", []], r"\[\] is no constant of type python list"),
        (["cast", "os:system", ["col", "n"]], "is not a saved expression"),
        ([{"@function": "os:system"}], "is unknown to this version"),
        ({}, "is unknown to this version"),
    ],
)
def test_an_expression_that_is_none_is_refused(
    catalog: saved_plans.Held, plans: dict[str, Any], saved: Any, says: str
) -> None:
    plan = changed(plans["mapped"], "source/@node/source/@node/source/@node/exprs", [{"@expr": saved}])

    with pytest.raises(sp.errors.PlanError, match=says):
        used(catalog, plan)


# ---- whose code


MINE = """
import os
import subprocess
from dataclasses import dataclass, field
from subprocess import getoutput

import numpy

from spiral_stream.plan.fields.profiles import Profile

DONE = []


def good(texts):
    return texts


def late(texts):
    import antigravity

    return antigravity, texts


class Tools:
    os = os
    run = subprocess.run

    @staticmethod
    def plain(texts):
        return texts

    @classmethod
    def made(cls, texts):
        return texts


class Proxy:
    def __call__(self, texts):
        return texts

    def __getattr__(self, name):
        import antigravity

        return {"__module__": "mine", "__qualname__": "proxy"}[name]


proxy = Proxy()


class Shell(subprocess.Popen):
    pass


@dataclass(frozen=True)
class Settings:
    size: int = 1

    def __post_init__(self):
        DONE.append(self)


@dataclass(frozen=True)
class Kept(Profile):
    size: int = 1
    changes_pixels = False


def __getattr__(name):
    import antigravity

    raise AttributeError(name)
"""

AUDITED = """
import json, sys, types, warnings
import mine
import tests.fixtures.chains
import spiral_stream
from spiral_stream import SpiralError


class Held(spiral_stream.Catalog):
    def __init__(self, uri):
        super().__init__(uri)
        self.registry.saved = types.SimpleNamespace(plan=json.loads)


catalog = Held(sys.argv[1])
cases = json.loads(sys.stdin.read())


def open_it(plan):
    with catalog.open_stream(json.dumps(plan)) as stream:
        stream.explain()


warnings.simplefilter("ignore")
for plan in cases["sound"]:
    open_it(plan)  # what our own rooms import at first use is imported now
seen = []
WATCHED = ("import", "exec", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn")
quiet = []


def hook(event, args):
    if not quiet and (event in WATCHED or event.startswith(("subprocess.", "pty.", "ctypes.dlopen", "socket."))):
        seen.append([event, str(args[:1])[:200]])


sys.addaudithook(hook)
before = set(sys.modules)
out = []
for name, plan in cases["hostile"]:
    try:
        open_it(plan)
        out.append([name, "opened", ""])
    except SpiralError as error:
        out.append([name, type(error).__name__, str(error)])
quiet.append(True)
print(json.dumps({"out": out, "seen": seen, "new": sorted(set(sys.modules) - before), "done": len(mine.DONE)}))
"""
FUNCTIONS: Final = [  # name, and whether the refusal is about trust
    ("subprocess:getoutput", True),
    ("os:system", True),
    ("posix:system", True),
    ("builtins:eval", True),
    ("builtins:exec", True),
    ("importlib:import_module", True),
    ("pty:spawn", True),
    ("antigravity:geohash", True),
    ("numpy:load", True),
    ("pyarrow.fs:copy_files", True),
    ("spiral_stream.connection:connect", True),
    ("spiral_stream:connect", True),
    ("not_imported:good", True),
    ("mine.sub:good", True),
    ("__main__:open_it", True),
    ("sitecustomize:run", True),
    ("mine:os.system", False),
    ("mine:subprocess.getoutput", False),
    ("mine:getoutput", False),
    ("mine:Tools.os.system", False),
    ("mine:Tools.run", False),
    ("mine:Shell.communicate", False),
    ("mine:numpy.load", False),
    ("mine:good.__globals__", False),
    ("mine:good.__class__", False),
    ("mine:absent", False),
    ("mine:proxy", False),
    ("mine:", False),
    (":good", False),
    ("mine", False),
    ("mine:<lambda>", False),
    ("../mine:good", False),
    ("mine:good:os", False),
]
CLASSES: Final = [
    ("subprocess:Popen", True),
    ("antigravity:fly", True),
    ("not_imported:Kept", True),
    ("spiral_stream.plan.fields.profiles:Raw", True),
    ("mine:Settings", False),
    ("mine:Tools", False),
    ("mine:Shell", False),
    ("Stack", False),
    ("Odd", False),
]


@pytest.fixture(scope="module")
def hostile(
    catalog: saved_plans.Held, plans: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What happened in another process that opened hostile plans under an audit hook."""
    folder = tmp_path_factory.mktemp("path")
    (folder / "mine.py").write_text(MINE)
    (folder / "not_imported.py").write_text(MINE)
    function = {"columns": ["text"], "kind": kind_of(pa.utf8()), "batched": False, "random": False, "version": "1"}
    mapped, images, tokenized = plans["mapped"], plans["images"], plans["tokenized"]
    where, sampled = "source/@node/function", mapped["source"]["@node"]["source"]
    cases = []
    for name, _ in FUNCTIONS:
        cases.append((name, changed(mapped, where, {"@function": name, **function})))
        test = {"verb": "keep", "source": sampled, "predicate": {"@function": name, **function}}
        cases.append((f"filter {name}", changed(mapped, "source", {"@node": test})))
    profile = "source/@node/source/@node/profiles"
    for name, _ in CLASSES:
        cases.append((f"class {name}", changed(images, profile, [["image_ref", {"@class": name, "@version": 1}]])))
        cases.append((f"order {name}", changed(images, "source/@node/order", {"@class": name, "@version": 1})))
    cases.append(("folder", changed(tokenized, "source/@node/transform/tokenizer", str(folder))))
    good = {"@class": "mine:Kept", "@version": 1, "size": 2}
    plain = {**function, "@function": "mine:Tools.plain", "columns": ["n"], "kind": kind_of(pa.list_(pa.int64()))}
    controls = [
        *plans.values(),
        changed(images, profile, [["image_ref", good]]),
        changed(mapped, "source/@node/source/@node/function", plain),
    ]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", AUDITED, str(catalog.root)],
        input=json.dumps({"sound": controls, "hostile": cases}),
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: dict[str, Any] = json.loads(ran.stdout)
    return {**found, "out": {name: (kind, text) for name, kind, text in found["out"]}}


def kind_of(kind: pa.DataType) -> str:
    return pa.schema([("", kind)]).serialize().to_pybytes().hex()


def test_opening_a_hostile_plan_imports_nothing_and_starts_nothing(hostile: dict[str, Any]) -> None:
    assert hostile["seen"] == []
    assert hostile["new"] == []
    assert hostile["done"] == 0


@pytest.mark.parametrize(("name", "untrusted"), FUNCTIONS)
@pytest.mark.parametrize("place", ["", "filter "])
def test_a_function_of_others_is_refused(hostile: dict[str, Any], place: str, name: str, untrusted: bool) -> None:
    kind, text = hostile["out"][place + name]

    assert kind == ("TrustError" if untrusted else "PlanError"), text
    assert name.partition(":")[0] in text
    if untrusted:
        assert f'open_stream(..., trust=["{name.partition(":")[0]}"])' in text


@pytest.mark.parametrize(("name", "untrusted"), CLASSES)
@pytest.mark.parametrize("place", ["class ", "order "])
def test_a_class_of_others_is_refused(hostile: dict[str, Any], place: str, name: str, untrusted: bool) -> None:
    kind, text = hostile["out"][place + name]

    assert kind == ("TrustError" if untrusted else "PlanError"), text


def test_a_folder_is_no_tokenizer_of_a_plan(hostile: dict[str, Any]) -> None:
    assert hostile["out"]["folder"][0] == "CatalogError"
