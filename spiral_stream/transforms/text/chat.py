"""`ChatTemplate`: how a plan turns conversations into token ids and a loss mask. `transforms.text.chat_encoder` runs it."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NoReturn, final

from spiral_stream.arguments import FLAG, check, class_door, of_kind, one_of, text
from spiral_stream.errors import PlanError, shown
from spiral_stream.transforms.text.image_tokens import ImageTokens
from spiral_stream.transforms.transform import MOST_TOKENS, TOKENIZER, Transform

ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function", "ipython")
_CHOICES: Final = {
    name: one_of(known, f"one of {', '.join(map(repr, known))}")
    for name, known in {
        "train_on": ("all", "last"),
        "truncate": ("end", "start", "refuse"),
        "no_target": ("refuse", "keep"),
    }.items()
}
_LEFT_OUT: Final = text("a text, or leave it out", none=True)
_IMAGES: Final = of_kind(ImageTokens | None, "ImageTokens('<image>', layout=..., sizes='sizes'), or leave it out")


@final
@class_door(PlanError)
@dataclass(frozen=True)
class ChatTemplate(Transform):
    """Turn a column of conversations into token ids and a loss mask, by the chat template of a tokenizer.

    A conversation is a list of messages, ``list<struct<role, content, ...>>``. The template gets every field of a
    message; fields that are null are left out, as transformers does. A column of text counts as one message of the
    assistant (as ``prompt``, of the user). Content may be a list of parts, such as ``{"type": "text", "text": ...}``. A
    template that reads texts alone gets the text of a message that is one part of type ``text``; other parts are refused.

    With two names, ``>> ("tokens", "loss_mask")``, the mask is 1 at the tokens that the assistant wrote and 0 elsewhere. A
    template with ``{% generation %}`` says itself where these are. For others, each turn is what the rendered text gains
    by it, after the generation prompt; a template that renders a beginning otherwise than the whole is refused, row by
    row. Ids and text are those of transformers' ``apply_chat_template``. With one name, ``>> "tokens"``, there is no mask,
    and a conversation needs no assistant.

    Args:
        column: a column of messages, or of text.
        tokenizer: its name in the catalog (`Catalog.register_tokenizer`), or the path of a ``tokenizer.json``.
        template: the template as text, or the path of a file that holds it; None takes the one that came with the
            tokenizer. Its content enters the fingerprint.
        prompt: a column of messages or text that comes before. Its turns are not trained on.
        tools: a column of tools for the template: JSON text, or a list of structs.
        train_on: ``"all"`` turns of the assistant, or the ``"last"`` one.
        add_generation_prompt: end with what the assistant's next turn begins with; a conversation then needs no assistant.
        max_length: most tokens per row; None cuts nothing.
        truncate: what gives way to ``max_length``: the ``"end"``, the ``"start"``, or ``"refuse"`` the row.
        no_target: ``"refuse"`` a row of which no token is left to train on, or ``"keep"`` it with a mask of zeros.
        roles: roles besides system, developer, user, assistant, tool, function and ipython.
        variables: what else the template reads, such as ``{"enable_thinking": False}``: text, numbers, truth values.
        images: the places that images take: the template writes a mark per image, which is repeated as often as the image has
            tokens. Then ``max_length`` goes with ``truncate="refuse"``, since a cut would part an image from its places.

    Raises:
        PlanError: an argument is of the wrong type, or out of range.

    Examples:
        >>> template = spiral.transforms.ChatTemplate("messages", tokenizer="qwen", train_on="last")
        >>> named = template >> ("tokens", "loss_mask")
        >>> template.columns
        ('messages',)
    """

    NAME: ClassVar[str] = "chat_template"
    deterministic: ClassVar[bool] = True

    column: str
    tokenizer: str
    template: str | None = None
    prompt: str | None = None
    tools: str | None = None
    train_on: str = "all"
    add_generation_prompt: bool = False
    max_length: int | None = None
    truncate: str = "end"
    no_target: str = "refuse"
    roles: tuple[str, ...] = ()
    variables: tuple[tuple[str, Any], ...] = ()
    images: ImageTokens | None = None

    def __post_init__(self) -> None:
        if isinstance(self.template, os.PathLike):
            object.__setattr__(self, "template", os.fspath(self.template))
        check(self, "ChatTemplate", " is ", column=text("the name of a column of messages"), tokenizer=TOKENIZER)
        check(self, "ChatTemplate", " is ", template=_LEFT_OUT, prompt=_LEFT_OUT, tools=_LEFT_OUT, **_CHOICES)
        check(self, "ChatTemplate", " is ", add_generation_prompt=FLAG, max_length=MOST_TOKENS)
        self._settle_roles()
        self._settle_variables()
        check(self, "ChatTemplate", " is ", images=_IMAGES)
        if self.images is not None and self.max_length is not None and self.truncate != "refuse":
            msg = (
                f"ChatTemplate: max_length={self.max_length:,} with images would cut an image's tokens, and leave its pixels. "
                "Give truncate='refuse' too, or leave max_length out"
            )
            raise PlanError(msg)
        if len(set(self.columns)) < len(self.columns):
            msg = f"ChatTemplate: column, prompt, tools and sizes are {', '.join(self.columns)}. Name different columns"
            raise PlanError(msg)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads, that of the conversation first."""
        sizes = None if self.images is None else self.images.sizes
        return (self.column, *(each for each in (self.prompt, self.tools, sizes) if each is not None))

    @property
    def file(self) -> str | None:
        """The path of the template's file; None where the template is given as text, or not at all."""
        return None if self.template is None or "{" in self.template else self.template

    def _settle_roles(self) -> None:
        if (
            isinstance(self.roles, str)
            or not isinstance(self.roles, Sequence)
            or not all(isinstance(each, str) and each for each in self.roles)
        ):
            self._refuse("roles", "a list of role names")
        object.__setattr__(self, "roles", tuple(sorted(set(self.roles))))

    def _settle_variables(self) -> None:
        given = self.variables.items() if isinstance(self.variables, Mapping) else self.variables
        try:
            pairs = {name: value for name, value in given}  # noqa: C416  pairs, checked on the way
        except (TypeError, ValueError):
            self._refuse("variables", 'a dict, such as {"enable_thinking": False}')
        for name, value in pairs.items():
            if not isinstance(name, str) or not name.isidentifier() or not isinstance(value, str | int | float | bool):
                self._refuse(
                    "variables", 'names with texts, numbers or truth values, such as {"enable_thinking": False}'
                )
        object.__setattr__(self, "variables", tuple(sorted(pairs.items())))

    def _refuse(self, what: str, right: str) -> NoReturn:
        msg = f"ChatTemplate: {what} is {shown(getattr(self, what))}. Give {right}"
        raise PlanError(msg)
