"""TRL's own trainers on streams: the same batches as TRL makes of the same rows, and a resume that is exact."""

import copy
from collections.abc import Iterator
from itertools import chain, cycle, islice, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.errors import BindError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
trl = pytest.importorskip("trl", reason="trl is not installed: make install installs it")
import datasets  # noqa: E402  after the skip
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: E402

from spiral_stream.adapters import StreamTrainer  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*use_reentrant"),
]

SIDES = ("chosen", "rejected")
PARTS = ("input_ids", "attention_mask", "completion_mask")
SAID = st.lists(st.text("ab c", min_size=1, max_size=9), min_size=1, max_size=3)  # answers, each to a question


class StreamSFT(StreamTrainer, trl.SFTTrainer):
    """SFTTrainer on a stream; it writes down what it trained on."""

    def training_step(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        self.saw = [*getattr(self, "saw", []), inputs["input_ids"].tolist()]
        return super().training_step(model, inputs, *args, **options)


class StreamDPO(StreamTrainer, trl.DPOTrainer):
    """DPOTrainer on a stream of pairs."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        return super().compute_loss(model, pairs_of(inputs), *args, **options)


def pairs_of(batch: dict[str, Any]) -> dict[str, Any]:
    """Chosen answers before rejected ones, as DPOTrainer takes them."""
    return {part: torch.cat([batch[f"{side}_{part}"] for side in SIDES]) for part in PARTS}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CI", "1")  # TRL tells nobody
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    special, alphabet = ["<pad>", "<end>"], pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator([], trainers.BpeTrainer(special_tokens=special, initial_alphabet=alphabet))
    made = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<end>", pad_token="<pad>")
    made.chat_template = (  # TRL needs the marks of a generation; ChatTemplate does not
        "{% for m in messages %}{{ m.role + ': ' }}{% if m.role == 'assistant' %}{% generation %}"
        "{{ m.content + eos_token }}{% endgeneration %}{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )
    return made


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> sp.Catalog:
    opened = sp.connect(str(tmp_path_factory.mktemp("trl") / "catalog"))
    opened.register_tokenizer("chat", tokenizer)
    return opened


def model_of(tokenizer: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    special = {"pad_token_id": 0, "eos_token_id": 1}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), use_cache=False, **sizes, **special))


def config(kind: Any, folder: Path, **options: Any) -> Any:
    quiet = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "logging_steps": 50, "bf16": False}
    return kind(str(folder), **{**quiet, "gradient_checkpointing": False, "max_steps": 6, "save_steps": 3, **options})


def said(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def conversation(answers: list[str]) -> list[dict[str, str]]:
    return list(chain.from_iterable((said("user", f"what {k}"), said("assistant", a)) for k, a in enumerate(answers)))


def texts(count: int) -> list[str]:
    return list(islice(cycle(["red", "a blue one", "two and two", "no", "four of them, or five"]), count))


def chats(count: int) -> list[dict[str, Any]]:
    return [{"id": k, "messages": conversation(texts(7)[k % 5 : k % 5 + 1 + k % 2])} for k in range(count)]


def preferences(count: int) -> list[dict[str, Any]]:
    answers = zip(texts(count), texts(count + 2)[2:], strict=True)
    return [
        {
            "id": k,
            "prompt": [said("user", f"ask {k}")],
            "chosen": [said("assistant", a)],
            "rejected": [said("assistant", b)],
        }
        for k, (a, b) in enumerate(answers)
    ]


def sampled(catalog: sp.Catalog, name: str, rows: list[dict[str, Any]], **order: Any) -> Any:
    catalog.register(name, sp.Arrow(pa.Table.from_pylist(rows)), identity="id", replace=True)
    return catalog.table(name).sample(order=order.get("order", sp.Sequential()))


def chat_plan(samples: Any, column: str = "messages", size: int = 4, **options: Any) -> Any:
    template = sp.transforms.ChatTemplate(column, tokenizer="chat", **options)
    fields = {
        "input_ids": sp.Pad("tokens"),
        "attention_mask": sp.PadMask("tokens"),
        "labels": sp.fields.Labels("tokens", mask="loss_mask"),
    }
    return samples.map(template >> ("tokens", "loss_mask")).collate(batch_size=size, fields=fields, last=sp.KeepPartial)


def packed_plan(samples: Any, width: int) -> Any:
    template = sp.transforms.ChatTemplate("messages", tokenizer="chat")
    fields = {
        "input_ids": sp.Pad("tokens"),
        "position_ids": sp.fields.Positions("tokens"),
        "labels": sp.fields.Labels("tokens", mask="loss_mask"),
    }
    return samples.map(template >> ("tokens", "loss_mask")).collate(
        batch_size=2, fields=fields, last=sp.KeepPartial, formation=sp.batching.Packed(max_tokens=width)
    )


def pair_plan(samples: Any, size: int = 4) -> Any:
    fields: dict[str, Any] = {}
    for side, other in (SIDES, SIDES[::-1]):
        template = sp.transforms.ChatTemplate(side, prompt="prompt", tokenizer="chat")
        samples = samples.map(template >> (f"{side}_tokens", f"{side}_mask"))
        fields[f"{side}_input_ids"] = sp.Pad(f"{side}_tokens", also=f"{other}_tokens")
        fields[f"{side}_attention_mask"] = sp.PadMask(f"{side}_tokens")
        fields[f"{side}_completion_mask"] = sp.Pad(f"{side}_mask", also=f"{other}_mask")
    return samples.collate(batch_size=size, fields=fields)


def assert_same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert set(ours) == set(theirs)
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype, name
        assert torch.equal(ours[name], value), name


def documents(batch: dict[str, Any]) -> list[tuple[tuple[int, int], ...]]:
    """The (token, label) pairs of each document of packed rows; padding is no document."""
    ids, labels, places = (batch[name].flatten().tolist() for name in ("input_ids", "labels", "position_ids"))
    begins = [k for k, place in enumerate(places) if place == 0]
    found = [tuple(zip(ids[a:b], labels[a:b], strict=True)) for a, b in pairwise([*begins, len(ids)])]
    return [each for each in found if each != ((0, -100),)]


# ---- the same batches


@settings(max_examples=5)
@given(answers=st.lists(SAID, min_size=1, max_size=9))
def test_padded_conversations_are_those_of_trl(
    catalog: sp.Catalog, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory, answers: list[list[str]]
) -> None:
    rows = [{"id": k, "messages": conversation(each)} for k, each in enumerate(answers)]
    args = config(trl.SFTConfig, tmp_path_factory.mktemp("out"), assistant_only_loss=True, shuffle_dataset=False)
    data = datasets.Dataset.from_list(rows)
    theirs = trl.SFTTrainer(model_of(tokenizer), args, train_dataset=data, processing_class=tokenizer)

    with chat_plan(sampled(catalog, "drawn", rows)).to_torch() as stream:
        for number, batch in enumerate(stream):
            some = range(4 * number, min(4 * number + 4, len(rows)))
            assert_same(batch, theirs.data_collator([theirs.train_dataset[k] for k in some]))


def test_completions_have_the_masks_of_trl(catalog: sp.Catalog, tokenizer: Any, tmp_path: Path) -> None:
    rows = [{"id": each["id"], "prompt": each["prompt"], "completion": each["chosen"]} for each in preferences(16)]
    args = config(trl.SFTConfig, tmp_path, shuffle_dataset=False)
    data = datasets.Dataset.from_list(rows)
    theirs = trl.SFTTrainer(model_of(tokenizer), args, train_dataset=data, processing_class=tokenizer)

    with chat_plan(sampled(catalog, "completions", rows), "completion", prompt="prompt").to_torch() as stream:
        for number, batch in enumerate(stream):
            assert_same(
                batch, theirs.data_collator([theirs.train_dataset[k] for k in range(4 * number, 4 * number + 4)])
            )


def test_packed_rows_hold_the_documents_of_trl_in_no_more_rows(
    catalog: sp.Catalog, tokenizer: Any, tmp_path: Path
) -> None:
    rows = chats(64)
    args = config(trl.SFTConfig, tmp_path, packing=True, assistant_only_loss=True, max_length=160)
    data = datasets.Dataset.from_list(rows)
    theirs = trl.SFTTrainer(model_of(tokenizer), args, train_dataset=data, processing_class=tokenizer)
    expected = [each for row in theirs.train_dataset for each in documents(theirs.data_collator([row]))]
    with packed_plan(sampled(catalog, "packed", rows), 160).to_torch() as stream:
        batches = list(stream)

    assert sorted(chain.from_iterable(map(documents, batches))) == sorted(expected)
    assert len(expected) == 64
    assert sum(len(batch["input_ids"]) for batch in batches) <= len(theirs.train_dataset) < 64


@torch.no_grad()
def test_a_packed_row_has_the_loss_of_its_documents_alone(catalog: sp.Catalog, tokenizer: Any) -> None:
    model = model_of(tokenizer).eval()
    with packed_plan(sampled(catalog, "alone", chats(12)), 160).to_torch() as stream:
        batch = next(iter(stream))
    total = count = 0.0
    for each in documents(batch):
        ids, labels = (torch.tensor([[pair[k] for pair in each]]) for k in (0, 1))
        targets = int((labels[:, 1:] != -100).sum())
        total, count = total + float(model(input_ids=ids, labels=labels).loss) * targets, count + targets

    assert len(documents(batch)) > len(batch["input_ids"])
    torch.testing.assert_close(float(model(**batch).loss), total / count)


def test_pairs_are_those_of_trl(catalog: sp.Catalog, tokenizer: Any, tmp_path: Path) -> None:
    rows = preferences(16)
    args = config(trl.DPOConfig, tmp_path)
    data, model = datasets.Dataset.from_list(rows), model_of(tokenizer)
    theirs = trl.DPOTrainer(model, copy.deepcopy(model), args, train_dataset=data, processing_class=tokenizer)

    with pair_plan(sampled(catalog, "pairs", rows)).to_torch() as stream:
        for number, batch in enumerate(stream):
            some = [theirs.train_dataset[k] for k in range(4 * number, 4 * number + 4)]
            assert_same(pairs_of(batch), theirs.data_collator(some))


# ---- training


@pytest.mark.parametrize("packed", [False, True])
def test_sft_resumes_with_the_next_batch(catalog: sp.Catalog, tokenizer: Any, tmp_path: Path, *, packed: bool) -> None:
    samples = sampled(catalog, "resumed", chats(64), order=sp.GlobalShuffle(seed=17))
    plan = packed_plan(samples, 160) if packed else chat_plan(samples)
    runs = []
    for checkpoint in (None, str(tmp_path / "checkpoint-3")):
        with plan.to_torch() as stream:
            trainer = StreamSFT(
                model_of(tokenizer), config(trl.SFTConfig, tmp_path), train_dataset=stream, processing_class=tokenizer
            )
            trainer.train(resume_from_checkpoint=checkpoint)
            runs.append((trainer.saw, copy.deepcopy(trainer.model.state_dict())))
    (steps, weights), (rest, resumed) = runs

    assert len(steps) == 6
    assert rest == steps[3:]
    assert all(torch.equal(weights[name], value) for name, value in resumed.items())


def test_dpo_resumes_with_the_next_batch(catalog: sp.Catalog, tokenizer: Any, tmp_path: Path) -> None:
    plan = pair_plan(sampled(catalog, "resumed", preferences(64), order=sp.GlobalShuffle(seed=17)))
    weights = []
    for checkpoint in (None, str(tmp_path / "checkpoint-3")):
        model = model_of(tokenizer)
        args = config(trl.DPOConfig, tmp_path, learning_rate=1e-2)
        with plan.to_torch() as stream:
            trainer = StreamDPO(
                model, args, train_dataset=stream, ref_model=copy.deepcopy(model), processing_class=tokenizer
            )
            trainer.train(resume_from_checkpoint=checkpoint)
            weights.append(copy.deepcopy(trainer.model.state_dict()))
            place = trainer.train_dataset.place

    assert place == (0, 6)
    assert all(torch.equal(weights[0][name], value) for name, value in weights[1].items())
    assert not all(torch.equal(value, model_of(tokenizer).state_dict()[name]) for name, value in weights[1].items())


def test_a_stream_is_evaluated(catalog: sp.Catalog, tokenizer: Any, tmp_path: Path) -> None:
    plan = chat_plan(sampled(catalog, "evaluated", chats(16)))
    args = config(trl.SFTConfig, tmp_path, eval_strategy="steps", eval_steps=3, save_strategy="no")
    with plan.to_torch() as stream, plan.to_torch() as other:
        trainer = StreamSFT(
            model_of(tokenizer), args, train_dataset=stream, eval_dataset=other.eval(), processing_class=tokenizer
        )
        trainer.train()

    assert [each["step"] for each in trainer.state.log_history if "eval_loss" in each] == [3, 6]


# ---- what is refused


def test_labels_that_trl_would_shift_again_are_refused(catalog: sp.Catalog, tokenizer: Any, tmp_path: Path) -> None:
    samples = sampled(catalog, "shifted", chats(8))
    template = sp.transforms.ChatTemplate("messages", tokenizer="chat")
    fields = {"input_ids": sp.Pad("tokens"), "labels": sp.ShiftedLabels("tokens", mask="loss_mask")}
    plan = samples.map(template >> ("tokens", "loss_mask")).collate(batch_size=4, fields=fields)

    with plan.to_torch() as stream, pytest.raises(BindError, match=r"Use Labels\(\.\.\.\)"):
        StreamSFT(
            model_of(tokenizer), config(trl.SFTConfig, tmp_path), train_dataset=stream, processing_class=tokenizer
        )


@pytest.mark.parametrize(
    ("setting", "way_out"),
    [
        ({"packing": True}, r"Leave it out. collate\(formation=spiral.batching.Packed"),
        ({"assistant_only_loss": True}, r"Labels\(\.\.\., mask=\.\.\.\) takes the mask"),
        ({"completion_only_loss": True}, r"Labels\(\.\.\., mask=\.\.\.\) takes the mask"),
        ({"max_length": 64}, r"ChatTemplate\(\.\.\., max_length=\.\.\.\) cuts"),
        ({"pad_to_multiple_of": 8}, r"Pad\(\.\.\., pad_to_multiple_of=\.\.\.\) pads"),
    ],
)
def test_settings_for_data_that_trl_would_prepare_are_refused(
    catalog: sp.Catalog, tokenizer: Any, tmp_path: Path, setting: dict[str, Any], way_out: str
) -> None:
    args = config(trl.SFTConfig, tmp_path, **setting)
    plan = chat_plan(sampled(catalog, "refused", chats(8)))
    with plan.to_torch() as stream, pytest.raises(BindError, match=way_out):
        StreamSFT(model_of(tokenizer), args, train_dataset=stream, processing_class=tokenizer)
