"""Render conversations as text with transformers' own code, and mark the parts to train on.

A template with ``{% generation %}`` marks the assistant's text itself. For any other, turn i is what the text of
``messages[:i + 1]`` has after the text of ``messages[:i]`` with the generation prompt; both have to be beginnings of the
whole, or the turn's place is not known and the row is refused. So each turn costs two more renderings.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn, final

from spiral_stream.errors import DataError, cut, shown
from spiral_stream.transforms.text.chat import ROLES, ChatTemplate
from spiral_stream.transforms.text.chat_format import ChatFormat
from spiral_stream.transforms.text.jinja import need_located_marks, run

Message = dict[str, Any]
Spans = list[tuple[int, int]]

_PROBE: Final = "what does the template make of this"
_SHOWN: Final = 24  # characters of a text that an error quotes


@final
class Renderer:
    """A chat template with the options of a `ChatTemplate`. Thread-safe.

    Raises:
        PlanError: a mask is wanted, and ``{% generation %}`` stands where its place in the text is not known.
    """

    def __init__(self, chat: ChatTemplate, form: ChatFormat, *, masked: bool) -> None:
        self._chat, self._form, self._masked = chat, form, masked
        if masked and form.marks_itself:
            need_located_marks(form.text)
        self._roles = frozenset((*ROLES, *chat.roles))
        self._reads_text: bool | None = (
            None  # whether the template reads content as text alone; asked at the first parts
        )
        self._given = {**form.special, **dict(chat.variables)}
        if "strftime_now" in form.text:
            self._given.setdefault("strftime_now", "the clock is not asked")  # calling it raises, so no day is rendered

    def render(self, value: Any, prompt: Any = None, tools: Any = None) -> tuple[str, Spans]:
        """Render one conversation.

        Args:
            value: the messages, or a text.
            prompt: those before it, or a text.
            tools: as JSON text, or a list of dicts.

        Returns:
            The text, and the spans of characters to train on; none without a mask.

        Raises:
            DataError: it is no conversation, or the template cannot render it; says why.
        """
        chat = self._chat
        first = [] if chat.prompt is None else self._messages(prompt, chat.prompt, "user")
        messages = [*first, *self._messages(value, chat.column, "assistant")]
        offered = None if tools is None else self._tools(tools)
        turns = [at for at, each in enumerate(messages) if each["role"] == "assistant" and at >= len(first)]
        if not self._masked:
            return self._text(messages, offered, prompting=chat.add_generation_prompt), []
        if not turns and not chat.add_generation_prompt and chat.no_target == "refuse":
            found = ", ".join(dict.fromkeys(each["role"] for each in messages[len(first) :])) or "no message at all"
            self._refuse(
                f"no message is the assistant's; it has {found}",
                "Filter such rows out, or name one column to have no mask",
            )
        return (
            self._marked(messages, offered, turns) if self._form.marks_itself else self._grown(messages, offered, turns)
        )

    # ---- where the text to train on is

    def _marked(self, messages: Sequence[Message], tools: Any, turns: Sequence[int]) -> tuple[str, Spans]:
        """By the template's own marks."""
        text, spans = self._run(messages, tools, tracked=True, prompting=self._chat.add_generation_prompt)
        spans = [(begin, end) for begin, end in spans if end > begin]
        if turns and not spans:
            self._refuse(
                f"{{% generation %}} of the template marks nothing of {len(turns)} turns of the assistant",
                "Correct the template, or take {% generation %} out",
            )
        every = sum(each["role"] == "assistant" for each in messages)
        if not turns or self._wants_all(turns, every):
            return text, spans if turns else []
        if len(spans) != every:
            self._refuse(
                f"the template marks {len(spans)} pieces in {every} turns of the assistant, so it is not known which of them "
                f"{'are of the prompt' if self._chat.prompt else 'are of the last turn'}",
                "Mark one piece per turn",
            )
        turn_spans = spans[every - len(turns) :]
        return text, turn_spans if self._chat.train_on == "all" else turn_spans[-1:]

    def _wants_all(self, turns: Sequence[int], every: int) -> bool:
        return len(turns) == every and (self._chat.train_on == "all" or every == 1)

    def _grown(self, messages: Sequence[Message], tools: Any, turns: Sequence[int]) -> tuple[str, Spans]:
        """By what each turn adds to the text."""
        text = self._text(messages, tools, prompting=self._chat.add_generation_prompt)
        spans = []
        for at in turns if self._chat.train_on == "all" else turns[-1:]:
            before = self._beginning(text, messages, at, tools, prompting=True)
            after = self._beginning(text, messages, at + 1, tools, prompting=False)
            if len(after) < len(before):
                self._disagree(before, after, at)
            spans.append((len(before), len(after)))
        return text, spans

    def _beginning(self, text: str, messages: Sequence[Message], count: int, tools: Any, *, prompting: bool) -> str:
        """The text of the first messages, which has to be how the whole begins."""
        try:
            found = self._text(messages[:count], tools, prompting=prompting)
        except DataError as error:
            self._refuse(
                f"the template has no {{% generation %}}, and does not render the first {count} messages alone ({error})",
                "Mark the assistant's text with {% generation %} ... {% endgeneration %} in a template of your own",
            )
        if not text.startswith(found):
            self._disagree(text, found, count - 1)
        return found

    def _disagree(self, rendered: str, part: str, at: int) -> NoReturn:
        first = next(
            (k for k, (a, b) in enumerate(zip(rendered, part, strict=False)) if a != b), min(len(rendered), len(part))
        )
        self._refuse(
            f"the template has no {{% generation %}}, and up to message {at} it renders another text than the whole begins "
            f"with: from character {first} on {part[first : first + _SHOWN]!r}, not {rendered[first : first + _SHOWN]!r}; so "
            "where the assistant's text is cannot be known",
            "Mark it with {% generation %} ... {% endgeneration %} in a template of your own, or train_on='last'",
        )

    # ---- rendering

    def _text(self, messages: Sequence[Message], tools: Any, *, prompting: bool) -> str:
        return self._run(messages, tools, tracked=False, prompting=prompting)[0]

    def _run(self, messages: Sequence[Message], tools: Any, *, tracked: bool, prompting: bool) -> tuple[str, Spans]:
        try:
            return run(self._form.text, messages, tools, self._given, tracked=tracked, prompting=prompting)
        except Exception as error:  # noqa: BLE001  a template may raise anything
            clock = "strftime_now" in self._form.text and "not callable" in str(error)
            way = (
                "It reads today's date, so it would render another text every day: give the date, such as "
                'variables={"date_string": "26 Jul 2024"}'
                if clock
                else "Filter such rows out, or change the template"
            )
            self._refuse(f"the template raises {type(error).__name__}: {cut(str(error))}", way, error)

    # ---- what a row holds

    def _messages(self, value: Any, column: str, role: str) -> list[Message]:
        if value is None:
            self._refuse(f"{column} is null", f"Filter the row out (~col({column!r}).is_null())")
        if isinstance(value, str):
            return [{"role": role, "content": value}]
        return [self._message(each, column, at) for at, each in enumerate(value)]

    def _message(self, value: Any, column: str, at: int) -> Message:
        where = f"message {at} of {column}"
        if value is None:
            self._refuse(f"{where} is null", "Filter the row out, or drop the message")
        message: Message = {name: _without_nulls(each) for name, each in value.items() if each is not None}
        role = message.get("role")
        if role not in self._roles:
            self._refuse(
                f"{where} has the role {shown(role)}, which is none of {', '.join(sorted(self._roles))}",
                "Correct it, or name it in roles=",
            )
        if "content" not in message and not any(
            message.get(name) for name in ("tool_calls", "reasoning_content", "thinking")
        ):
            self._refuse(f"{where} ({role}) has no content: it is null", "Fill it in, or filter the row out")
        if isinstance(message.get("content"), list) and self._reads_text_alone():
            message["content"] = self._one_text(message["content"], where)
        return message

    def _one_text(self, parts: list[Any], where: str) -> str:
        """The text of parts, for a template that would write a list as Python prints it."""
        if len(parts) == 1 and isinstance(parts[0], str):
            return parts[0]
        if (
            len(parts) != 1
            or not isinstance(parts[0], Mapping)
            or parts[0] != {"type": "text", "text": parts[0].get("text")}
        ):
            kinds = ", ".join(shown(each.get("type") if isinstance(each, Mapping) else each, _SHOWN) for each in parts)
            self._refuse(
                f"the content of {where} has {len(parts)} parts ({kinds}), and the template reads content as one text",
                "Give a template that reads parts, or make a column of texts with .map(f, returns=...)",
            )
        return str(parts[0]["text"])

    def _reads_text_alone(self) -> bool:
        """Whether the template writes a text as it is, and raises at a list of parts or prints it as Python would."""
        if self._reads_text is None:
            self._reads_text = self._writes(_PROBE) and not self._writes([{"type": "text", "text": _PROBE}])
        return self._reads_text

    def _writes(self, content: Any) -> bool:
        try:
            text = self._text([{"role": "user", "content": content}], None, prompting=False)
        except DataError:
            return False
        return _PROBE in text and "'type'" not in text

    def _tools(self, value: Any) -> list[dict[str, Any]] | None:
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError as error:
                self._refuse(f"{self._chat.tools} is no JSON ({error})", "Store a JSON list of tools")
        if isinstance(value, Mapping):
            value = [value]
        if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
            self._refuse(f"{self._chat.tools} is {shown(value)}", "Store a list of tools, each a JSON object")
        return [_without_nulls(each) for each in value] or None

    def _refuse(self, found: str, way_out: str, error: Exception | None = None) -> NoReturn:
        msg = f"ChatTemplate({self._chat.column!r}): {found}. {way_out}"
        raise DataError(msg) from error


def _without_nulls(value: Any) -> Any:
    """Without the fields that Arrow adds to every struct because another row has them."""
    if isinstance(value, Mapping):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value
