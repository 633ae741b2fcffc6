"""What the page of a relation shows in Dagster, from a `spiral_stream.report.Report`.

Values come in the order in which they are read: how to open it first, then numbers, then a small picture. All that needs more
room stands in one Markdown page, which a button opens (`spiral_assets.facts.folded`). Pictures lie among the compute logs of
their run, from where the webserver serves them, because markdown of more than 1,000 characters, such as an inline picture, is
hidden behind a button. They go when the logs of the run go. Pictures have no ground of their own, so that a dark page is dark.
"""

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from spiral_assets.facts import reports
from spiral_assets.facts.folded import WIDTH, folded

if TYPE_CHECKING:
    from PIL import Image

    import spiral_stream as spiral

Context = dg.AssetExecutionContext
_LOCATION_FIELDS: Final = ("uri", "path", "url", "repo")  # fields of a source that say where its rows lie
_WORST: Final = 10  # shards in a table
SMALL: Final = 275  # of a drawn picture that fits a page in a window of 1,280 pixels; an SVG is 4 % smaller
LARGE: Final = 760  # of one in a folded page
_FIRST: Final = ("distance_worst", "effective", "explained_by_time")  # of a skew's numbers
_MEANS: Final = 8  # columns whose mean is plotted over time
_INLINE: Final = 1 << 14  # bytes of a picture that is kept as metadata, where no file is served
_SVG_WIDTH: Final = re.compile(rb'<svg[^>]*\swidth="([\d.]+)(pt|px)?"')
_HEAD: Final = 2_000  # bytes
_PX_PER_PT: Final = 4 / 3
_LARGEST: Final = 200_000  # bytes of a sheet of pictures; its file is a third larger
_QUALITIES: Final = (80, 60, 40)
_WORDS: Final = 40  # characters that stand for a picture
_DIGITS: Final = 12


def definition_metadata(name: str, source: Mapping[str, Any]) -> dict[str, str]:
    """Return what the sidebar of a relation shows before anything runs: table name, storage kind and URI. Reads nothing.

    Args:
        name: of the relation.
        source: its JSON form, such as ``{"kind": "parquet", "path": "..."}``.

    Examples:
        >>> from spiral_assets.pages import definition_metadata
        >>> definition_metadata("shop.photos", {"kind": "parquet", "path": "photos.parquet"})["dagster/uri"]
        'photos.parquet'
    """
    source = source["of"] if isinstance(source.get("of"), Mapping) else source
    place = next((source[each] for each in _LOCATION_FIELDS if source.get(each)), None)
    metadata = {
        "dagster/table_name": name,
        "dagster/storage_kind": source.get("kind"),
        "dagster/uri": ", ".join(map(str, place)) if isinstance(place, list | tuple) else place,
    }
    return {key: str(value) for key, value in metadata.items() if value}


def relation_page(
    context: Context,
    report: "spiral.report.Report",
    descriptions: Mapping[str, str] | None = None,
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what the page of a registered relation shows: how to open it, its schema, some samples, its size.

    Args:
        context: of the run that shows it; pictures are kept with it.
        report: from `spiral_stream.report.report_relation`.
        descriptions: column -> its meaning, where the relation itself says none.
        more: entries that are shown too.

    Examples:
        >>> from spiral_assets.pages import relation_page
        >>> report = spiral.report.report_relation(catalog, "shop.photos", samples=2)
        >>> relation_page(dg.build_asset_context(), report)["dagster/row_count"]
        24
    """
    found: dict[str, Any] = {
        "open_it": reports.snippet(report.snippet.strip()),
        "dagster/row_count": report.rows,
        "dagster/column_schema": table_schema(report, descriptions),
        "dagster/table_name": report.name,
        "dagster/uri": report.uri,
        "storage_shards": report.shards,
    }
    details: dict[str, Any] = {}
    if report.imported:
        details["imported"] = report.imported
    if report.bytes is not None:
        found[reports.SIZE] = report.bytes
    details["samples"] = reports.sample_table(report.samples)
    if report.sheet is not None:
        if report.sheet.tiles:
            sheet = report.sheet.image(transparent=True)
            found["contact_sheet"] = shown(context, report.name, [("samples", "svg", framed(sheet, WIDTH))])
            details["pictures"] = shown(context, report.name, [("samples large", "svg", framed(sheet))])
        if report.sheet.faults:
            found["cannot_be_decoded"] = len(report.sheet.faults)
            details["what cannot be decoded"] = reports.listed([{"sample": each} for each in report.sheet.faults])
    return folded({**found, **(more or {})}, details)


def statistics_page(
    context: Context,
    report: "spiral.report.Report",
    first: Mapping[str, Any] | None = None,
    details: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what the page of a relation's statistics shows: its columns, and how labels and origins are spread.

    The same as one HTML page is written beside the catalog.

    Args:
        context: of the run that shows it; pictures are kept with it.
        report: from `spiral_stream.report.report_relation`.
        first: entries that are shown before the others.
        details: entries that are folded too.

    Examples:
        >>> from spiral_assets.pages import statistics_page
        >>> report = spiral.report.report_relation(catalog, "shop.photos", samples=0, pictures=0)
        >>> statistics_page(dg.build_asset_context(), report)["storage_shards"]
        2
    """
    page = report.save()
    found: dict[str, Any] = {"dagster/row_count": report.rows, "storage_shards": report.shards}
    folds: dict[str, Any] = {"the whole report": dg.MetadataValue.path(str(page))}
    if report.notes:
        found["notes"] = dg.MetadataValue.md("\n".join(f"* {note}" for note in report.notes))
    for each in report.skews:
        facts = "\n".join(f"* **{name}**: {words}" for name, words in each.facts())
        found[f"{each.column}_skew"] = dg.MetadataValue.md(
            f"A storage shard is {each.skew.mean:.2f} from the mix of all rows; {each.by_chance:.2f} is chance. {each.advice()}."
        )
        folds[f"{each.column}_skew"] = dg.MetadataValue.md(f"{facts}\n\n{each.advice()}.")
        pictures = [(p.name, p.form, p.data) for p in each.pictures()]
        if pictures:
            folds[f"{each.column}_pictures"] = shown(context, report.name, pictures)
        folds[f"{each.column}_worst_shards"] = reports.listed(each.worst_rows()[:_WORST])
    return folded(
        {**(first or {}), **found, **dict(numbers(report))},
        {**reports.column_tables(report), **folds, **(details or {})},
    )


def numbers(report: "spiral.report.Report") -> Iterator[tuple[str, float]]:
    """Yield what Dagster plots over time: missing values, means, and the skew of labels and origins.

    Examples:
        >>> from spiral_assets.pages import numbers
        >>> report = spiral.report.report_relation(catalog, "shop.photos", samples=0, pictures=0)
        >>> dict(numbers(report))["label_id_mean"]
        1.0
    """
    counted = [dict(each.numbers) for each in report.columns]
    if report.is_measured:
        yield "nulls", int(sum(each.get("nulls", 0) for each in counted))
        yield "NaN", int(sum(each.get("nans", 0) for each in counted))
    skews = [(each.column, each.numbers()) for each in report.skews]
    names = [*_FIRST, *dict.fromkeys(name for _, found in skews for name in found if name not in _FIRST)]
    for name in names:
        for column, found in skews:
            if name in found:
                yield f"{column}_{name}", float(f"{found[name]:.4g}")
    means = [(each.name, dict(each.numbers)["mean"]) for each in report.columns if "mean" in dict(each.numbers)]
    for name, mean in means[:_MEANS]:
        yield f"{name}_mean", float(f"{mean:.4g}")


def table_schema(report: "spiral.report.Report", descriptions: Mapping[str, str] | None = None) -> dg.TableSchema:
    """Return a relation's columns with descriptions, and with their roles as tags.

    Args:
        report: from `spiral_stream.report.report_relation`.
        descriptions: column -> its meaning, where the relation itself says none.

    Examples:
        >>> from spiral_assets.pages import table_schema
        >>> report = spiral.report.report_relation(catalog, "shop.photos", samples=0, pictures=0)
        >>> [column.name for column in table_schema(report).columns]
        ['sample_id', 'image_ref', 'label_id', 'storage_shard']
    """
    alone = [each.name for each in report.columns if "identity" in each.roles]
    columns = [
        dg.TableColumn(
            each.name,
            each.kind,
            description=each.description or (descriptions or {}).get(each.name),
            constraints=dg.TableColumnConstraints(unique=alone == [each.name]),
            tags={f"role/{role.replace(' ', '_')}": "" for role in each.roles},
        )
        for each in report.columns
    ]
    return dg.TableSchema(columns=columns)


def with_pictures(context: Context, of: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata in which each `spiral_stream.report.Picture` is markdown that shows it; wide ones are folded.

    Args:
        context: of the run that shows it.
        of: what they show, such as the key of an asset.
        metadata: by name.

    Examples:
        >>> from spiral_assets.pages import with_pictures
        >>> metadata = {"rows": 24, "photo": spiral.report.Picture("photo", "A photo", "jpg", jpeg(9))}
        >>> with_pictures(dg.build_asset_context(), "shop.photos", metadata)["photo"].value
        '![photo](data:image/jpeg;base64,...)'
    """
    import spiral_stream as spiral

    found: dict[str, Any] = {}
    details: dict[str, Any] = {}
    for name, value in metadata.items():
        if not isinstance(value, spiral.report.Picture):
            found[name] = value
            continue
        page = details if _pixels(value) > WIDTH + 1 else found
        page[name] = shown(context, of, [(value.name, value.form, value.data)])
    return folded(found, details)


def _pixels(picture: "spiral.report.Picture") -> float:
    """The width of a picture as a browser shows it."""
    from PIL import Image

    if picture.form != "svg":
        return float(Image.open(BytesIO(picture.data)).width)
    found = _SVG_WIDTH.search(picture.data[:_HEAD])
    if found is None:
        return float("inf")
    return float(found[1]) * (_PX_PER_PT if found[2] == b"pt" else 1.0)


def shown(context: Context, of: str, pictures: Sequence[tuple[str, str, bytes]]) -> dg.MetadataValue[Any]:
    """Keep pictures with the logs of a run, and return markdown that shows them.

    Where logs are not in a folder of this machine, nothing serves them: small pictures are then part of the metadata.

    Args:
        context: of the run.
        of: what they show, such as the name of a relation.
        pictures: name, ending (``svg``, ``png`` or ``jpg``) and bytes of each.

    Examples:
        >>> from spiral_assets.pages import shown
        >>> shown(dg.build_asset_context(), "shop.photos", [("a photo", "jpg", jpeg(9))]).value
        '![a photo](data:image/jpeg;base64,...)'
    """
    from dagster._core.storage.local_compute_log_manager import LocalComputeLogManager

    keeper, lines = context.instance.compute_log_manager, []
    for name, form, data in pictures:
        words = re.sub(r"[^\w -]", " ", name)[:_WORDS]
        if isinstance(keeper, LocalComputeLogManager):
            key = [context.run.run_id, "pictures", hashlib.sha256(f"{of}\0{name}".encode()).hexdigest()[:_DIGITS]]
            path = Path(keeper.get_captured_local_path(key, form))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            lines.append(f"![{words}](/logs/{'/'.join(key)}/{form})")
        elif len(data) <= _INLINE:
            kind = {"svg": "svg+xml", "jpg": "jpeg"}.get(form, form)
            lines.append(f"![{words}](data:image/{kind};base64,{base64.b64encode(data).decode()})")
        else:
            lines.append(f"{words}: see the report")
    return dg.MetadataValue.md("\n\n".join(lines))


def framed(image: "Image.Image", width: int | None = None) -> bytes:
    """Return an image in an SVG of some width; it may be transparent, and has at most 300 kB.

    Args:
        image: of any size.
        width: pixels; None is that of the image.

    Examples:
        >>> from PIL import Image
        >>> from spiral_assets.pages import framed
        >>> framed(Image.new("RGB", (400, 200)), 100)[:63]
        b'<svg xmlns="http://www.w3.org/2000/svg" width="100" height="50"'
    """
    data, tried = b"", image
    while not data or len(data) > _LARGEST:
        for quality in _QUALITIES:
            file = BytesIO()
            tried.save(file, "WEBP", quality=quality)
            data = file.getvalue()
            if len(data) <= _LARGEST:
                break
        else:
            tried = tried.resize((max(1, tried.width // 2), max(1, tried.height // 2)))
    wide = min(width or image.width, image.width)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{round(image.height * wide / image.width)}" '
        f'viewBox="0 0 {image.width} {image.height}"><image width="{image.width}" height="{image.height}" '
        f'href="data:image/webp;base64,{base64.b64encode(data).decode()}"/></svg>'
    ).encode()
