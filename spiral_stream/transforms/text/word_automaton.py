r"""The automaton that cuts text where a pattern does, one step per code point.

A pattern of plain constructs becomes a program of characters, forks and looks at the next character. A state is the
ordered list of instructions where a backtracking engine might stand, best first; a instruction that would end the word drops all
behind it, since an engine that backtracks would never come to them. So each step costs one look into a table, whatever
the pattern, and the cuts are those of leftmost-first search (Thompson 1968; Cox, "Regular Expression Matching: the
Virtual Machine Approach", 2009). A look ahead, ``(?!\S)``, is settled by the code point that comes next, before it is
consumed.

Code points are known by their *kind*: which of the pattern's characters and classes they belong to. What belongs is
asked of the tokenizers library (`spiral_stream.transforms.text.splitting`), so no table of Unicode is kept here.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.transforms.text.byte_pairs import Uncovered

# What a step of `_encode.c` does, beside its row.
ENDS: Final = 1 << 24
BEGINS: Final = 1 << 25
STUCK: Final = 1 << 26
TEXT: Final = 1 << 27
APART: Final = 1 << 28
_HAPPENS: Final = ENDS | BEGINS | STUCK

_MOST_INSTRUCTIONS: Final = 2_000  # of a program
_MOST_STATES: Final = 1_000
_END: Final = 0  # the instruction where a word has ended
_ITEM: Final = re.compile(
    r"""
      (?P<open> \((?:\?(?:i:|:|!|=)|(?!\?)) ) | (?P<close> \) ) | (?P<bar> \| )
    | (?P<repeat> [?*+][?+]? | \{\d+(?:,\d*)?\}(?![?+]) )
    | (?P<kind> \[\^?(?: \\[pP]\{\^?\w+\} | \\[sSdDwrntf] | \\[^\w\s] | [^\[\]\\&^] )+\] | \\[pP]\{\^?\w+\} | \\[sSdDwW] )
    | (?P<literal> \\[rntf] | \\[^\w\s] | (?![^\x00-\x7F])[^\\\[\](){}|?*+.^$] )
    """,
    re.VERBOSE,
)


@final
@dataclass(frozen=True, slots=True)
class _Instruction:
    """One instruction of a program: consume an atom, fork, look at what comes next, or end."""

    what: Literal["end", "atom", "fork", "look"]
    then: tuple[int, ...] = ()
    atom: str = ""
    wanted: bool = True  # of a look: whether the next code point must be of the atom


@final
@dataclass(slots=True)
class Program:
    """What a pattern does, as instructions that lead to each other."""

    instructions: list[_Instruction] = field(default_factory=lambda: [_Instruction("end")])
    begin: int = _END
    atoms: dict[str, bool] = field(default_factory=dict)  # patterns of one character -> whether each is a literal
    possessive: list[tuple[str, int]] = field(
        default_factory=list
    )  # atom that is never given back, instruction behind it

    def add(self, instruction: _Instruction) -> int:
        """Append a instruction; where it is.

        Raises:
            Uncovered: the program is too long.
        """
        if len(self.instructions) >= _MOST_INSTRUCTIONS:
            msg = f"its pattern has more than {_MOST_INSTRUCTIONS:,} instructions"
            raise Uncovered(msg)
        self.instructions.append(instruction)
        return len(self.instructions) - 1

    def heads(self, instruction: int) -> Iterator[_Instruction]:
        """The instructions that consume, look or end, and to which a instruction leads without consuming anything, best first."""
        seen: set[int] = set()
        waiting = [instruction]
        while waiting:
            at = waiting.pop()
            if at in seen:
                continue
            seen.add(at)
            found = self.instructions[at]
            if found.what != "fork":
                yield found
            waiting.extend(reversed(found.then if found.what in {"fork", "look"} else ()))


def program_of(pattern: str) -> Program:
    """Read a pattern.

    Raises:
        Uncovered: it has a construct that is not covered, or may match nothing.
    """
    program = Program()
    tree = _Reader(pattern, program.atoms).read()
    program.begin = _compiled(program, tree, _END)
    if any(instruction.what == "end" for instruction in program.heads(program.begin)):
        raise Uncovered("its pattern may match no character")
    return program


_Tree = tuple[
    Any, ...
]  # "one" and an atom; "look", an atom, wanted; "all" or "any", trees; "repeat", a tree, as in `_times`


@final
class _Reader:
    """Reads a pattern item by item, into a tree."""

    def __init__(self, pattern: str, atoms: dict[str, bool]) -> None:
        self._pattern, self._atoms, self._at = pattern, atoms, 0

    def read(self) -> _Tree:
        tree = self._choice(folded=False)
        if self._at < len(self._pattern):
            raise self._uncovered()
        return tree

    def _choice(self, *, folded: bool) -> _Tree:
        ways: list[_Tree] = []
        parts: list[_Tree] = []
        while self._at < len(self._pattern):
            item = _ITEM.match(self._pattern, self._at)
            if item is None:
                raise self._uncovered()
            if item["close"]:
                break
            self._at = item.end()
            if item["bar"]:
                ways, parts = [*ways, ("all", parts)], []
            elif item["open"]:
                parts.append(self._group(item["open"], folded=folded))
            elif item["repeat"]:
                if not parts or parts[-1][0] in {"look", "repeat"}:
                    self._at = item.start()
                    raise self._uncovered()
                parts.append(("repeat", parts.pop(), *_times(item["repeat"])))
            else:
                parts.append(("one", self._atom(item, folded=folded)))
        return ("any", [*ways, ("all", parts)])

    def _group(self, opened: str, *, folded: bool) -> _Tree:
        begin = self._at
        inner = self._choice(folded=folded or "i" in opened)
        if self._at >= len(self._pattern):
            raise self._uncovered()
        self._at += 1
        if opened[-1] not in "!=":
            return inner
        if folded or len(inner[1]) != 1 or [part[0] for part in inner[1][0][1]] != ["one"]:
            self._at = begin
            raise self._uncovered()
        return ("look", inner[1][0][1][0][1], opened[-1] == "=")

    def _atom(self, item: "re.Match[str]", *, folded: bool) -> str:
        if folded and item["kind"] and not item["kind"].isascii():
            self._at = item.start()
            raise self._uncovered()  # such a class may match two letters in instruction of one
        atom = f"(?i:{item[0]})" if folded else item[0]
        self._atoms[atom] = item["literal"] is not None
        return atom

    def _uncovered(self) -> Uncovered:
        return Uncovered(
            f"its pattern has {self._pattern[self._at : self._at + 12]!r} at {self._at}, which is not covered"
        )


def _times(repeat: str) -> tuple[int, int | None, str]:
    """How often at least, at most, and which way first."""
    if repeat[0] == "{":
        least, comma, most = repeat[1:-1].partition(",")
        return int(least), int(most) if most else None if comma else int(least), ""
    return int(repeat[0] == "+"), 1 if repeat[0] == "?" else None, repeat[1:]


def _compiled(program: Program, tree: _Tree, then: int) -> int:
    """Put a tree before a instruction; where it begins."""
    what = tree[0]
    if what == "one":
        return program.add(_Instruction("atom", (then,), tree[1]))
    if what == "look":
        return program.add(_Instruction("look", (then,), tree[1], tree[2]))
    if what == "all":
        for part in reversed(tree[1]):
            then = _compiled(program, part, then)
        return then
    if what == "any":
        ways = tuple(_compiled(program, way, then) for way in tree[1])
        return ways[0] if len(ways) == 1 else program.add(_Instruction("fork", ways))
    return _repeated(program, tree, then)


def _repeated(program: Program, tree: _Tree, then: int) -> int:
    _, inner, least, most, how = tree
    if how == "+":
        if inner[0] != "one":
            raise Uncovered("its pattern never gives back more than one character")
        program.possessive.append((inner[1], then))

    def either(more: int) -> tuple[int, int]:
        return (then, more) if how == "?" else (more, then)

    if most is None:
        begin = program.add(_Instruction("fork"))
        body = _compiled(program, inner, begin)
        if any(
            instruction is program.instructions[_END] for instruction in program.heads(_compiled(program, inner, _END))
        ):
            raise Uncovered("its pattern repeats what may be nothing")
        program.instructions[begin] = _Instruction("fork", either(body))
    else:
        begin = then
        for _ in range(most - least):
            begin = program.add(_Instruction("fork", either(_compiled(program, inner, begin))))
    for _ in range(least):
        begin = _compiled(program, inner, begin)
    return begin


@final
@dataclass(frozen=True, slots=True)
class Automaton:
    """The steps of a pattern."""

    steps: NDArray[np.uint32]  # [states * (kinds + 1)]: what `_encode.c` reads; the last kind is the end of a text
    width: int  # kinds + 1
    start: int  # row of the first state


def automaton_of(program: Program, kinds: Sequence[frozenset[str]]) -> Automaton:
    """Make the table of steps.

    Args:
        program: what the pattern does.
        kinds: per kind, the atoms to which its code points belong.

    Raises:
        Uncovered: it has too many states, or what it never gives back might matter.
    """
    for atom, then in program.possessive:
        behind = {instruction.atom for instruction in program.heads(then) if instruction.what == "atom"}
        looks = any(instruction.what == "look" for instruction in program.heads(then))
        if looks or any(atom in kind and behind & kind for kind in kinds):
            raise Uncovered("its pattern does not give back characters that others want")
    numbers: dict[tuple[int, ...], int] = {(): 0, (program.begin,): 1}
    rows: list[list[tuple[int, bool]]] = []
    waiting = [(), (program.begin,)]
    for state in waiting:
        row = []
        for kind in [*kinds, None]:
            reached, ends = _stepped(program, state, kind)
            if reached not in numbers:
                numbers[reached] = len(numbers)
                waiting.append(reached)
            row.append((numbers[reached], ends))
        rows.append(row)
        if len(rows) > _MOST_STATES:
            msg = f"its pattern has more than {_MOST_STATES:,} states"
            raise Uncovered(msg)
    return _table(rows)


def _stepped(program: Program, state: Iterable[int], kind: frozenset[str] | None) -> tuple[tuple[int, ...], bool]:
    """The next state, and whether a word may end before a code point of this kind; None: before the end."""
    reached: dict[int, None] = {}
    seen: set[int] = set()
    waiting = list(reversed(list(state)))
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        instruction = program.instructions[at]
        has = kind is not None and instruction.atom in kind
        if instruction.what == "end":
            return tuple(reached), True
        if instruction.what == "fork":
            waiting.extend(reversed(instruction.then))
        elif instruction.what == "look":
            waiting.extend(instruction.then if has == instruction.wanted else ())
        elif has:
            reached[instruction.then[0]] = None
    return tuple(reached), False


def _table(rows: Sequence[Sequence[tuple[int, bool]]]) -> Automaton:
    """Pack the steps.

    A word's end is not noted where each next step notes a later one; and where a word ends and nothing goes on, the
    step leads straight into the next word.
    """
    width = len(rows[0])
    ever = [all(ends for _, ends in row) for row in rows]
    steps = np.zeros((len(rows), width), np.uint32)
    for number, row in enumerate(rows):
        for kind, (to, ends) in enumerate(row):
            begun = rows[1][kind][0]
            if to:
                steps[number, kind] = to * width | (ENDS if ends and not ever[to] else 0)
            elif ends and kind < width - 1 and begun:
                steps[number, kind] = begun * width | ENDS | BEGINS
            else:
                steps[number, kind] = STUCK | (ENDS if ends else 0)
    return Automaton(steps.ravel(), width, width)


def folded_into(program: Program, letters: str) -> bool:
    """Whether characters of a part that ignores case, one after the other, may be these letters.

    An engine may then take for them one letter whose fold they are, such as the ligature of ``st``.
    """
    for first in range(len(program.instructions)):
        instructions = {first}
        for letter in letters:
            heads = [head for at in instructions for head in program.heads(at)]
            folded = (head for head in heads if head.what == "atom" and head.atom.startswith("(?i:"))
            instructions = {head.then[0] for head in folded if "\\" in head.atom or re.fullmatch(head.atom, letter)}
        if instructions:
            return True
    return False
