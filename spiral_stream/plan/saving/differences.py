"""Where two saved plans differ: the path in the plan, and the value on each side."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, final

from spiral_stream.plan.saving.canonical import CLASS, VERSION

_LINE: Final = 60  # characters of a value in a message
_ORDER: Final = "mix (order of streams)"
_OTHER_VERSIONS: Final = {
    ("sample", "mixture"): "the order of a mixture",
    ("collate", "stratified"): "StratifiedByStream",
}  # versions that are written beside a verb's values, by verb and key; none is version 1
_SHARES: Final = ("proportion", "repeat", "choose")  # fields of a stream that say how much of it a mixture takes


@final
@dataclass(frozen=True, slots=True)
class PlanDifference:
    """One place where two plans differ; as text ``collate.batch_size (256 -> 512)``.

    Attributes:
        at: the verb and its field; inside a stream of a mixture the stream's field, or empty for the whole stream.
        before: the old plan's value, shortened; None where a stream is new.
        after: the new plan's value, shortened; None where a stream is left out.
        streams: the streams of the mixtures around the place, outermost first.
        policy: whose version it is that differs, and nothing that the plan's author wrote; None if it is something else.
    """

    at: str
    before: str | None
    after: str | None
    streams: tuple[str, ...] = ()
    policy: str | None = None

    @property
    def of_shares(self) -> bool:
        """Whether it concerns how much a mixture takes of each stream, and not the streams' own rows."""
        if not self.streams:
            return self.at.startswith("mix.") or self.at == _ORDER
        return not self.at or re.split(r"\W", self.at, maxsplit=1)[0] in _SHARES

    @property
    def of_collate(self) -> bool:
        """Whether it concerns how samples become batches."""
        return not self.streams and self.at.startswith("collate.")

    def __str__(self) -> str:
        change = f"{self.before} -> {self.after}"
        if self.before is None or self.after is None:
            change = "new" if self.before is None else "left out"
        if not self.streams:
            return f"{self.at} ({change})"
        around = "".join(f" (stream {name!r})" for name in self.streams)
        return f"mix{around}{f'.{self.at}' if self.at else ''} ({change})"


def differences(old: Any, new: Any, at: str = "") -> list[PlanDifference]:
    """Compare two canonical plans, or parts of them.

    Args:
        old: JSON values.
        new: JSON values.
        at: where in the plan they stand.

    Returns:
        every place where they differ, in the order of verbs and fields; empty if they are equal.
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping) and not _is_float(old):
        return _of_mappings(old, new, at)
    if isinstance(old, list) and isinstance(new, list):
        if old and new and all(_is_part(each) for each in (*old, *new)):
            return _of_streams({each["name"]: each for each in old}, {each["name"]: each for each in new})
        if len(old) == len(new):
            pairs = enumerate(zip(old, new, strict=True))
            return [found for i, (a, b) in pairs for found in differences(a, b, f"{at}[{i}]")]
    nothing: tuple[Any, ...] = (None, {})  # the profiles of a stream that one of them lacks
    return [] if old == new or (old in nothing and new in nothing) else [PlanDifference(at, _brief(old), _brief(new))]


def _of_mappings(old: Mapping[str, Any], new: Mapping[str, Any], at: str) -> list[PlanDifference]:
    old_verb, new_verb = old.get("verb"), new.get("verb")
    if old_verb != new_verb:
        return [PlanDifference(at or "plan", str(old_verb), str(new_verb))]
    if old.get(CLASS) != new.get(CLASS):
        return [PlanDifference(at, _brief(old), _brief(new))]
    if old_verb is not None:
        at = str(old_verb)
    out: list[PlanDifference] = []
    for key in sorted(set(old) | set(new)):
        found = differences(old.get(key), new.get(key), f"{at}.{key}" if at else key)
        out += _of_versions(found, old, key)
    return out


def _of_versions(found: list[PlanDifference], old: Mapping[str, Any], key: str) -> list[PlanDifference]:
    """What differs at a key, with the policy whose version it is, if it is one's."""
    policy = _OTHER_VERSIONS.get((str(old.get("verb")), key))
    if policy is not None:
        one = {"null": "1", None: "1"}
        return [
            replace(
                each, policy=policy, before=one.get(each.before, each.before), after=one.get(each.after, each.after)
            )
            for each in found
        ]
    if key == "@decoder":
        return [replace(each, policy=f"decoder {old.get('decode')!r}") for each in found]
    if key == VERSION and "@code" not in old:  # a class of the user's has its own
        return [replace(each, policy=str(old.get(CLASS))) for each in found]
    return found


def _of_streams(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[PlanDifference]:
    """Compare the streams of two mixtures by name."""
    out = [PlanDifference("", name, None, (name,)) for name in old if name not in new]
    out += [PlanDifference("", None, name, (name,)) for name in new if name not in old]
    both = [name for name in new if name in old]
    if both != [name for name in old if name in new]:
        out.append(PlanDifference(_ORDER, ", ".join(old), ", ".join(new)))
    for name in both:
        out += [replace(each, streams=(name, *each.streams)) for each in differences(old[name], new[name])]
    return out


def _is_part(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get(CLASS) == "Part"


def _is_float(value: Any) -> bool:
    return isinstance(value, Mapping) and set(value) == {"float"}


def _brief(value: Any) -> str:
    if _is_float(value):
        return repr(float.fromhex(value["float"]))
    if isinstance(value, Mapping) and CLASS in value:
        return str(value[CLASS])
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LINE else text[: _LINE - 3] + "..."
