"""transformers.Trainer on a text stream: 20 steps, a checkpoint, another process, other ranks; nothing lost or repeated."""

import json
import os
import subprocess
import sys
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import pytest

import spiral_stream as sp
from tests.fixtures.dev_server import free_port
from tests.fixtures.streams import our_threads
from tests.fixtures.waits import until
from tests.stream.adapters import documents

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments  # noqa: E402  after the skip

from spiral_stream.adapters import StreamTrainer  # noqa: E402
from spiral_stream.adapters.trainer import POSITION_FILE  # noqa: E402

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),
    pytest.mark.filterwarnings("ignore:lancedb fork support is experimental"),
]

EPOCHS = {"max_steps": -1, "num_train_epochs": 2}  # 15 batches each
PLANS = {
    "buckets": (documents.BUCKETS, {}),
    "accumulated": (documents.BUCKETS, {"gradient_accumulation_steps": 3}),
    "packed": (documents.PACKED, {}),
    "counted": (documents.COUNTED, {}),
    "epochs": (documents.COUNTED, EPOCHS),
    "epochs, accumulated": (documents.COUNTED, {**EPOCHS, "gradient_accumulation_steps": 2}),
    "epochs, at a border": (documents.COUNTED, {**EPOCHS, "save_steps": 15}),
}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    documents.make_catalog(folder)
    return folder


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """The model is tiny: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    until(lambda: not our_threads())  # those of a stream that was dropped end when a core is free


class Recording(StreamTrainer):
    """Writes down what the model saw: the first tokens of each batch, its samples, and the loss."""

    def training_step(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        assert all(isinstance(value, torch.Tensor) for value in inputs.values())
        loss = super().training_step(model, inputs, *args, **options)
        self.saw = [*getattr(self, "saw", []), tuple(self.batch_lists["sample_id"])]
        self.last = (inputs, float(loss))
        return loss


def stream_of(texts: Path, formed: Any) -> Any:
    return documents.plan(sp.connect(str(texts / "catalog")), formed).to_torch(prefetch=2)


def language_model(dropout: float = 0.0) -> Any:
    config = LlamaConfig(
        vocab_size=documents.VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        attention_dropout=dropout,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def trained(out: Path, stream: Any, resume: str | None = None, dropout: float = 0.1, **options: Any) -> Recording:
    given = {
        "learning_rate": 1e-2,
        "max_steps": 20,
        "save_steps": 10,
        "logging_steps": 1,
        "save_strategy": "steps",
        **options,
    }
    args = TrainingArguments(str(out), use_cpu=True, report_to=[], disable_tqdm=True, seed=3, **given)
    torch.manual_seed(0)
    trainer = Recording(language_model(dropout), args, train_dataset=stream)
    with stream:
        trainer.train(resume)
    return trainer


def weights(trainer: Any) -> list[Any]:
    return list(trainer.model.state_dict().values())


def bare(texts: Path, formed: Any, count: int) -> list[tuple[str, ...]]:
    with stream_of(texts, formed) as stream:
        epochs = chain.from_iterable(repeat(stream))
        return [tuple(batch["sample_id"]) for batch in islice(epochs, count)]


@pytest.mark.parametrize(
    "name",
    [
        *("accumulated", "packed", "epochs, accumulated", "epochs, at a border"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("buckets", "counted", "epochs")),
    ],
)
def test_a_resumed_run_sees_the_rest_and_ends_with_the_same_weights(texts: Path, tmp_path: Path, name: str) -> None:
    formed, options = PLANS[name]
    whole = trained(tmp_path, stream_of(texts, formed), **options)
    expected = bare(texts, formed, len(whole.saw))
    saved = options.get("save_steps", 10)
    checkpoint = tmp_path / f"checkpoint-{saved}"
    place = json.loads((checkpoint / POSITION_FILE).read_text())["stream"]
    had = min(
        len(expected), {"epochs, accumulated": 19}.get(name, saved * options.get("gradient_accumulation_steps", 1))
    )

    rest = trained(tmp_path, stream_of(texts, formed), str(checkpoint), **options)

    assert whole.saw == expected
    assert rest.saw == expected[had:]
    assert len(json.dumps(place)) < 1_000
    assert all(torch.equal(one, other) for one, other in zip(weights(whole), weights(rest), strict=True))
    assert (rest.state.global_step, rest.state.epoch) == (whole.state.global_step, whole.state.epoch)


@pytest.mark.slow  # a process that imports transformers; what a run resumes from lies in files, also in one process
def test_a_fresh_process_resumes(texts: Path, tmp_path: Path) -> None:
    whole = trained(tmp_path, stream_of(texts, documents.BUCKETS))
    program = "from tests.e2e.test_trainer import resume_alone; resume_alone()"
    given = json.dumps([str(tmp_path), str(texts)])
    ran = subprocess.run(
        [sys.executable, "-c", program, given],
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
        env=environment(),
    )
    assert ran.returncode == 0, ran.stderr[-3_000:]
    saw, state = json.loads((tmp_path / "alone.json").read_text()), torch.load(tmp_path / "alone.pt")

    assert [tuple(batch) for batch in saw] == whole.saw[10:]
    assert all(torch.equal(one, other) for one, other in zip(weights(whole), state, strict=True))


def resume_alone() -> None:
    """In another process: the second half of a run."""
    out, texts = (Path(each) for each in json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    rest = trained(out, stream_of(texts, documents.BUCKETS), str(out / "checkpoint-10"))
    (out / "alone.json").write_text(json.dumps(rest.saw))
    torch.save(weights(rest), out / "alone.pt")


def test_the_loss_is_that_of_the_next_token(texts: Path, tmp_path: Path) -> None:
    trainer = trained(tmp_path, stream_of(texts, documents.PACKED), max_steps=1, learning_rate=0.0, dropout=0.0)
    inputs, loss = trainer.last
    with torch.no_grad():
        logits_BTV = trainer.model.eval()(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
    with documents.plan(
        sp.connect(str(texts / "catalog")), documents.PACKED, labels=sp.ShiftedLabels("tokens")
    ).to_torch() as shifted:
        labels_BT = shifted.batch(0)["labels"]
    byhand = torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1), labels_BT.flatten(), ignore_index=-100)

    assert loss == pytest.approx(float(byhand), rel=1e-5)


def test_a_stream_is_evaluated_as_it_is(texts: Path, tmp_path: Path) -> None:
    stream = stream_of(texts, documents.BUCKETS)
    judged = stream.eval()
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to=[], disable_tqdm=True, max_steps=1)
    with stream, judged:
        trainer = StreamTrainer(language_model(), args, train_dataset=stream, eval_dataset=judged)
        first, again = trainer.evaluate(), trainer.evaluate()

    assert first["eval_loss"] == again["eval_loss"] > 0


@pytest.mark.slow  # a worker process each
def test_workers_give_trainer_the_same(texts: Path, tmp_path: Path) -> None:
    options = {"dataloader_num_workers": 2, "dataloader_persistent_workers": True}
    whole = trained(tmp_path, stream_of(texts, documents.BUCKETS), **options)
    rest = trained(tmp_path, stream_of(texts, documents.BUCKETS), str(tmp_path / "checkpoint-10"))

    assert whole.saw == bare(texts, documents.BUCKETS, 20)
    assert rest.saw == whole.saw[10:]
    assert all(torch.equal(one, other) for one, other in zip(weights(whole), weights(rest), strict=True))


# ---- ranks


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1", **more}


def on_ranks(world: int, out: Path, texts: Path, resume: str | None, steps: int) -> list[list[tuple[str, ...]]]:
    """Train on gloo ranks; what each saw."""
    port = str(free_port())
    program = "from tests.e2e.test_trainer import one_rank; one_rank()"
    given = json.dumps([str(out), str(texts), resume, steps])
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program, given],
            env=environment(
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE=str(world),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
                ACCELERATE_USE_CPU="1",
            ),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    for rank in ranks:
        _, errors = rank.communicate(timeout=250)
        assert rank.returncode == 0, errors[-3_000:]
    return [[tuple(batch) for batch in json.loads((out / f"saw-{rank}.json").read_text())] for rank in range(world)]


def one_rank() -> None:
    """In a process of its own: one rank of a run."""
    out, texts, resume, steps = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    made = trained(Path(out), stream_of(Path(texts), documents.BUCKETS), resume, max_steps=steps, ddp_backend="gloo")
    Path(out, f"saw-{os.environ['RANK']}.json").write_text(json.dumps(made.saw))
    torch.distributed.destroy_process_group()


@pytest.mark.slow  # five processes that import transformers: 60 s on two busy cores
def test_ranks_share_the_stream_and_may_change_in_number(texts: Path, tmp_path: Path) -> None:
    with stream_of(texts, documents.BUCKETS) as stream:
        per_epoch = len(list(stream))
    of_ranks = per_epoch - per_epoch % 2  # the last batches that do not give each rank one are dropped
    expected = bare(texts, documents.BUCKETS, 2 * per_epoch)

    first = on_ranks(2, tmp_path, texts, None, 10)
    dealt = expected[:of_ranks] + expected[per_epoch:]
    assert [batch for step in zip(*first, strict=True) for batch in step] == dealt[: 2 * 10]

    alone = trained(
        tmp_path / "alone", stream_of(texts, documents.BUCKETS), str(tmp_path / "checkpoint-10"), max_steps=15
    )
    begun = per_epoch + 2 * 10 - of_ranks
    assert alone.saw == expected[begun : begun + 5]
