"""The chat template of a plan: its text, and the special tokens that it may name.

The text is given in the plan, lies in a file, or was registered with the tokenizer. `ChatFormat.digest` identifies it in
plans and caches, together with the special tokens, since a template writes ``bos_token`` and ``eos_token`` by name.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from spiral_stream.errors import PlanError, SourceError
from spiral_stream.integrity.regular_files import regular_bytes
from spiral_stream.transforms.text.chat import ChatTemplate
from spiral_stream.transforms.text.jinja import names_read

GENERATION: Final = re.compile(r"\{%-?\s*generation\s*-?%\}")  # as transformers looks for it
_SPECIAL: Final = tuple(f"{role}_token" for role in ("bos", "cls", "eos", "mask", "pad", "sep", "unk"))
_CONFIGS: Final = ("special_tokens_map.json", "tokenizer_config.json")  # next to a tokenizer.json; the later wins


@final
@dataclass(frozen=True, slots=True)
class ChatFormat:
    """The text of a chat template, and the texts of special tokens by name."""

    text: str
    special: Mapping[str, str]

    @property
    def digest(self) -> str:
        """Content hash, 32 hexadecimal digits."""
        facts = json.dumps([self.text, dict(self.special)], sort_keys=True)
        return hashlib.sha256(facts.encode()).hexdigest()[:32]

    @property
    def marks_itself(self) -> bool:
        """Whether the template says where the assistant's text is."""
        return GENERATION.search(self.text) is not None


def format_of(chat: ChatTemplate, registered: Mapping[str, Any] | None) -> ChatFormat:
    """Return the template that a plan means now.

    Args:
        chat: the transform.
        registered: what `chat_facts` found next to the tokenizer; None if it was registered without.

    Raises:
        PlanError: there is no template, it is no template, or it names a special token that is not known.
        SourceError: its file cannot be read.
    """
    facts = registered or {}
    text = chat.template if chat.file is None else _read(chat.file)
    if text is None:
        text = facts.get("template")
    if text is None:
        msg = (
            f"ChatTemplate: tokenizer {chat.tokenizer!r} came without a chat template. Give template= (its text, or the path of "
            "a file), or register the tokenizer again, with replace=True, from the folder that save_pretrained wrote"
        )
        raise PlanError(msg)
    special = dict(facts.get("special", {}))
    unknown = sorted(name for name in names_read(text) & set(_SPECIAL) if name not in special)
    if unknown and registered is None and unknown[0] not in dict(chat.variables):
        msg = (
            f"ChatTemplate: the template writes {unknown[0]}, and tokenizer {chat.tokenizer!r} was registered from something "
            f"that does not say which token that is. Give variables={{{unknown[0]!r}: ...}}, or register it again, with "
            "replace=True, from the folder that save_pretrained wrote"
        )
        raise PlanError(msg)
    return ChatFormat(text, special)


def chat_facts(loaded: Any) -> dict[str, Any]:
    """Return template and special tokens of a tokenizer of transformers, as JSON values."""
    special = {name: str(getattr(loaded, name, None)) for name in _SPECIAL if getattr(loaded, name, None) is not None}
    return _facts(getattr(loaded, "chat_template", None), special)


def chat_facts_next_to(path: Path) -> dict[str, Any] | None:
    """Return template and special tokens that the files next to a tokenizer.json hold; None if there is no such file."""
    special: dict[str, str] = {}
    template: Any = None
    files = [file for file in (path.with_name(config) for config in _CONFIGS) if file.is_file()]
    for file in files:
        config = json.loads(file.read_bytes())
        template = config.get("chat_template", template)
        for name in _SPECIAL:
            token = config.get(name)
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str):
                special[name] = text
    jinja_file = path.with_name("chat_template.jinja")
    if jinja_file.is_file():
        template = jinja_file.read_text("utf-8")
    return _facts(template, special) if files or jinja_file.is_file() else None


def _facts(template: Any, special: Mapping[str, str]) -> dict[str, Any]:
    if isinstance(template, list):  # of several, as older configurations have them
        template = {each["name"]: each["template"] for each in template}
    if isinstance(template, dict):
        template = template.get("default")
    return {"special": dict(special), **({"template": template} if isinstance(template, str) else {})}


def _read(file: str) -> str:
    try:
        return regular_bytes(Path(file).expanduser()).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        msg = (
            f"ChatTemplate: template {file!r}: {why}. Give the text of a template, or the path of a file that holds it"
        )
        raise SourceError(msg) from error
