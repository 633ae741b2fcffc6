"""Training through Dagster Pipes: what is reported, and a kill that costs no batch."""

import json
import subprocess
import threading
import types
from pathlib import Path

import dagster as dg
import pytest

import spiral_stream as spiral
from spiral_assets.assets import training_process
from spiral_assets.demo.killer import Killer
from spiral_assets.demo.proof import prove
from spiral_assets.plans import images as plans
from tests.assets.conftest import Place, evaluations, metadata
from tests.fixtures import warm

MODEL = "models/images_cnn"
EPOCHS = 5  # so that several steps are left in which a busy machine sees the moment of the kill

# Dagster's own Pipes client uses a preview feature and a deprecated name of Dagster's; nothing here can avoid it.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Function `PipesMessageReader.expected_writer_count`"),
    pytest.mark.filterwarnings("ignore:AssetExecutionContext.run_id is deprecated"),
]


@pytest.fixture
def place(prepared_images: tuple[Place, dg.ExecuteInProcessResult]) -> Place:
    """Streams of enough images for three batches an epoch; each test trains in a folder of its own."""
    return prepared_images[0]


@pytest.fixture(autouse=True)
def warm_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training processes are forked from one that has imported torch: two cold ones take 8 CPU s to import it."""
    programs = types.SimpleNamespace(**{**vars(subprocess), "Popen": warm.Popen})
    monkeypatch.setattr(training_process, "subprocess", programs)


def test_a_killed_process_is_retried_and_goes_on_at_the_exact_next_batch(place: Place) -> None:
    run_id = "11111111-2222-3333-4444-555555555555"
    ledger = place.root / "data" / "checkpoints" / run_id / "images_cnn" / "ledger.jsonl"
    killer = Killer(ledger)
    watching = threading.Thread(target=killer.watch, daemon=True)
    watching.start()

    config = {"models__images_cnn": {"config": {"epochs": EPOCHS, "save_every": 1}}}
    result = place.run(MODEL, ops=config, run_id=run_id)

    killer.stop()
    watching.join(10)
    assert killer.killed is not None
    assert result.success
    assert [event.step_key for event in result.all_events if event.event_type_value == "STEP_UP_FOR_RETRY"] == [
        "models__images_cnn"
    ]
    proof = prove(str(place.root / "catalog"), ledger, plans.TRAIN, EPOCHS * 3)
    assert proof.exact
    assert proof.processes == 2
    assert proof.expected == EPOCHS * 3
    assert proof.resumed_at > (0, 0)
    lines = ledger.read_text().splitlines()
    first, *rest = json.loads(lines[-1])["ids"]
    ledger.write_text("\n".join([*lines[:-1], json.dumps({**json.loads(lines[-1]), "ids": [*rest, first]})]))
    assert not prove(str(place.root / "catalog"), ledger, plans.TRAIN, EPOCHS * 3).exact  # two samples changed places
    ledger.write_text("\n".join(lines[:-1]))
    assert not prove(str(place.root / "catalog"), ledger, plans.TRAIN, EPOCHS * 3).exact  # a batch is missing
    facts = metadata(result, MODEL)
    assert (facts["processes"], facts["steps"], facts["epochs"]) == (2, EPOCHS * 3, EPOCHS)
    assert (facts["final_cursor"]["epoch"], facts["final_cursor"]["batch"]) == (EPOCHS, 0)
    assert facts["steps_per_epoch"] == 3
    assert facts["samples_per_s"] > 0
    rows = facts["progress"]
    assert [row["step"] for row in rows] == list(range(1, EPOCHS * 3 + 1))  # of both processes
    assert [row["epoch"] for row in rows] == [epoch for epoch in range(EPOCHS) for _ in range(3)]
    assert facts["bound_by"] in {"compute", "data (fetch)", "data (transform)"}
    assert facts["stream"] in (dg.AssetKey(["streams", "images"]), "streams/images")
    assert Path(facts["ledger"]) == ledger
    assert evaluations(result)["beats_chance"].severity.value == "WARN"


def test_alone_it_reports_to_the_terminal_and_a_second_call_goes_on(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    from spiral_assets.training.__main__ import images as train

    train(folder=place.root / "run", epochs=1)
    assert "begins at epoch 0, batch 0" in capsys.readouterr().out
    train(folder=place.root / "run", epochs=2)
    assert "resumes at epoch 1, batch 0" in capsys.readouterr().out
    result = json.loads((place.root / "run" / "result.json").read_text())
    assert (result["steps"], result["processes"]) == (6, 2)
    (part,) = result["samples_seen"]
    assert (part["begin"], part["end"], part["steps"]) == ([0, 0], [2, 0], 6)


def test_a_checkpoint_of_another_plan_is_refused(place: Place) -> None:
    torch = pytest.importorskip("torch")
    from spiral_assets.training.checkpoint import Checkpoint

    catalog = spiral.connect(str(place.root / "catalog"))
    kept, model = Checkpoint(place.root / "refused"), torch.nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    with catalog.open_stream(plans.VALIDATION, device="cpu") as other:
        kept.save(other.state_dict(), 0, {"model": model, "optimizer": optimizer})

    with (
        catalog.open_stream(plans.TRAIN, device="cpu") as stream,
        pytest.raises(spiral.errors.ResumeError, match="this is plan"),
    ):
        kept.load(stream, {"model": model, "optimizer": optimizer})
