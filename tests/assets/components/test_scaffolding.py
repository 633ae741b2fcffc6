"""``dg scaffold defs`` looks at data and writes what it found, and refuses what YAML cannot declare."""

import io
import json
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click import ClickException
from dagster.components.scaffold.scaffold import get_scaffolder
from PIL import Image

import spiral_assets
from spiral_assets import components
from spiral_assets.components import Relation
from tests.fixtures import stores

pytestmark = pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated")  # Dagster resolves YAML by it
PROJECT = """
directory_type = "project"
[project]
root_module = "defs"
defs_module = "defs"
code_location_name = "shop"
code_location_target_module = "spiral_assets.project"
"""


def jpeg(shade: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (40, 30), (shade, 9, 9)).save(out, "JPEG")
    return out.getvalue()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of an empty project, with photos in it."""
    root = tmp_path / "project"
    (root / "defs").mkdir(parents=True)
    (root / "data").mkdir()
    (root / "dg.toml").write_text(PROJECT)
    rows = {"photo_id": [f"p{k}" for k in range(12)], "picture": [jpeg(9 * k) for k in range(12)]}
    rows |= {"id": list(range(12)), "label": [k % 3 for k in range(12)]}
    pq.write_table(pa.table(rows), root / "data" / "photos.parquet")
    monkeypatch.setenv("SHOP", str(root / "data"))
    return root


def scaffolded(root: Path, **params: str) -> dict[str, object]:
    scaffolder, folder = get_scaffolder(Relation), root / "defs" / "photos"
    assert isinstance(scaffolder, dg.Scaffolder)
    folder.mkdir()
    made = scaffolder.get_scaffold_params()(**params)
    scaffolder.scaffold(dg.ScaffoldRequest("spiral_assets.Relation", folder, "yaml", root, made))
    text = (folder / "defs.yaml").read_text()
    found = yaml.safe_load(text)
    known = yaml.safe_load(text.replace("{{ context.project_root }}", str(root)))
    assert found["type"] == "spiral_assets.components.Relation"
    assert isinstance(Relation.resolve_from_dict(known["attributes"]), Relation)
    attributes: dict[str, object] = found["attributes"]
    return attributes


def test_source_identity_labels_and_semantics_are_found(project: Path) -> None:
    assert scaffolded(project, uri=str(project / "data" / "photos.parquet")) == {
        "name": "photos",
        "source": {"kind": "parquet", "path": "{{ context.project_root }}/data/photos.parquet"},
        "identity": "id",
        "semantic": {"picture": "image/jpeg-ref"},
        "labels": ["label"],
    }


def test_a_variable_stays_a_variable_and_a_name_may_be_said(project: Path) -> None:
    attributes = scaffolded(project, uri="$SHOP/photos.parquet", name="shop.photos")

    assert attributes["name"] == "shop.photos"
    assert attributes["source"] == {"kind": "parquet", "path": "$SHOP/photos.parquet"}


def test_data_on_a_store_are_looked_at(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stores.s3_server() as endpoint:
        bucket = stores.new_bucket(endpoint)
        stores.put(endpoint, bucket, "shop/photos.parquet", (project / "data" / "photos.parquet").read_bytes())
        lines = [f"{name} = {json.dumps(value)}" for name, value in stores.options(endpoint).items()]
        profile = project / "storage.toml"
        profile.write_text("\n".join(["[shop]", f'prefix = "s3://{bucket}"', *lines]))
        monkeypatch.setenv("SPIRAL_STORAGE", str(profile))
        monkeypatch.setenv("SPIRAL_NODE_CACHE", str(project / "node"))

        found = scaffolded(project, uri=f"s3://{bucket}/shop/photos.parquet")

    assert found["source"] == {"kind": "parquet", "path": f"s3://{bucket}/shop/photos.parquet"}
    assert (found["identity"], found["labels"]) == ("id", ["label"])


def test_nothing_to_look_at_gives_the_example(project: Path) -> None:
    assert scaffolded(project)["name"] == "shop.photos"


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("nowhere", r"^.*nowhere is not there\. Give a file, a folder, a pattern, or a URI$"),
        ("$SPIRAL_NOT_SET/photos", r"\$SPIRAL_NOT_SET is not set in the environment"),
        ("flat", r"flat is a folder of images without classes, .* Put them into folders, one per class$"),
    ],
)
def test_what_cannot_be_declared_says_what_to_do_and_leaves_nothing(
    uri: str, said: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    (project / "flat").mkdir()
    (project / "flat" / "a.jpg").write_bytes(jpeg(3))

    with pytest.raises(ClickException, match=said):
        scaffolded(project, uri=uri)

    assert not (project / "defs" / "photos").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_dg_scaffolds_a_relation_that_it_then_lists(project: Path) -> None:
    dg_command = Path(sys.executable).with_name("dg")

    def run(*words: str) -> str:
        done = subprocess.run([dg_command, *words], cwd=project, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("scaffold", "defs", "spiral_assets.Catalog", "lake")
    run("scaffold", "defs", "spiral_assets.Relation", "photos", "--uri", "data/photos.parquet", "--name", "shop.photos")
    run("check", "yaml")

    assert "catalog/shop/photos" in run("list", "defs", "--json")


def test_a_component_may_be_named_without_its_folder() -> None:
    assert spiral_assets.Relation is Relation
    assert all(getattr(spiral_assets, name) is getattr(components, name) for name in components.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = spiral_assets.Nothing
