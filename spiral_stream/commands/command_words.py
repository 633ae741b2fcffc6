"""Errors of the library in the words of the command line: options in place of Python's arguments."""

import dataclasses
import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperOption

from spiral_stream.catalog.registry import default_folder
from spiral_stream.connection import Catalog, connect
from spiral_stream.errors import CatalogError, SourceError, cut
from spiral_stream.sources.serialize import library_kinds, plugin_class
from spiral_stream.storage.uri import is_object

_NAME: Final = r"""\(["']?([^"'()]*?)["']?(?:, [^()]*)?\)"""  # of what a call in a message is about
_OF_RELATIONS: Final = rf"catalog\.(refresh|measure){_NAME}"
_CALLS: Final = (
    (r"(?:identity=)?spiral\.RowIdentity\(\)", "--row-identity"),
    (r"identity=\[[^\]]*\]", "--identity A --identity B"),
    (r'identity="[^"]*"', "--identity COLUMN"),
    (r"semantic=\{[^}]*jpeg[^}]*\}", "--image COLUMN"),
    (r"semantic=\{[^}]*h264[^}]*\}", "--video COLUMN"),
    (r"replace=True", "--replace"),
    (r"unique=False", "--not-unique"),
    (r"shard=None", "--shard ''"),
    (r"""(?:stream\.)?bind\(device=["'](\w+)["']\)""", r"--device \1"),
    (_OF_RELATIONS, r"spiral \1 \2"),
    (rf"catalog\.drop(?:_stream|_tokenizer)?{_NAME}", r"spiral drop \1"),
    (r"(?:stream|plan)\.materialize\(\)", "spiral materialize STREAM"),
    (r"(?:stream|plan)\.materialize\(lengths=True\)", "spiral materialize STREAM --lengths"),
    (r'(?:stream|plan)\.materialize\(executor="(\w+)"\)', r"spiral materialize STREAM --executor \1"),
    (rf"catalog\.refused{_NAME}", r"spiral show \1"),
    (rf"(?:catalog\.)?register_tokenizer{_NAME}", r"spiral tokenizer \1 SOURCE"),
)
# Arguments of the library that a command calls otherwise.
_OTHERWISE: Final = {"label": "labels", "origin": "origins", "image": "semantic", "source": "path"}
_OF_SOURCES: Final = ("register", "convert", "refresh", "init")  # their messages may name an option of a source
# Words of a plan's verb or field: what to change is the program that made the plan, in Python.
_OF_PLANS: Final = re.compile(r"(?:map|flat_map|filter|assemble|collate|sample|mix|join|[A-Z]\w*\()[ (:]|[A-Z]\w*\(")
_VALUE: Final = r"""(\{[^{}]*\}|\[[^\[\]]*\]|\([^()]*\)|"[^"]*"|'[^']*'|<\w+>|[^\s,;:()]*[^\s.,;:()])?"""
_REMOVES: Final = [
    "--delete",
    "--remove",
    "--rm",
    "--clear",
    "--clean",
    "--prune",
    "--purge",
]  # guesses of an option of `caches`
_JSON: Final = {"True": "true", "False": "false", "None": "null"}
_PIPE_WIDTH: Final = 10_000  # where no terminal shows lines: none is broken


def console(*, plain: bool = False) -> Console:
    """Return standard output: as wide as the terminal; where there is none, wide enough that no line is broken.

    Texts are printed as they are: data has brackets and colons, which are no markup and no emoji.

    Args:
        plain: without colours.
    """
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(width=width, markup=False, emoji=False, highlight=not plain)


def here(path: str) -> Path | None:
    """Return where a path that was typed lies on this machine; None where it is the URI of a store."""
    return None if is_object(path) else Path(path).expanduser()


def typed(message: str, command: TyperCommand | None = None) -> str:
    """Return a message of the library as somebody reads it who types commands.

    Args:
        message: as Python's users read it.
        command: what was typed; its own options are named, and those of sources if it takes any. None names those that
            are the same for all.
    """
    for python, words in _CALLS:
        message = re.sub(python, words, message)
    if command is None or _OF_PLANS.match(message):
        return message
    options, positionals = typed_names(command)
    message = _named(options).sub(lambda found: _typed_name(options[found[1]], found[2]), message)
    message = _named(positionals, ": ").sub(lambda found: _typed_name(positionals[found[1]], found[2]), message)
    if command.name not in _OF_SOURCES:
        return message
    of = " of spiral register" if command.name in ("refresh", "init") else ""
    return _named(source_options()).sub(lambda found: _of_source(found[1], found[2]) + of, message)


def typed_calls(text: str) -> str:
    """Return a text of several lines, such as EXPLAIN DATA, with the commands for the catalog's calls that it names."""
    return re.sub(_OF_RELATIONS, r"spiral \1 \2", text)


def need_kind(name: str, kind: str, path: str) -> None:
    """Refuse a path in the place of the kind: `register NAME a.jsonl b.jsonl`.

    Raises:
        SourceError: says to quote a pattern, or to give the folder.
    """
    if kind not in kinds() and plugin_class(kind) is None and Path(kind).exists():
        msg = f"register: {cut(kind)} is a path, and has the place of the kind. {_one_file(name, [kind, path])}"
        raise SourceError(msg)


def kinds() -> list[str]:
    """What `register` takes as a kind."""
    return ["auto", "folder", "videos", *sorted(library_kinds())]


def _one_file(name: str, paths: list[str]) -> str:
    """Say how several files are registered: a shell has expanded a pattern, or none was typed."""
    endings = {Path(each).suffix for each in paths}
    folder = Path(paths[0]).parent
    pattern = folder / f"*{endings.pop()}" if len(endings) == 1 else folder / "*"
    return (
        f"Several files are one path, a pattern in quotes or their folder: spiral register {name} auto '{pattern}', or "
        f"spiral register {name} auto {folder}"
    )


class CachesCommand(TyperCommand):
    """`caches`, which says how things are removed to whoever guesses another option for it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, and answer a guess."""
        if guessed := next((each for each in args if each in _REMOVES), ""):
            ctx.fail(
                f"No such option: {guessed}. --remove-dead removes what nobody uses. What a saved stream uses is live: type "
                "spiral drop STREAM, and then spiral caches --remove-dead --older-than 0"
            )
        return super().parse_args(ctx, args)


class RegisterCommand(TyperCommand):
    """`register`, which says what is missing where the kind was left out, or a shell expanded a pattern."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, and name the kind, or one path for several."""
        ctx.allow_extra_args = True
        try:
            rest = super().parse_args(ctx, args)
        except typer.BadParameter as error:
            if type(error).__name__ != "MissingParameter" or error.param is None or error.param.name == "name":
                raise
            ctx.fail(
                "The kind, or the path, is missing: spiral register NAME KIND PATH. KIND is auto, which tells by the names of "
                f"the files, or one of {', '.join(kinds()[1:])}"
            )
        if ctx.args:
            words = [ctx.params["kind"], ctx.params["path"], *ctx.args]
            paths = words[1:] if words[0] in kinds() else words
            given = f"{len(paths):,} paths are given, and there is place for one"
            ctx.fail(f"{given}. {_one_file(ctx.params['name'], paths)}")
        return rest


def typed_names(command: TyperCommand) -> tuple[dict[str, str], dict[str, str]]:
    """Return what to type for each argument of the library that a command hands on: of options, and of what has a place."""
    options, positionals = dict[str, str](), dict[str, str]()
    for each in command.params:
        option = each.name or ""
        for name in {option, _OTHERWISE.get(option, option)} - {"where", "trust", "option"}:
            if isinstance(each, TyperOption):
                options[name] = each.opts[0]
            else:
                positionals[name] = option.upper()
    return options, positionals


@cache
def source_options() -> frozenset[str]:
    """The options of all kinds of sources. The first field says where rows lie; an argument of the command gives it."""
    kinds = library_kinds().values()
    return frozenset(each.name for kind in kinds for each in dataclasses.fields(kind)[1:] if each.init)  # type: ignore[arg-type]  # each is a dataclass


def _named(names: Iterable[str], after: str = "") -> re.Pattern[str]:
    """Find an argument that has one of some names, and its value."""
    before = f"(?<={after})" if after else r"""(?<![\w.'"-])"""
    return re.compile(rf"{before}(?<!option )({'|'.join(sorted(names)) or '(?!)'})={_VALUE}")


def _typed_name(words: str, value: str | None) -> str:
    return words if value in (None, "True", "...") else f"{words} {value}"


def _of_source(name: str, value: str | None) -> str:
    given = "..." if value is None else _JSON.get(value, value.strip("<>"))
    if given[:1] in ("'", '"') and " " not in given:
        given = given[1:-1] or "''"
    pair = f"{name}={given}"
    return f"--option '{pair}'" if re.search(r"""[\s"()\[\]{}]""", pair) and "'" not in pair else f"--option {pair}"


def opened_catalog(where: str | None) -> Catalog:
    """Open a catalog that is there: to look into one makes no folder.

    Raises:
        CatalogError: nothing lies there.
    """
    place = where or default_folder()
    if "://" not in place and not Path(place).exists():
        msg = (
            f"catalog {cut(place)} is not there. Correct --catalog, go to the folder that has it, or register data in a new one: "
            "spiral init PATH"
        )
        raise CatalogError(msg)
    return connect(where)
