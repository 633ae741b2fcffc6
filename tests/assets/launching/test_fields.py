"""`launcher:` in YAML: what is wrong is refused when it is read, with file and line; what is right is what the schema allows."""

import re
from pathlib import Path

import dagster as dg
import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_assets.components import PlanCache, TrainingJob
from spiral_assets.launching.fields import KINDS, launcher_of, launcher_schema, wrong_launcher
from spiral_assets.launching.kubernetes import KubernetesLauncher
from spiral_assets.launching.launcher import FarJob
from spiral_assets.launching.slurm import SlurmLauncher
from spiral_assets.yaml_definitions import definitions_from

pytestmark = pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated")  # Dagster resolves YAML by it
TRAINING = "type: spiral_assets.components.TrainingJob\nattributes:\n  name: line\n"
CACHE = """
type: spiral_assets.components.PlanCache
attributes:
  name: photos
  plan: {function: "spiral_assets.plans.standard:decoded_images", arguments: {relation: photos}}
"""
WRONG = {
    "launcher: local": r":4: launcher: 'local' is wrong.*should be a mapping",
    "launcher: {}": r":4: launcher: it has no kind. Give one of local, ray, kubernetes, slurm",
    "launcher: {kind: rey}": r":4: launcher\.kind: 'rey' is no kind of launcher; did you mean 'ray'\?.*Correct it",
    "launcher:\n    kind: ray\n    adress: x": r":6: launcher\.adress: 'adress' is no field .*did you mean 'address'\?",
    "launcher:\n    kind: ray\n    num_gpus: many": r":6: launcher\.num_gpus: 'many' is wrong\. .*number.* Correct it",
    "launcher:\n    kind: local\n    deadline_h: 0": r":6: launcher\.deadline_h: 0 is wrong\. .*greater than 0",
    "launcher:\n    kind: local\n    env: {A: [1]}": r":6: launcher\.env\.A: \[1\] is wrong",
    "launcher: {kind: kubernetes}": r":4: launcher.image: it has no image. Give it: Image of the pod",
    "launcher: {kind: slurm, hots: login}": r":4: launcher\.hots: .*did you mean 'host'\?",
}


def load(folder: Path, text: str) -> dg.Definitions:
    file = folder / "line.yaml"
    file.write_text(text)
    return definitions_from(file)


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_launcher_is_refused_when_it_is_read_with_file_and_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(Exception, match="launcher") as found:
        load(tmp_path, f"{TRAINING}  {text}\n")

    assert re.search(r"line\.yaml" + WRONG[text], str(found.value), re.DOTALL), str(found.value)


def test_a_cache_has_a_launcher_too_and_refuses_a_wrong_one(tmp_path: Path) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=r"line\.yaml:6: launcher\.kind: 'rey' is no kind"):
        load(tmp_path, f"{CACHE}  launcher: {{kind: rey}}\n")


@pytest.mark.parametrize("text", [TRAINING, CACHE])
def test_a_launcher_brings_a_sensor_that_finds_jobs_and_its_absence_none(tmp_path: Path, text: str) -> None:
    assert not load(tmp_path, text).sensors
    found = load(tmp_path, f"{text}  launcher: {{kind: local}}\n")
    assert [each.name for each in found.sensors or ()] == [
        "follow_models_line" if text is TRAINING else "follow_caches_photos"
    ]


@pytest.mark.parametrize("component", [TrainingJob, PlanCache])
def test_the_schema_that_editors_have_names_the_fields(component: type[dg.Component]) -> None:
    schema = component.get_model_cls().model_json_schema()  # type: ignore[attr-defined]  # of a component with a model

    assert "allOf" in str(schema["properties"]["launcher"])


FIELDS = st.dictionaries(
    st.sampled_from(["kind", "env", "deadline_h", "image", "address", "partition", "grace_s", "other"]),
    st.one_of(st.sampled_from([*KINDS, "x"]), st.just({}), st.integers(1, 3)),
)


@given(said=FIELDS)
def test_what_the_schema_refuses_is_refused_when_it_is_read(said: dict[str, object]) -> None:
    try:
        jsonschema.validate(said, {"type": "object", **launcher_schema()})
    except jsonschema.ValidationError:
        assert list(wrong_launcher(said))


JOB = FarJob("spiral-models-line-1", Path("shared", "1"), ["python", "train.py", "--name", "it's"], {"A": "two words"})


def test_the_manifest_of_a_job_of_kubernetes() -> None:
    """Held against the definitions of Kubernetes by hand; it was not run."""
    launcher = launcher_of(
        {
            "kind": "kubernetes",
            "image": "shop:1",
            "env": {"B": "1"},
            "resources": {"limits": {"nvidia.com/gpu": 8}},
            "service_account": "trainer",
            "pod_spec": {"nodeSelector": {"gpu": "yes"}},
        }
    )
    assert isinstance(launcher, KubernetesLauncher)
    found = launcher.manifest(JOB)

    assert (found["kind"], found["metadata"]["name"]) == ("Job", JOB.name)
    pod = found["spec"]["template"]["spec"]
    assert found["spec"]["backoffLimit"] == 0
    assert (pod["restartPolicy"], pod["serviceAccountName"], pod["nodeSelector"]) == (
        "Never",
        "trainer",
        {"gpu": "yes"},
    )
    (container,) = pod["containers"]
    assert container["command"] == JOB.command
    assert container["env"] == [{"name": "B", "value": "1"}, {"name": "A", "value": "two words"}]


def test_the_script_of_a_job_of_slurm_runs_as_it_says(tmp_path: Path) -> None:
    """By bash, which Slurm runs it with; Slurm itself was not run."""
    import subprocess
    import sys

    job = FarJob(
        "a-job",
        tmp_path,
        [sys.executable, "-c", "import os, sys; print(os.environ['A'], sys.argv[1])", "it's"],
        JOB.env,
    )
    launcher = launcher_of({"kind": "slurm", "setup": ["export B=set"], "env": {"C": "$B"}})
    assert isinstance(launcher, SlurmLauncher)

    done = subprocess.run(["bash"], input=launcher.script(job), capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout == "two words it's\n"
