"""One catalog folder: relations, saved streams and tokenizers by name.

A LanceDB database holds one small table of relations (`relations`) and one of
saved streams (`streams`), and the rows of relations that were registered from memory.
Shard tables, statistics and tokenizers (`tokenizers`) lie next to it as files. Changes are
made under a file lock, which the kernel releases when a process dies, so that several
processes can use one catalog. Reading needs no right to write.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from spiral_stream.arguments import door, forwarded
from spiral_stream.catalog.database import Database
from spiral_stream.catalog.records import need_name
from spiral_stream.catalog.registering.declaration import AUTO, Declaration, need_source
from spiral_stream.catalog.registering.unique import IDENTITY, identity_columns
from spiral_stream.catalog.relation.entry import Entry
from spiral_stream.catalog.relation.row_identity import ROW_ID, RowIdentity, arrow_with_row_ids
from spiral_stream.catalog.relations import Relations
from spiral_stream.catalog.shared.mirror import home_of, root_of
from spiral_stream.catalog.shared.records import SharedCatalog
from spiral_stream.catalog.shared.tables import SharedRows
from spiral_stream.catalog.streams import SavedStreams
from spiral_stream.display.progress import Report
from spiral_stream.errors import CatalogError, SourceError, cut
from spiral_stream.sources.arrow.table import Arrow
from spiral_stream.sources.lance.lancedb import LanceTable, is_table
from spiral_stream.sources.lance.source import Lance
from spiral_stream.sources.source import Source

if TYPE_CHECKING:
    from spiral_stream.catalog.registering.register import Registration
    from spiral_stream.catalog.tokenizers import TokenizerEntry, Tokenizers

DEFAULT_FOLDER: Final = "catalog"


def default_folder() -> str:
    """Return ``$SPIRAL_CATALOG``, else ``catalog`` in the working directory."""
    return os.environ.get("SPIRAL_CATALOG") or DEFAULT_FOLDER


def connect(uri: str | os.PathLike[str] | None = None) -> "Registry":
    """Open or create a catalog.

    Args:
        uri: its folder, or its place on an object store; by default ``$SPIRAL_CATALOG``, else ``./catalog``.

    Raises:
        CatalogError: the folder cannot be made, or the URI is none.
    """
    return Registry(default_folder() if uri is None else uri)


@final
class Registry:
    """The names of one catalog. `spiral_stream.connection.Catalog` holds one, and has the verbs that make plans and streams.

    Attributes:
        root: its folder; of a catalog on an object store the mirror on this machine.
        uri: where it lies: the folder, or the place on the store.
        database: its tables.
        relations: the registered relations.
        saved: the saved streams.
    """

    @door(CatalogError)
    def __init__(self, uri: str | os.PathLike[str]) -> None:
        try:
            self.root = root_of(uri)
        except SourceError as error:
            msg = (
                f"catalog {cut(str(uri))}: a catalog lies in a folder of this machine, or on an object store (s3://, gs://, "
                f"az://); this {error}"
            )
            raise CatalogError(msg) from error
        try:
            (self.root / "manifests").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            msg = f"catalog {self.root}: {error.strerror}. Give a folder that can be written, or set $SPIRAL_CATALOG"
            raise CatalogError(msg) from error
        home = home_of(self.root)
        self.uri = home.uri
        self.database = SharedRows(home) if isinstance(home, SharedCatalog) else Database(self.root)
        self.relations = Relations(self.root, self.database)
        self.saved = SavedStreams(self.root, self.database)

    @cached_property
    def registration(self) -> "Registration":
        """What registers relations; a program that only reads them does without its rooms."""
        from spiral_stream.catalog.registering.register import Registration

        return Registration(self.root, self.database, self.relations)

    # ---- relations

    @door(CatalogError, excepted=("descriptions", "semantic"))
    def register(
        self,
        name: str,
        source: Source | LanceTable,
        *,
        identity: str | Sequence[str] | RowIdentity = IDENTITY,
        shard: str | None = AUTO,
        semantic: Mapping[str, str] | None = None,
        descriptions: Mapping[str, str] | None = None,
        unique: bool = True,
        replace: bool = False,
        same_bytes: bool = False,
        report: Report | None = None,
    ) -> Entry:
        """Register a source under a name: pin its version, find its shards, check its identities.

        Registering what is registered already, unchanged, returns the entry and reads no rows.

        Args:
            name: letters, digits, ``_ . -``; dots group names (``vision.imagenet_train``).
            source: what to register; the rows of an `Arrow` are copied into the catalog. A table of LanceDB is registered
                as the `Lance` dataset that it is.
            identity: the column (or columns) whose value identifies a row permanently; `RowIdentity` gives each row an
                identity of its own.
            shard: the column that names the storage shards; by default ``storage_shard`` if there is one. None takes
                the physical units of the source, such as files or fragments.
            semantic: column -> semantic type, such as ``image/jpeg-ref``.
            descriptions: column -> its meaning, for people.
            unique: refuse repeated identities. False is for relations that are only joined; it records whether
                identities repeat.
            replace: take the place of a registered relation.
            same_bytes: as for `refresh`.
            report: called while rows are read, with the rows that were read and those to read.

        Returns:
            the relation; its ``changes`` say which shards differ from what was registered under the name.

        Raises:
            CatalogError: the name is taken, or a column, type or identity is wrong.
            SourceError: the source cannot be read.

        Examples:
            >>> features = pa.table({"sample_id": ["a", "b"], "x": [0.5, 1.5]})
            >>> entry = catalog.register("features", spiral.Arrow(features))
            >>> catalog.table("features").count()
            2
        """
        need_name("register", name)
        given: Any = Lance(source) if is_table(source) else source  # type: ignore[arg-type]  # a table is taken too
        need_source(name, given)
        made = isinstance(identity, RowIdentity)
        if made and isinstance(given, Arrow):  # whose rows are copied: their identities are stored with them
            given, identity, made = arrow_with_row_ids(name, given), ROW_ID, False
        columns = (ROW_ID,) if made else identity_columns(name, identity)
        declared = Declaration(columns, shard, semantic or {}, descriptions or {}, unique, made, same_bytes)
        return self.registration.register(name, given, declared, replace=replace, report=report)

    @door(CatalogError)
    def refresh(self, name: str, report: Report | None = None, *, same_bytes: bool = False) -> Entry:
        """Register a relation again at its source's present version. Shards that did not change are not read again.

        Args:
            name: of the relation.
            report: called while rows are read, with the rows that were read and those to read.
            same_bytes: compare the bytes of files whose size or time changed: shards whose files were only touched or
                copied count as unchanged, and so does everything derived from them. The first call reads every file. With
                `RowIdentity` of use only for files that are imported: other identities follow the files' times.

        Returns:
            the relation; its ``changes`` say which shards were added, changed or removed.

        Raises:
            CatalogError: the name is unknown, or the new rows are not legal.
            SourceError: the source cannot be read, or lost a column.

        Examples:
            >>> catalog.refresh("photos").changes
            Changes(added=(), changed=(), removed=())
        """
        return self.registration.refresh(name, report, same_bytes=same_bytes)

    @door(CatalogError)
    def entry(self, name: str) -> Entry:
        """Return the registered relation of this name.

        Raises:
            CatalogError: there is none; lists near matches.

        Examples:
            >>> catalog.entry("photos").identity
            ('photo_id',)
        """
        return self.relations.entry(name)

    def tables(self) -> list[str]:
        """Return the names of all relations, sorted.

        Examples:
            >>> "photos" in catalog.tables()
            True
        """
        return self.relations.names()

    @door(CatalogError)
    def drop(self, name: str) -> None:
        """Forget a relation; its source's files stay, rows copied from memory go.

        Raises:
            CatalogError: there is none of this name.

        Examples:
            >>> entry = catalog.register("old", spiral.Arrow(text_rows), identity="doc_id")
            >>> catalog.drop("old")
            >>> "old" in catalog.tables()
            False
        """
        self.relations.drop(name)

    # ---- saved streams

    def streams(self) -> list[str]:
        """Return the names of all saved streams, sorted.

        Examples:
            >>> catalog.save_stream("listed", stream)
            >>> "listed" in catalog.streams()
            True
        """
        return self.saved.names()

    @door(CatalogError)
    def drop_stream(self, name: str) -> None:
        """Forget a saved stream.

        Raises:
            CatalogError: there is none of this name.

        Examples:
            >>> catalog.save_stream("old", stream)
            >>> catalog.drop_stream("old")
            >>> "old" in catalog.streams()
            False
        """
        self.saved.drop(name)

    # ---- tokenizers

    @door(CatalogError)
    def register_tokenizer(self, name: str, source: Any, *, replace: bool = False) -> "TokenizerEntry":
        """Copy a tokenizer into the catalog under a name; proving its fast engine takes some seconds.

        Args:
            name: letters, digits, ``_ . -``.
            source: path of a ``tokenizer.json``, a folder that transformers can load, a tokenizer object of
                tokenizers or transformers, or a Hugging Face Hub name, if no such path exists.
            replace: take the place of another content.

        Raises:
            CatalogError: the name is not legal or taken by another content, or the source is no tokenizer.
            SourceError: a file is not a tokenizer.

        Examples:
            >>> from tokenizers import Tokenizer, models, pre_tokenizers
            >>> tokenizer = Tokenizer(models.WordLevel({"fox": 0, "owl": 1, "?": 2}, unk_token="?"))
            >>> tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
            >>> entry = catalog.register_tokenizer("words", tokenizer)
            >>> "words" in catalog.tokenizers()
            True
        """
        need_name("tokenizer", name)
        return self._tokenizers().register(name, source, replace=replace)

    @door(CatalogError)
    def tokenizer(self, name: str) -> "TokenizerEntry":
        """Return the tokenizer of this name, or of the ``tokenizer.json`` at this path.

        Raises:
            CatalogError: there is neither; lists near matches.

        Examples:
            >>> from tokenizers import Tokenizer, models
            >>> entry = catalog.register_tokenizer(
            ...     "one-word", Tokenizer(models.WordLevel({"fox": 0, "?": 1}, unk_token="?"))
            ... )
            >>> catalog.tokenizer("one-word").name
            'one-word'
        """
        return self._tokenizers().entry(name)

    def tokenizers(self) -> list[str]:
        """Return the names of all tokenizers, sorted.

        Examples:
            >>> from tokenizers import Tokenizer, models
            >>> entry = catalog.register_tokenizer(
            ...     "listed", Tokenizer(models.WordLevel({"fox": 0, "?": 1}, unk_token="?"))
            ... )
            >>> "listed" in catalog.tokenizers()
            True
        """
        return self._tokenizers().names()

    @door(CatalogError)
    def drop_tokenizer(self, name: str) -> None:
        """Forget a tokenizer; its source stays.

        Raises:
            CatalogError: there is none of this name.

        Examples:
            >>> from tokenizers import Tokenizer, models
            >>> entry = catalog.register_tokenizer(
            ...     "old", Tokenizer(models.WordLevel({"fox": 0, "?": 1}, unk_token="?"))
            ... )
            >>> catalog.drop_tokenizer("old")
        """
        self._tokenizers().drop(name)

    def _tokenizers(self) -> "Tokenizers":
        from spiral_stream.catalog.tokenizers import Tokenizers

        return Tokenizers(self.root)


class AnyCatalog(ABC):
    """A catalog as rooms know it that lie below its verbs: it has a registry, and the methods of the registry."""

    @property
    @abstractmethod
    def registry(self) -> Registry:
        """The names of the catalog, as the library's own rooms use them."""

    @property
    def root(self) -> Path:
        """Its folder; of a catalog on an object store the mirror on this machine.

        Examples:
            >>> catalog.root.name
            'catalog'
        """
        return self.registry.root

    @property
    def uri(self) -> str:
        """Where it lies: the folder, or the place on the store.

        Examples:
            >>> catalog.uri == str(catalog.root)
            True
        """
        return self.registry.uri

    register = forwarded("registry", Registry.register)
    refresh = forwarded("registry", Registry.refresh)
    entry = forwarded("registry", Registry.entry)
    tables = forwarded("registry", Registry.tables)
    drop = forwarded("registry", Registry.drop)
    streams = forwarded("registry", Registry.streams)
    drop_stream = forwarded("registry", Registry.drop_stream)
    register_tokenizer = forwarded("registry", Registry.register_tokenizer)
    tokenizer = forwarded("registry", Registry.tokenizer)
    tokenizers = forwarded("registry", Registry.tokenizers)
    drop_tokenizer = forwarded("registry", Registry.drop_tokenizer)
