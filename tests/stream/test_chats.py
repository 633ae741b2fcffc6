"""Streams of conversations: ids and masks are those of transformers, and the laws of streams hold."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from tests.fixtures import chats
from tests.fixtures.chats import LAST_DIFFERS, MARKED, PLAIN, catalog_of, of_transformers, table, turn
from tests.stream.planner.binding.test_mesh import Mesh

pytestmark = pytest.mark.filterwarnings(
    "ignore:(collate. batch_size|iter. rank|materialize):spiral_stream.SpiralWarning"
)
Row = tuple[list[int], list[int]]


def sampled(catalog: sp.Catalog, name: str = "chats") -> sp.Relation:
    return catalog.table(name).sample(identity="sample_id", order=sp.GlobalShuffle(seed=1))


def fields(**more: Any) -> dict[str, Any]:
    found = {"input_ids": sp.Pad("tokens", pad_value=-1), "loss_mask": sp.Pad("loss_mask"), **more}
    return {**found, "labels": sp.fields.Labels("tokens", mask="loss_mask"), "sample_id": sp.List("sample_id")}


def rows_of(plan: sp.Relation) -> dict[str, Row]:
    """Ids and mask of every sample, by its identity; labels are checked on the way."""
    out: dict[str, Row] = {}
    with plan.to_numpy() as stream:
        for batch in stream:
            for k, name in enumerate(batch["sample_id"]):
                count = int((batch["input_ids"][k] >= 0).sum())
                ids, mask = batch["input_ids"][k, :count], batch["loss_mask"][k, :count]
                assert batch["labels"][k, :count].tolist() == np.where(mask == 1, ids, -100).tolist()
                assert (batch["labels"][k, count:] == -100).all()
                out[name] = ids.tolist(), mask.tolist()
    return out


def read(catalog: sp.Catalog, chat: sp.transforms.ChatTemplate, **options: Any) -> dict[str, Row]:
    mapped = sampled(catalog).map(chat >> ("tokens", "loss_mask"))
    return rows_of(mapped.collate(batch_size=4, last=sp.KeepPartial(), fields=fields(), **options))


CHAT = sp.transforms.ChatTemplate("messages", tokenizer="chat")


@pytest.mark.parametrize("template", [PLAIN, MARKED])
def test_ids_are_those_of_transformers_and_so_is_the_mask_of_a_template_that_marks_it(
    tmp_path: Path, template: str
) -> None:
    rows, reference = chats.conversations(9), of_transformers(template)
    catalog = catalog_of(tmp_path, table(rows), template=template)

    found = read(catalog, CHAT)

    for k, chat in enumerate(rows):
        ids, mask = found[f"chat-{k}"]
        wanted = reference.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=template == MARKED)
        assert ids == wanted["input_ids"]
        if template == MARKED:
            assert mask == wanted["assistant_masks"]
        end = "<|im_end|>" if template == MARKED else "<|im_end|>\n"
        answers = "".join(str(each["content"]) + end for each in chat if each["role"] == "assistant")
        assert reference.decode([i for i, m in zip(ids, mask, strict=True) if m]) == answers


def test_a_cache_changes_no_batch_and_is_found_again(tmp_path: Path) -> None:
    catalog = catalog_of(tmp_path, table(chats.conversations(20)))
    plan = sampled(catalog).map(CHAT >> ("tokens", "loss_mask"))
    plan = plan.collate(batch_size=4, last=sp.KeepPartial(), fields=fields())
    before = rows_of(plan)

    with plan.to_numpy() as stream:
        done = stream.materialize()
        again = stream.materialize()

    assert (done.rows, again.rows) == (20, 0) or done.rows == 20
    assert rows_of(plan) == before
    with plan.to_numpy() as stream:
        list(stream)
        assert stream.metrics()["cached_rows"] == 20


def test_packed_and_padded_labels_agree(tmp_path: Path) -> None:
    catalog = catalog_of(tmp_path, table(chats.conversations(40)))
    mapped = sampled(catalog).map(CHAT >> ("tokens", "loss_mask"))
    padded = rows_of(mapped.collate(batch_size=8, last=sp.KeepPartial(), fields=fields()))
    shifted = sp.ShiftedLabels("tokens", mask="loss_mask")
    packed = mapped.collate(
        formation=sp.batching.Packed(max_tokens=256),
        batch_size=2,
        last=sp.KeepPartial(),
        fields=fields(segments=sp.fields.Segments("tokens"), shifted=shifted),
    )

    seen = 0
    with packed.to_numpy() as stream:
        for batch in stream:
            for row, names in enumerate(batch["sample_id"]):
                for number, name in enumerate(names, 1):
                    at = np.flatnonzero(batch["segments"][row] == number)
                    ids, mask = padded[name]
                    assert batch["input_ids"][row, at].tolist() == ids
                    wanted = np.where(np.array(mask) == 1, ids, -100)
                    assert batch["shifted"][row, at].tolist() == [*wanted[1:], -100]
                    wanted[0] = wanted[0] if at[0] == 0 else -100
                    assert batch["labels"][row, at].tolist() == wanted.tolist()
                    seen += 1
            assert (batch["labels"][batch["segments"] == 0] == -100).all()
    assert seen == 40


def test_ranks_of_a_sequence_that_slice_shifted_labels_lose_none(tmp_path: Path) -> None:
    catalog = catalog_of(tmp_path, table(chats.conversations(24)))
    plan = sampled(catalog).map(CHAT >> ("tokens", "loss_mask"))
    shifted = sp.ShiftedLabels("tokens", mask="loss_mask")
    named = {"input_ids": sp.Pad("tokens"), "labels": shifted, "whole": sp.fields.Labels("tokens", mask="loss_mask")}
    plan = plan.collate(formation=sp.batching.Packed(max_tokens=192), batch_size=2, last=sp.DropPartial(), fields=named)
    with plan.to_numpy() as stream:
        stream.materialize()
    slices: list[list[Any]] = []
    for part in range(2):
        with plan.to_numpy() as stream:
            stream.bind(mesh=Mesh(dp=(1, 2), cp=(part, 2)))
            slices.append([{name: batch[name].copy() for name in named} for batch in stream])

    assert len(slices[0]) == len(slices[1]) > 1
    for first, second in zip(*slices, strict=True):
        for name in named:
            assert (first[name] == second[name]).all()
        labels = np.concatenate([first["labels"][:, :96], second["labels"][:, 96:]], axis=1)
        wanted = np.full_like(labels, -100)
        wanted[:, :-1] = first["whole"][:, 1:]  # what a model that sees the whole row compares with
        assert (labels == wanted).all()


def test_options_choose_the_turns_and_cut(tmp_path: Path) -> None:
    rows = [
        [turn("user", "the fox"), turn("assistant", "jumps"), turn("user", "and"), turn("assistant", "the lazy dog")]
    ]
    catalog, reference = catalog_of(tmp_path, table(rows)), of_transformers()

    def trained(**options: Any) -> tuple[int, str]:
        ids, mask = read(catalog, sp.transforms.ChatTemplate("messages", tokenizer="chat", **options))["chat-0"]
        return len(ids), reference.decode([i for i, m in zip(ids, mask, strict=True) if m])

    whole, every = trained()
    assert every == "jumps<|im_end|>\nthe lazy dog<|im_end|>\n"
    assert trained(train_on="last") == (whole, "the lazy dog<|im_end|>\n")
    assert trained(max_length=whole - 2) == (whole - 2, "jumps<|im_end|>\nthe lazy dog")
    assert trained(max_length=5, truncate="start")[1].endswith("dog<|im_end|>\n")
    assert trained(max_length=3, no_target="keep") == (3, "")
    count, text = trained(add_generation_prompt=True)
    assert (count > whole, text) == (True, every)
    own = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}"
    file = tmp_path / "own.jinja"
    file.write_text(own)
    assert trained(template=own)[1] == "assistant: jumps\nassistant: the lazy dog\n"
    assert trained(template=own) == trained(template=file)


def test_tools_and_variables_reach_the_template(tmp_path: Path) -> None:
    tools = ['[{"type": "function", "function": {"name": "add"}}]', None]
    rows = [[turn("user", "the"), turn("assistant", "fox")]] * 2
    catalog = catalog_of(tmp_path, table(rows, tools=tools), template=MARKED + "{{ 'z' if thinking else '' }}")

    found = read(
        catalog, sp.transforms.ChatTemplate("messages", tokenizer="chat", tools="tools", variables={"thinking": True})
    )

    texts = [of_transformers().decode(found[f"chat-{k}"][0]) for k in (0, 1)]
    assert texts[0].startswith('tools: [{"type": "function", "function": {"name": "add"}}]')
    assert texts[1].startswith("<|im_start|>user")
    assert texts[0].endswith("z")


BAD = {
    "no assistant": ([turn("user", "the")], "no message is the assistant's; it has user.*Filter"),
    "empty": ([], "no message is the assistant's; it has no message"),
    "role": ([turn("user", "the"), turn("asistant", "fox")], "message 1 of messages has the role 'asistant'.*roles="),
    "content": ([turn("user", None), turn("assistant", "fox")], "message 0 of messages .user. has no content.*Fill"),
    "null": (None, "messages is null.*Filter"),
    "null message": ([None, turn("assistant", "fox")], "message 0 of messages is null"),
}


def test_a_bad_conversation_is_named_and_put_aside(tmp_path: Path) -> None:
    rows: list[Any] = [*chats.conversations(3), *(messages for messages, _ in BAD.values())]
    plan = sampled(catalog_of(tmp_path, table(rows))).map(CHAT >> ("tokens", "loss_mask"))

    with pytest.raises(sp.errors.DataError, match=r"chat-[3-8]"):
        rows_of(plan.collate(batch_size=9, fields=fields()))
    with plan.collate(batch_size=9, fields=fields(), on_error="skip", error_budget=0.9).to_numpy() as stream:
        (batch,) = stream
        aside = stream.quarantine().to_pylist()

    assert sorted(batch["sample_id"]) == ["chat-0", "chat-1", "chat-2"]
    reasons = {row["sample_id"]: row["reason"] for row in aside}
    for at, (_, words) in enumerate(BAD.values(), 3):
        assert re.search(f"(?s){words}", reasons[f"chat-{at}"])


def test_a_template_that_raises_or_does_not_say_where_is_named(tmp_path: Path) -> None:
    rows = [[turn("user", "the"), turn("assistant", "fox"), turn("user", "and"), turn("assistant", "dog")]]
    raising = "{{ raise_exception('roles must alternate') }}" + PLAIN
    silent = (
        "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if 0 %}{% generation %}{% endgeneration %}{% endif %}"
    )
    clock = "{{ strftime_now('%d') }}" + PLAIN

    catalog = catalog_of(tmp_path, table(rows))

    for options, words in (
        ({"template": raising}, "chat-0.*raises TemplateError: roles must alternate"),
        ({"template": LAST_DIFFERS}, "renders another text than the whole begins with: from character"),
        ({"template": silent}, "marks nothing of 2 turns"),
        ({"template": clock}, 'variables={"date_string"'),
        ({"max_length": 3}, "max_length=3 leaves none of the"),
        ({"max_length": 3, "truncate": "refuse"}, "tokens, above max_length=3"),
    ):
        given: dict[str, Any] = options
        with pytest.raises(sp.errors.DataError, match=f"(?s){words}"):
            read(catalog, sp.transforms.ChatTemplate("messages", tokenizer="chat", **given))


def test_stored_masks_are_checked_row_by_row(tmp_path: Path) -> None:
    def made(masks: list[list[int]]) -> sp.Relation:
        stored = pa.table({"sample_id": ["a", "b"], "tokens": [[1, 2, 3], [4, 5]], "loss_mask": masks})
        catalog = sp.connect(str(tmp_path / str(masks)))
        catalog.register("chats", sp.Arrow(stored), identity="sample_id")
        return sampled(catalog).collate(batch_size=2, fields=fields())

    assert rows_of(made([[0, 1, 1], [0, 1]])) == {"a": ([1, 2, 3], [0, 1, 1]), "b": ([4, 5], [0, 1])}
    with pytest.raises(sp.errors.DataError, match=r"(?s)'b'.*2 tokens, and 3 values in mask='loss_mask'"):
        rows_of(made([[0, 1, 1], [0, 1, 1]]))
    with pytest.raises(sp.errors.DataError, match=r"(?s)'a'.*neither 0 nor 1"):
        rows_of(made([[0, -100, 1], [0, 1]]))


def test_a_changed_template_is_refused_with_the_place(tmp_path: Path) -> None:
    catalog = catalog_of(tmp_path, table(chats.conversations(6)))

    def plan(template: str | None = None) -> sp.Relation:
        chat = sp.transforms.ChatTemplate("messages", tokenizer="chat", template=template)
        return sampled(catalog).map(chat >> ("tokens", "loss_mask")).collate(batch_size=2, fields=fields())

    old = plan()
    with old.to_numpy() as stream:
        next(iter(stream))
        state = stream.state_dict()
    with plan(MARKED).to_numpy() as other, pytest.raises(sp.errors.ResumeError, match="template"):
        other.load_state_dict(state)
    catalog.register_tokenizer("chat", of_transformers(MARKED), replace=True)
    with pytest.raises(
        sp.errors.PlanError, match=r"ChatTemplate\('messages'\) >> tokens, loss_mask: the chat template .* changed"
    ):
        next(iter(old.to_numpy()))


def test_a_plan_says_what_does_not_fit(tmp_path: Path) -> None:
    catalog = catalog_of(tmp_path, table(chats.conversations(3), number=[1, 2, 3]), template=None)

    with pytest.raises(sp.errors.PlanError, match=r"came without a chat template\. Give template="):
        sampled(catalog).map(CHAT >> ("tokens", "loss_mask"))
    for options, words in (
        ({"column": "number"}, "is int64. Name a column of messages"),
        ({"column": "messages", "template": "{% if %}"}, "is no Jinja"),
        ({"column": "messages", "template": "{% set x %}" + MARKED + "{% endset %}{{ x }}"}, "stands inside {% set %}"),
        ({"column": "messages", "template": str(tmp_path / "none.jinja")}, "No such file"),
        ({"column": "messages", "train_on": "first"}, "train_on is 'first'. Give one of 'all', 'last'"),
        ({"column": "messages", "tools": "number", "template": PLAIN}, "tools='number' is int64"),
    ):
        given: dict[str, Any] = {"template": PLAIN, **options}
        with pytest.raises(sp.SpiralError, match=words):
            sampled(catalog).map(sp.transforms.ChatTemplate(tokenizer="chat", **given) >> ("tokens", "loss_mask"))
    with pytest.raises(sp.errors.PlanError, match="ChatTemplate has 3 names"):
        sampled(catalog).map(CHAT >> ("a", "b", "c"))
    with pytest.raises(sp.errors.PlanError, match="Tokenize has 2 names, and gives one column"):
        sampled(catalog).map(sp.Tokenize("sample_id", tokenizer="chat") >> ("a", "b"))


PAIRED = {"chosen": sp.Pad("chosen_tokens", also="rejected_tokens"), "rejected": sp.Pad("rejected_tokens")}


def pairs(catalog: sp.Catalog) -> sp.Relation:
    plan = sampled(catalog)
    for side in ("chosen", "rejected"):
        chat = sp.transforms.ChatTemplate(side, prompt="prompt", tokenizer="chat")
        plan = plan.map(chat >> (f"{side}_tokens", f"{side}_mask"))
    return plan


def test_both_sides_of_a_pair_share_their_width_and_packed_their_places(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    texts = {name: [" ".join(rng.choice(chats.WORDS, int(rng.integers(1, 9)))) for _ in range(12)] for name in "pcr"}
    rows = table(chats.conversations(12), prompt=texts["p"], chosen=texts["c"], rejected=texts["r"])
    plan, reference = pairs(catalog_of(tmp_path, rows)), of_transformers()
    labels = {f"{side}_labels": sp.fields.Labels(f"{side}_tokens", mask=f"{side}_mask") for side in PAIRED}
    named = {**PAIRED, **labels, "sample_id": sp.List("sample_id")}

    with plan.collate(batch_size=4, fields=named).to_numpy() as stream:
        for batch in stream:
            assert batch["chosen"].shape == batch["rejected"].shape == batch["chosen_labels"].shape
            for k, name in enumerate(batch["sample_id"]):
                at = int(name.split("-")[1])
                for side, own in (("chosen", "c"), ("rejected", "r")):
                    kept = [i for i in batch[f"{side}_labels"][k] if i != -100]
                    assert reference.decode(kept) == texts[own][at] + "<|im_end|>\n"
    segments = {f"{side}_segments": sp.fields.Segments(f"{side}_tokens") for side in PAIRED}
    packed = plan.collate(formation=sp.batching.Packed(max_tokens=128), batch_size=2, fields={**named, **segments})
    with packed.to_numpy() as stream:
        for batch in stream:
            assert batch["chosen"].shape == batch["rejected"].shape
            for row, names in enumerate(batch["sample_id"]):
                for number in range(1, len(names) + 1):
                    begins = [int(np.flatnonzero(batch[f"{side}_segments"][row] == number)[0]) for side in PAIRED]
                    assert begins[0] == begins[1]
    with pytest.raises(sp.errors.PlanError, match="splits samples"):
        plan.collate(formation=sp.batching.Packed(max_tokens=128, oversize="split"), batch_size=2, fields=named)
    with pytest.raises(sp.errors.PlanError, match="no field pads it"):
        plan.collate(batch_size=2, fields={"chosen": PAIRED["chosen"]})


PARTS = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}{% if m['content'] is string %}{{ m['content'] }}"
    "{% else %}{% for part in m['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}{{ '[image]' }}"
    "{% endif %}{% endfor %}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
PRINTED = PLAIN.replace("m['content']", "m['content'] | trim")  # of a list, trim writes what Python prints


def some_parts(rows: list[Any], seed: int = 0) -> list[Any]:
    """The same conversations, half of their texts as a list of one part."""
    rng = np.random.default_rng(seed)

    def part(message: Any) -> Any:
        return {**message, "content": [{"type": "text", "text": message["content"]}]} if rng.random() < 0.5 else message

    return [[part(message) for message in chat] for chat in rows]


def registered(folder: Path, rows: list[Any], template: str) -> sp.Catalog:
    """Conversations as users have them: a file of JSON lines."""
    catalog = catalog_of(folder, table(chats.conversations(1)), template=template)
    lines = [json.dumps({"sample_id": f"chat-{k}", "messages": chat}) + "\n" for k, chat in enumerate(rows)]
    (folder / "chats.jsonl").write_text("".join(lines))
    catalog.register("mixed", sp.sources.Jsonl(folder / "chats.jsonl"), identity="sample_id")
    return catalog


@pytest.mark.parametrize("template", [PLAIN, MARKED, PRINTED, PARTS])
def test_content_that_is_now_a_text_and_now_a_list_of_parts_gives_the_ids_of_its_texts(
    tmp_path: Path, template: str
) -> None:
    rows, reference = chats.conversations(9), of_transformers(template)
    catalog = registered(tmp_path, some_parts(rows), template)

    mapped = sampled(catalog, "mixed").map(CHAT >> ("tokens", "loss_mask"))
    found = rows_of(mapped.collate(batch_size=4, last=sp.KeepPartial(), fields=fields()))

    wanted = {f"chat-{k}": reference.apply_chat_template(chat)["input_ids"] for k, chat in enumerate(rows)}
    assert {name: ids for name, (ids, _) in found.items()} == wanted


def test_parts_that_a_template_of_texts_cannot_write_are_refused(tmp_path: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": "a.png"}}
    said = {"type": "text", "text": "what is this"}
    chat = [{"role": "user", "content": [image, said]}, {"role": "assistant", "content": "a fox"}]
    plan = CHAT >> ("tokens", "loss_mask")
    for name, template in (("a", PLAIN), ("b", PRINTED)):
        (tmp_path / name).mkdir()
        catalog = registered(tmp_path / name, [chat], template)
        mapped = sampled(catalog, "mixed").map(plan).collate(batch_size=1, fields=fields())
        with pytest.raises(
            sp.errors.DataError, match=r"message 0 of messages has 2 parts .*Give a template that reads parts"
        ):
            rows_of(mapped)
    (tmp_path / "c").mkdir()
    catalog = registered(tmp_path / "c", [chat], PARTS)
    found = rows_of(sampled(catalog, "mixed").map(plan).collate(batch_size=1, fields=fields()))
    assert found["chat-0"][0] == of_transformers(PARTS).apply_chat_template(chat)["input_ids"]


def test_a_list_that_a_template_writes_as_json_stays_a_list(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m['role'] + m['content'] | tojson }}{% endfor %}"
    chat = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}, {"role": "assistant", "content": []}]
    catalog = registered(tmp_path, [chat], template)
    mapped = sampled(catalog, "mixed").map(CHAT >> "tokens").collate(batch_size=1, fields={"ids": sp.Pad("tokens")})
    with mapped.to_numpy() as stream:
        [batch] = list(stream)
    assert batch["ids"][0].tolist() == of_transformers(template).apply_chat_template(chat)["input_ids"]
