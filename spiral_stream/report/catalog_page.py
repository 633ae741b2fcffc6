"""One page of a whole catalog: relations with figures and samples, streams with EXPLAIN and the next batches, and caches.

All that it shows is what public functions return: `report_relation`, `PreparedStream.explain`, `show` and `caches`,
`Catalog.caches`. What cannot be read is a note in its place. Sections are written one after the other, and each may take
its share of the bytes that are left, so that no section takes the room of the others.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol, final

from spiral_stream.arguments import as_integer, is_integer
from spiral_stream.catalog.names import suggestions
from spiral_stream.catalog.registry import AnyCatalog
from spiral_stream.catalog.relation.source_facts import source_facts
from spiral_stream.display import markup
from spiral_stream.display.markup import Html, element
from spiral_stream.display.wording import moment, one_line, size
from spiral_stream.errors import CatalogError, SpiralError, listed, shown
from spiral_stream.extras import installed
from spiral_stream.looking.contact_sheet import Sheet
from spiral_stream.planner.prepared_data.build import CacheStatus
from spiral_stream.planner.prepared_data.retention import PreparedData
from spiral_stream.prepared import PreparedStream
from spiral_stream.report.build import report_relation
from spiral_stream.report.page import relation_parts

_LISTED: Final = 1_000  # rows of a list of relations, streams or caches
_LEAST_BYTES: Final = 64 << 10  # of a section: where there is less room, relations stand in the list alone
_SHOWN: Final = 4  # samples of a batch
_NAME: Final = 100
_SAID: Final = 500  # characters of a message
_MORE: Final = "A larger --max-bytes shows it, or a page of fewer names."
_NAMED: Final = 3
_LEAST_PAGE: Final = 256 << 10  # bytes
_VISIBLE: Final = 96  # of a bar's width, of which one pixel is seen

Tell = Callable[[str, int, int], None]  # what comes next, how many parts are done, and of how many


class Streams(Protocol):
    """A catalog that opens saved streams, and knows what lies in its prepared folder."""

    def open_stream(self, name: str, *, trust: Any = ()) -> PreparedStream: ...

    def caches(self, *, trust: Any = ()) -> "list[PreparedData]": ...


@final
@dataclass(frozen=True, slots=True)
class PageRequest:
    """What a page shows.

    Attributes:
        relations: those that have a section.
        streams: likewise.
        samples: rows of a relation.
        pictures: rows of a relation whose images, clips and sounds are shown.
        batches: of a stream.
        most: bytes of the page.
        trust: modules whose functions saved plans may name.
    """

    relations: Sequence[str]
    streams: Sequence[str]
    samples: int
    pictures: int
    batches: int
    most: int
    trust: Any = ()


def requested(
    catalog: AnyCatalog, names: Sequence[str], samples: Any, pictures: Any, batches: Any, most: Any, trust: Any
) -> PageRequest:
    """Return what a page shows of a catalog.

    Args:
        catalog: whose page it is.
        names: relations and saved streams that have a section; none: all.
        samples: as for `PageRequest`, and so are the others.
        pictures: as ``samples``.
        batches: as ``samples``.
        most: as ``samples``; `Catalog.page` calls it ``max_bytes``.
        trust: as ``samples``.

    Raises:
        CatalogError: a number is out of range, or a name is unknown; lists similar ones.
    """
    numbers = (
        ("samples", samples, 0),
        ("pictures", pictures, 0),
        ("batches", batches, 0),
        ("max_bytes", most, _LEAST_PAGE),
    )
    for what, given, least in numbers:
        if not is_integer(as_integer(given), least):
            msg = f"page: {what}={shown(given)}. Give a whole number from {least:,} up"
            raise CatalogError(msg)
    relations, streams = catalog.tables(), catalog.streams()
    for name in names:
        if name not in relations and name not in streams:
            near = suggestions(name, [*relations, *streams])
            msg = f"page: {shown(name)} is no relation and no saved stream; {near} Name one of them, or none for all"
            raise CatalogError(msg)
    return PageRequest(
        [name for name in relations if not names or name in names],
        [name for name in streams if not names or name in names],
        *(samples, pictures, batches, most, trust),
    )


@final
class CatalogPage:
    """The page, while it is made.

    Args:
        catalog: whose page it is.
        opener: the same catalog, as it opens streams.
        asked: what the page shows.
        tell: is called before each part.
    """

    def __init__(self, catalog: AnyCatalog, opener: Streams, request: PageRequest, tell: Tell) -> None:
        self._catalog, self._opener, self._request, self._tell = catalog, opener, request, tell
        self._room = request.most - markup.PAPER_BYTES
        most = max(1, self._room // 2 // _LEAST_BYTES)
        self._relations, self._streams = list(request.relations)[:most], list(request.streams)[:most]
        self.location = one_line(catalog.uri, _NAME)

    def html(self) -> str:
        """Return the page."""
        self._done, self._total = 0, len(self._relations) + len(self._streams) + 1
        parts = [self._fitting(self._head(), self._room // 4)]
        parts.append(self._listed("Relations", self._catalog.tables(), self._relation_list))
        if len(self._relations) < len(self._request.relations):
            left = len(self._request.relations) - len(self._relations)
            parts.append(
                markup.note(f"{left:,} relations stand in the list alone. Name those to look at: spiral page NAME")
            )
        parts += [self._section("relation", name, self._relation) for name in self._relations]
        parts.append(self._listed("Streams", self._catalog.streams(), self._stream_list))
        parts += [self._section("stream", name, self._stream) for name in self._streams]
        self._say("what is prepared")
        parts.append(self._fitting(self._caches(), self._room))
        return markup.page(f"Catalog {self.location}", *parts)

    def _say(self, what: str) -> int:
        """Tell what comes next, and return its share of the bytes that are left."""
        self._tell(what, self._done, self._total)
        self._done += 1
        return self._room // (self._total - self._done + 1)

    def _fitting(self, parts: Iterable[Html], most: int) -> Html:
        """Join parts of the page that fit into a number of bytes, and count what they take."""
        found = markup.bounded(parts, most, _MORE)
        self._room -= len(found.encode())
        return found

    def _listed(self, title: str, names: Sequence[str], listed: Callable[[Sequence[str]], Html]) -> Html:
        """A heading and a list of names."""
        heading = element("h2", title, element("span", f"{len(names):,}", class_="sp-kind"), id=title.lower())
        try:
            found = listed(names)
        except SpiralError as error:
            found = markup.note(one_line(f"not shown: {error}", _SAID))
        return self._fitting([heading, found], self._room // 4)

    def _section(self, kind: str, name: str, parts_of: Callable[[str, int], Iterator[Html]]) -> Html:
        """A relation or a stream; what cannot be read of it is a note."""
        most = self._say(name) - 1_024

        def parts() -> Iterator[Html]:
            try:
                yield from parts_of(name, most * 2 // 3)
            except (SpiralError, IndexError, OSError) as error:
                yield markup.note(one_line(f"not shown: {error}", _SAID))

        head = element(
            "h3", one_line(name, _NAME), element("span", kind, class_="sp-kind"), id=self._anchor(kind, name)
        )
        found = element("section", head, markup.bounded(parts(), most, _MORE))
        self._room -= len(found.encode())
        return found

    def _anchor(self, kind: str, name: str) -> str:
        return f"{kind}-{(self._relations if kind == 'relation' else self._streams).index(name)}"

    def _link(self, kind: str, name: str) -> Html:
        """A name, which leads to its section if there is one."""
        if name in (self._relations if kind == "relation" else self._streams):
            return element("a", one_line(name, _NAME), href=f"#{self._anchor(kind, name)}")
        return element("span", one_line(name, _NAME))

    def _head(self) -> Iterator[Html]:
        links = [element("a", words, href=f"#{words.lower()}") for words in ("Relations", "Streams", "Caches")]
        links += [self._link("relation", name) for name in self._relations]
        links += [self._link("stream", name) for name in self._streams]
        yield element("h1", "Catalog", element("span", self.location, class_="sp-kind"))
        now = moment(str(datetime.now(UTC).replace(microsecond=0, tzinfo=None)))
        yield markup.quiet(f"written {now} UTC by Spiral {installed()}; it needs no network and no other file")
        yield element("nav", *links, class_="sp-nav")

    def _relation_list(self, names: Sequence[str]) -> Html:
        rows = []
        for name in names[:_LISTED]:
            entry = self._catalog.entry(name)
            manifest = entry.manifest()
            rows.append(
                {
                    "relation": self._link("relation", name),
                    "source": source_facts(entry).kind,
                    "rows": f"{manifest.total:,}",
                    "shards": f"{len(manifest.shard_names):,}",
                    "identity": one_line(", ".join(entry.identity), _NAME),
                    "data version": entry.data_version[:12],
                    "registered": moment(str(entry.registered_at.replace(microsecond=0))),
                }
            )
        left = markup.quiet(f"{len(names) - _LISTED:,} more relations") if len(names) > _LISTED else None
        return markup.joined([markup.table(rows, most=_LISTED), left])

    def _stream_list(self, names: Sequence[str]) -> Html:
        if not names:
            return markup.quiet("none are saved: catalog.save_stream(name, plan) saves one")
        left = markup.quiet(f"{len(names) - _LISTED:,} more streams") if len(names) > _LISTED else None
        return markup.joined([element("div", *(self._link("stream", n) for n in names[:_LISTED]), class_="sp-l"), left])

    def _relation(self, name: str, sheet_bytes: int) -> Iterator[Html]:
        made = report_relation(self._catalog, name, samples=self._request.samples, pictures=self._request.pictures)
        yield from relation_parts(made, sheet_bytes, skew_is_open=False)

    def _stream(self, name: str, sheet_bytes: int) -> Iterator[Html]:
        with self._opener.open_stream(name, trust=self._request.trust) as stream:
            explained = stream.explain()
            facts = [
                ("plan", stream.fingerprint),
                ("rows", f"{stream.rows:,}"),
                (
                    "reads",
                    one_line(
                        ", ".join(f"{data} {version[:12]}" for data, version in stream.data_versions.items()), 300
                    ),
                ),
            ]
            yield markup.pairs(facts)
            yield from (markup.note(one_line(str(line), 500)) for line in explained.facts["warnings"])
            yield markup.folded("EXPLAIN DATA", *explained.parts())
            if built := stream.caches():
                yield element("h4", "Caches")
                yield _built(built)
            if self._request.batches:
                yield element("h4", "Next batches")
            for number in range(self._request.batches):
                try:
                    sheet = stream.show(_SHOWN, batch=number)
                except IndexError:  # the epoch has no more
                    break
                tiles = [tile for tile in sheet.tiles if tile.batch == number]
                yield Sheet(tiles, "").markup(sheet_bytes // self._request.batches)

    def _caches(self) -> Iterator[Html]:
        yield element("h2", "Caches", id="caches")
        try:
            found = self._opener.caches(trust=self._request.trust)
        except SpiralError as error:
            yield markup.note(one_line(f"not shown: {error}", _SAID))
            return
        yield markup.pairs(
            [
                ("bytes", size(sum(each.bytes for each in found))),
                ("live", size(sum(each.live_bytes for each in found))),
                ("dead", size(sum(each.dead_bytes for each in found))),
            ]
        )
        largest = max([each.bytes for each in found], default=0)
        rows = sorted(found, key=lambda each: -each.bytes)
        yield markup.table([_prepared_row(each, largest) for each in rows], most=_LISTED)


def _built(found: Sequence[CacheStatus]) -> Html:
    rows = [
        {
            "field": one_line(each.field),
            "of": one_line(f"{each.relation}: {each.column}"),
            "form": one_line(each.form),
            "built": f"{each.built:,}",
            "of rows": f"{each.rows:,}",
            "": markup.share_bar(each.built, each.rows),
            "bytes": size(each.payload_bytes),
        }
        for each in found
    ]
    return markup.table(rows)


def _prepared_row(each: PreparedData, largest: int) -> dict[str, object]:
    return {
        "what": each.kind,
        "of": one_line(f"{', '.join(each.relations[:_NAMED])}: {', '.join(each.columns)}".strip(" :"), _NAME),
        "form": "" if each.about.startswith("{") else one_line(each.about, _NAME),
        "bytes": size(each.bytes),
        "": markup.share_bar(each.bytes, largest) if each.bytes * _VISIBLE > largest else "",
        "dead": size(each.dead_bytes) if each.dead_bytes else "",
        "used by": one_line(listed(each.used_by, _NAMED), _NAME),
        "last used": moment(str(each.last_used.replace(microsecond=0, tzinfo=None))),
        "note": one_line(each.note, _NAME),
    }
