"""Tokenizers by name: which names there are, and the contents that they stand for, in the catalog's folder.

A content is the bytes of a ``tokenizer.json``, in a folder named by their sha256, with the proof of its fast engine
next to it; a name is a small JSON file that points to one. Contents appear by a rename and never change, names are
replaced as a whole, so readers need no lock; writers take one. Plans and caches identify a tokenizer by its content and the
options of its use: `transforms.text.encoder`.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from spiral_stream.catalog.database import trying
from spiral_stream.catalog.holding import holding, unheld
from spiral_stream.catalog.lock import locked
from spiral_stream.catalog.names import suggestions
from spiral_stream.catalog.shared.mirror import home_of, location_of
from spiral_stream.catalog.shared.records import LostError
from spiral_stream.display.progress import working
from spiral_stream.errors import CatalogError, SourceError, cut, shown
from spiral_stream.extras import need
from spiral_stream.integrity.publish import new_draft, remove, sweep_drafts, write_file
from spiral_stream.sources.change_detection import content_key
from spiral_stream.transforms.text.chat_format import chat_facts, chat_facts_next_to
from spiral_stream.transforms.text.encoder import largest_id, open_tokenizer, read_tokenizer
from spiral_stream.transforms.text.encoding_engine import PROOF, STEPS, proof_next_to, prove, save
from spiral_stream.transforms.text.tokenizer_identity import content_digest

FILE: Final = "tokenizer.json"
TOKENIZERS: Final = "tokenizers"  # the folder, and the kind of records of a catalog on a store
_CONFIGS: Final = ("special_tokens_map.json", "tokenizer_config.json")  # next to a tokenizer.json; the later wins
_ROLES: Final = ("bos", "eos", "pad", "unk")
_SEAL: Final = "seal"  # key of a name's file: the digest of the others; older files have none, and several lines
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_WRONG: Final = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


@final
@dataclass(frozen=True, slots=True)
class TokenizerEntry:
    """A tokenizer of the catalog.

    Examples:
        >>> from tokenizers import Tokenizer, models
        >>> entry = catalog.register_tokenizer("three", Tokenizer(models.WordLevel({"fox": 0, "owl": 1, "?": 2}, unk_token="?")))
        >>> entry.name, entry.vocab_size
        ('three', 3)
    """

    name: str
    digest: str  # sha256 of its tokenizer.json, hexadecimal
    path: Path  # of its tokenizer.json inside the catalog
    vocab_size: int  # the largest id + 1, added tokens included
    source: str  # where it came from; for people
    special: Mapping[str, int]  # role (bos, eos, pad, unk) -> id, where known
    engine: str  # who encodes, and why; for people
    chat: Mapping[str, Any] | None = None  # its chat template, if there is one, and the texts of special tokens by name


@final
class Tokenizers:
    """The tokenizers of one catalog folder."""

    def __init__(self, root: Path) -> None:
        self._folder, self._home = root / TOKENIZERS, home_of(root)

    def register(self, name: str, source: Any, *, replace: bool = False) -> TokenizerEntry:
        """Copy a tokenizer into the catalog, and prove its fast engine.

        Args:
            name: its name; the caller has checked the letters.
            source: see `Catalog.register_tokenizer`.
            replace: take the place of another content.

        Raises:
            CatalogError: the name is taken by another content, or the source is none.
            SourceError: the source cannot be read.
        """
        data, roles, origin, chat = _content(name, source)
        digest = content_digest(data)
        if name in self.names() and not replace:
            self._refuse_other(name, digest)
        with holding(self._folder.parent) as hold:
            hold(digest)
            facts = self._keep(data, digest, roles, origin) | ({} if chat is None else {"chat": chat})
            text = json.dumps({**facts, _SEAL: seal_of(facts)}, sort_keys=True)
            content = self._folder / "contents" / digest
            files = sorted(content.glob("[!.]*"))
            if self._home.keep(TOKENIZERS, name, {"file": text}, files, absent=not replace, again=replace):
                with self._locked() as folder:
                    _write(folder / "names" / f"{name}.json", text)
            else:
                self.names()
                self._refuse_other(name, digest)  # another machine may have been faster
            return self.entry(name)

    def _refuse_other(self, name: str, digest: str) -> None:
        """Refuse a name that stands for another content."""
        old = self._saved(name)["digest"]
        if old != digest:
            msg = (
                f"tokenizer {name!r} is already registered with another content ({old[:8]}, this is {digest[:8]}). "
                "Pass replace=True, or choose another name"
            )
            raise CatalogError(msg)

    def entry(self, name: str) -> TokenizerEntry:
        """Return the tokenizer of this name, or of a ``tokenizer.json`` at this path, which is copied without a name.

        Raises:
            CatalogError: there is neither; lists near matches.
            SourceError: the file cannot be read.
        """
        names = self.names()
        if name in names:
            facts = self._saved(name)
            self._bring_content(name, self._folder / "contents" / facts["digest"])
            self._check_content(name, facts["digest"])
            return self._entry(name, facts)
        if _is_file(name):
            data, roles, origin, chat = _content(name, name)
            return self._entry(name, self._keep(data, content_digest(data), roles, origin) | {"chat": chat})
        msg = (
            f"tokenizer {shown(name)} is not in catalog {location_of(self._folder.parent)}, and no file; "
            f"{suggestions(name, names)} Register it: catalog.register_tokenizer({shown(name)}, source)"
        )
        raise CatalogError(msg)

    def names(self) -> list[str]:
        """Return all names, sorted."""
        self._bring_names()
        return sorted(file.stem for file in (self._folder / "names").glob("[!.]*.json"))

    def drop(self, name: str) -> None:
        """Forget a name; its content goes with the last name.

        Raises:
            CatalogError: there is none.
        """
        names = self.names()
        if name not in names:
            msg = f"tokenizer {shown(name)} is not in catalog {location_of(self._folder.parent)}; {suggestions(name, names)}"
            raise CatalogError(msg)
        self._home.remove(TOKENIZERS, name)  # contents stay on a store
        with self._locked() as folder:
            unused = None
            with suppress(CatalogError):  # what a damaged name points to is not known
                digest = self._saved(name)["digest"]
                unused = (
                    digest if all(self._saved(other)["digest"] != digest for other in names if other != name) else None
                )
            (folder / "names" / f"{name}.json").unlink(missing_ok=True)
            if unused is not None:
                with unheld(self._folder.parent, unused) as is_free:
                    if is_free:
                        shutil.rmtree(folder / "contents" / unused, ignore_errors=True)

    def _bring_names(self) -> None:
        """Have the files of the names that a store has, and no others.

        Raises:
            CatalogError: the store failed, or the mirror cannot be written.
        """
        there, folder = self._home.records(TOKENIZERS), self._folder / "names"
        if there is None:
            return
        with trying(self._folder.parent, "mirror tokenizers"):
            folder.mkdir(parents=True, exist_ok=True)
            for name, record in there.items():
                file, text = folder / f"{name}.json", str((record.row or {}).get("file", "")).encode()
                if not file.exists() or file.read_bytes() != text:
                    write_file(file, text)
            for file in folder.glob("*.json"):
                if file.stem not in there:
                    file.unlink(missing_ok=True)

    def _bring_content(self, name: str, content: Path) -> None:
        """Have the folder of the content that a name stands for.

        Raises:
            LostError: a file is damaged, or is not there.
            CatalogError: the store failed.
        """
        if not content.exists() and (record := self._home.record(TOKENIZERS, name)) is not None:
            try:
                self._home.bring(record, f"{content.relative_to(self._home.root)}/")
            except LostError as error:
                msg = f"tokenizer {name!r}: {error}"
                raise LostError(msg) from error

    def _entry(self, name: str, facts: Mapping[str, Any]) -> TokenizerEntry:
        path = self._folder / "contents" / facts["digest"] / FILE
        return TokenizerEntry(
            *(name, facts["digest"], path, facts["vocab_size"], facts["source"], facts["special"], facts["engine"]),
            facts.get("chat"),
        )

    def _saved(self, name: str) -> dict[str, Any]:
        """Read the file of a name.

        Raises:
            CatalogError: its file is not as it was written, or holds what no registration writes.
        """
        file = self._folder / "names" / f"{name}.json"
        try:
            data = file.read_bytes()
            facts: dict[str, Any] = json.loads(data or b"{}")  # empty if a store's record is damaged
            kinds = {"digest": str, "vocab_size": int, "source": str, "special": dict, "engine": str}
            right = all(type(facts.get(key)) is kind for key, kind in kinds.items()) and _DIGEST.fullmatch(
                facts["digest"]
            )
            sealed = facts.pop(_SEAL, None)
            older = sealed is None and data == json.dumps(facts, indent=1, sort_keys=True).encode()
            if not right or not (older or sealed == seal_of(facts)):
                msg = "it is not what was written: damaged, or changed from outside"
                raise ValueError(msg)
        except _WRONG as error:
            place = self._home.place(TOKENIZERS, name) or file
            raise self._damaged(name, f"{place} ({cut(str(error))})") from error
        return facts

    def _check_content(self, name: str, digest: str) -> None:
        """Refuse a content that is not what its folder is called by: its ids would be others, without a word."""
        file = self._folder / "contents" / digest / FILE
        try:
            found = content_digest(file.read_bytes())
        except OSError as error:
            raise self._damaged(name, f"{file} ({error.strerror})") from error
        if found != digest:
            raise self._damaged(name, f"{file} (its digest is {found[:8]}, it was kept as {digest[:8]})")

    def _damaged(self, name: str, what: str) -> CatalogError:
        return CatalogError(
            f"catalog {location_of(self._folder.parent)}: tokenizer {name!r} cannot be read: {what}. Register it again with "
            f"register_tokenizer({name!r}, source, replace=True)"
        )

    def _keep(self, data: bytes, digest: str, roles: Mapping[str, str], origin: str) -> dict[str, Any]:
        """Publish a content with its proof; what a name keeps of it."""
        tokenizer = open_tokenizer(data, origin)
        folder = self._folder / "contents" / digest
        if _stored_digest(folder / FILE) != digest:
            what = f"tokenizer {Path(origin).name}: comparing engines"
            with working(what, "steps", STEPS) as shown:

                def report(step: int, part: str) -> None:
                    shown.why = f"{what}: {part}"
                    shown(step)

                proof = prove(data, report)
            with self._locked():
                sweep_drafts(folder.parent)
                draft, held = new_draft(folder, Path.mkdir)
                try:
                    (draft / FILE).write_bytes(data)
                    save(proof, data, draft / PROOF)
                    draft.chmod(0o755)
                    _publish(draft, folder)
                finally:
                    shutil.rmtree(draft, ignore_errors=True)
                    held.release()
        proof = proof_next_to(folder / FILE, data)
        found = {role: tokenizer.token_to_id(text) for role, text in roles.items()}
        return {
            "digest": digest,
            "vocab_size": largest_id(tokenizer) + 1,
            "source": origin,
            "special": {role: number for role, number in sorted(found.items()) if number is not None},
            "engine": f"{'compiled' if proof.covered else 'tokenizers'}: {proof.reason}",
        }

    @contextmanager
    def _locked(self) -> Iterator[Path]:
        """The folder, for one writer at a time."""
        with trying(self._folder.parent, "keep tokenizers"):
            for part in ("names", "contents"):
                (self._folder / part).mkdir(parents=True, exist_ok=True)
            with locked(self._folder / ".lock", f"catalog {self._folder.parent}"):
                yield self._folder


def _is_file(name: str) -> bool:
    """Whether a plan's tokenizer is a file; a folder would be loaded by transformers, which registering alone may do."""
    try:
        return Path(name).expanduser().is_file()
    except (OSError, RuntimeError, ValueError):  # no file can be called so
        return False


_Content = tuple[bytes, dict[str, str], str, dict[str, Any] | None]


def _content(name: str, source: Any) -> _Content:
    """The bytes of a source's tokenizer.json, its special tokens by role, its origin, and what `chat_facts` says of it."""
    if isinstance(source, str | os.PathLike):
        path = Path(source).expanduser()
        if path.is_file():
            return (
                *_with_unknown(read_tokenizer(path), _roles_next_to(path)),
                str(path.absolute()),
                chat_facts_next_to(path),
            )
        if path.is_dir():
            return _by_transformers(name, str(path), str(path.absolute()))
        if path.is_absolute() or path.suffix == ".json" or os.fspath(source).startswith((".", "~")):
            msg = f"register_tokenizer {name!r}: there is nothing at {path}. Correct the path, or give a hub name"
            raise CatalogError(msg)
        return _by_transformers(name, os.fspath(source), f"hub: {source}")
    need("tokenizers", "register_tokenizer")
    from tokenizers import Tokenizer

    if isinstance(source, Tokenizer):
        return *_with_unknown(source.to_str().encode(), {}), "a tokenizers.Tokenizer", None
    fast = getattr(source, "backend_tokenizer", None)  # a tokenizer of transformers
    if isinstance(fast, Tokenizer):
        facts = chat_facts(source)
        return *_with_unknown(fast.to_str().encode(), _roles_of(source)), type(source).__name__, facts
    msg = (
        f"register_tokenizer {name!r}: {type(source).__name__} is not a source. Give the path of a tokenizer.json, a folder "
        "that transformers can load, a tokenizers.Tokenizer, or a hub name"
    )
    raise CatalogError(msg)


def _by_transformers(name: str, location: str, origin: str) -> _Content:
    """Load a tokenizer from a folder or the Hub by transformers."""
    need("transformers", "register_tokenizer", "give the path of a tokenizer.json")
    from transformers import AutoTokenizer

    local = not origin.startswith("hub: ")
    try:
        loaded = AutoTokenizer.from_pretrained(location, local_files_only=local, trust_remote_code=False)
    except (
        Exception
    ) as error:  # it raises OSError, ValueError, KeyError and ImportError for what is wrong with a folder
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        way = (
            "Save it with save_pretrained, or give its tokenizer.json"
            if local
            else "It is no path here, and the hub did not give it: with a network try again; without one, give the path "
            "of its tokenizer.json or of a folder that save_pretrained wrote"
        )
        msg = f"register_tokenizer {name!r}: transformers cannot load {location!r} ({first}). {way}"
        raise CatalogError(msg) from error
    fast = getattr(loaded, "backend_tokenizer", None)
    if fast is None:
        msg = f"register_tokenizer {name!r}: {type(loaded).__name__} is written in Python. Give a tokenizer with a tokenizer.json"
        raise CatalogError(msg)
    return *_with_unknown(fast.to_str().encode(), _roles_of(loaded)), origin, chat_facts(loaded)


def _roles_of(loaded: Any) -> dict[str, str]:
    found = {role: getattr(loaded, f"{role}_token", None) for role in _ROLES}
    return {role: str(text) for role, text in found.items() if text is not None}


def _roles_next_to(path: Path) -> dict[str, str]:
    """The special tokens that transformers' files next to a tokenizer.json name."""
    found: dict[str, str] = {}
    for file in (path.with_name(config) for config in _CONFIGS):
        if not file.is_file():
            continue
        try:
            config = json.loads(file.read_bytes())
        except ValueError as error:
            msg = f"tokenizer: {file} is not JSON ({error}). Correct it, or move it away"
            raise SourceError(msg) from error
        for role in _ROLES:
            token = config.get(f"{role}_token")
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str):
                found[role] = text
    return found


def _with_unknown(data: bytes, roles: dict[str, str]) -> tuple[bytes, dict[str, str]]:
    """The roles, with the model's own unknown token; bytes that are no JSON are refused later, by their place."""
    try:
        unknown = json.loads(data)["model"].get("unk_token")
    except (ValueError, KeyError, TypeError, AttributeError):
        return data, roles
    return data, ({"unk": unknown} if isinstance(unknown, str) else {}) | roles


def _publish(draft: Path, folder: Path) -> None:
    """Name a folder at once; if another process was faster, its equal content stays."""
    if folder.exists() and _stored_digest(folder / FILE) != folder.name:
        remove(folder)  # damaged
    try:
        draft.rename(folder)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        if not (folder / FILE).exists():
            raise


def _stored_digest(file: Path) -> str | None:
    """The digest of a content as it is now, if it is there."""
    return content_digest(file.read_bytes()) if file.is_file() else None


def seal_of(facts: Mapping[str, Any]) -> str:
    """Return the checksum over all other facts of a name."""
    return content_key("tokenizer-name", json.dumps({k: v for k, v in facts.items() if k != _SEAL}, sort_keys=True))


def _write(path: Path, text: str) -> None:
    sweep_drafts(path.parent, path.name)
    write_file(path, text.encode())
