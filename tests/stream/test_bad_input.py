"""Bad input: each is an error that names the row, column or file, and the way out. A refused row is alike cached or not."""

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import simplejpeg

import spiral_stream as sp
from tests.fixtures.streams import FIXED, images, maker, our_threads, plan

pytestmark = pytest.mark.usefixtures("no_threads_left")

BAD_ROW = 10
BAD_NAME = "img-00000010"
SEMANTIC = {"image_ref": "image/jpeg-ref"}
PROFILES = [None, sp.profiles.Original(), sp.Raw(shorter_side=20), sp.profiles.Jpeg(shorter_side=20)]


def photo() -> bytes:
    pixels = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    return bytes(simplejpeg.encode_jpeg(pixels, quality=90))


def png() -> bytes:
    from PIL import Image

    out = BytesIO()
    Image.new("RGB", (30, 30)).save(out, "PNG")
    return out.getvalue()


BAD_BYTES: dict[str, tuple[bytes | None, str]] = {
    "a JPEG that lost its second half": (photo()[: len(photo()) // 2], r"ends before its pixels|is damaged"),
    "a JPEG that lost all but its start": (photo()[:100], r"JPEG of 100 bytes is damaged"),
    "half a PNG": (png()[:60], r"the PNG of 60 bytes is damaged or cannot be shown"),
    "text": (
        b"<html>404</html>",
        r"16 bytes.*not JPEG's ff d8 ff or the signature of another image format. Check the column",
    ),
    "no bytes": (b"", r"the value is empty \(0 bytes\)"),
    "a null": (None, r"the reference is null. Filter the row out"),
}
WAY_OUT = rf"Mend it, or leave it out with .filter\(col\(\"sample_id\"\) != '{BAD_NAME}'\) before sample"


def with_bad_row(value: bytes | None) -> pa.Table:
    table = images(64)
    column = table["image_ref"].to_pylist()
    column[BAD_ROW] = value
    field = table.schema.field("image_ref")
    return table.set_column(2, field, pa.chunked_array([column], pa.large_binary()))


def refusal(stream: Any) -> tuple[int, str]:
    """The batch at which a stream stops, and why."""
    seen: list[Any] = []
    with pytest.raises(sp.errors.DataError) as caught:
        seen.extend(stream)
    assert our_threads() == []
    return len(seen), str(caught.value)


@pytest.fixture
def bad_rows(tmp_path: Path) -> sp.Catalog:
    return sp.connect(tmp_path)


@pytest.mark.crossed
@pytest.mark.parametrize("profile", PROFILES, ids=str)
@pytest.mark.parametrize("bad", BAD_BYTES)
def test_a_bad_image_is_refused_by_name_cached_or_not(bad_rows: sp.Catalog, bad: str, profile: Any) -> None:
    value, why = BAD_BYTES[bad]
    bad_rows.register("bad", sp.Arrow(with_bad_row(value)), semantic=SEMANTIC)
    make = maker(bad_rows, "bad", profile=profile, order=sp.Sequential(), transforms=FIXED, batch_size=8)
    with make() as stream:
        place = stream.locate(BAD_NAME)
        at, uncached = refusal(stream)
        built = stream.materialize(lambda _: None)
        _, in_the_same_stream = refusal(stream)
    with make() as stream:
        cached_at, cached = refusal(stream)

    with pytest.raises(sp.errors.DataError, match=rf"^bad: sample sample_id='{BAD_NAME}': .*{why}.*{WAY_OUT}"):
        raise sp.errors.DataError(uncached)
    assert cached == in_the_same_stream == uncached
    assert place is not None
    assert at == cached_at == place["batch"]
    assert built.rows == 64

    kept = bad_rows.table("bad").filter(sp.col("sample_id") != BAD_NAME)
    with plan(kept, profile=profile, transforms=FIXED, batch_size=8).to_numpy() as stream:
        assert len(list(stream)) == 7


def files(folder: Path) -> pa.Table:
    table = images(24)
    for name, data in zip(table["sample_id"].to_pylist(), table["image_ref"].to_pylist(), strict=True):
        (folder / f"{name}.jpg").write_bytes(data)
    paths = pa.array([f"{name}.jpg" for name in table["sample_id"].to_pylist()])
    return table.set_column(2, pa.field("image_ref", pa.utf8()), paths)


def test_a_missing_file_is_named_in_streams_and_builds(empty: sp.Catalog, tmp_path: Path) -> None:
    folder = tmp_path / "jpegs"
    folder.mkdir()
    empty.register("listed", sp.Arrow(files(folder), base=str(folder)), semantic=SEMANTIC)
    gone = folder / f"{BAD_NAME}.jpg"
    away = gone.rename(tmp_path / "away.jpg")
    make = maker(empty, "listed", profile=sp.Raw(20), order=sp.Sequential(), batch_size=8)
    with make() as stream:
        message = rf"listed: sample sample_id='{BAD_NAME}': {gone}: No such file.*Restore the file.*{WAY_OUT}"
        with pytest.raises(sp.errors.SourceError, match=message) as caught:
            list(stream)
        assert not isinstance(caught.value, sp.errors.DataError)  # an I/O fault is no property of the bytes
        with pytest.raises(sp.errors.SourceError, match=rf"{gone}: No such file.*Restore the file"):
            stream.materialize(lambda _: None)
        assert our_threads() == []

        away.rename(gone)
        assert 0 < stream.materialize(lambda _: None).rows < 24  # finished shards were kept
        stream.set_epoch(1)
        assert len(list(stream)) == 3
        assert stream.metrics()["cached_rows"] == 24


def test_a_byte_range_past_the_end_of_its_file_is_named(empty: sp.Catalog, tmp_path: Path) -> None:
    data = images(24)["image_ref"].to_pylist()
    (tmp_path / "packed.bin").write_bytes(b"".join(data))
    starts = np.cumsum([0, *map(len, data)])
    ranges = [{"uri": "packed.bin", "offset": int(o), "length": len(d)} for o, d in zip(starts, data, strict=False)]
    ranges[BAD_ROW]["length"] += 1_000_000
    kind = pa.struct([("uri", pa.utf8()), ("offset", pa.int64()), ("length", pa.int64())])
    table = images(24).set_column(2, pa.field("image_ref", kind), pa.array(ranges, kind))
    empty.register("packed", sp.Arrow(table, base=str(tmp_path)), semantic=SEMANTIC)
    with maker(empty, "packed", order=sp.Sequential(), batch_size=8)() as stream:
        message = rf"sample_id='{BAD_NAME}': {tmp_path}/packed.bin has \d+ bytes, the reference asks for .*Restore"
        with pytest.raises(sp.errors.SourceError, match=message):
            list(stream)


def test_a_null_label_is_named(empty: sp.Catalog) -> None:
    table = images(24)
    labels = table["label_id"].to_pylist()
    labels[BAD_ROW] = None
    table = table.set_column(3, "label_id", pa.array(labels, pa.int64()))
    empty.register("unlabelled", sp.Arrow(table), semantic=SEMANTIC)
    with maker(empty, "unlabelled", order=sp.Sequential(), batch_size=8)() as stream:
        message = rf"sample_id='{BAD_NAME}': Stack\('label_id'\): the value is null. Filter it out.*{WAY_OUT}"
        with pytest.raises(sp.errors.DataError, match=message):
            list(stream)


def test_a_label_that_does_not_fit_is_named(empty: sp.Catalog) -> None:
    table = images(24)
    labels = table["label_id"].to_pylist()
    labels[BAD_ROW] = 300
    table = table.set_column(3, "label_id", pa.array(labels, pa.int64()))
    empty.register("wide", sp.Arrow(table), semantic=SEMANTIC)
    narrow = {"small": sp.Stack("label_id", dtype="uint8")}
    with maker(empty, "wide", order=sp.Sequential(), batch_size=8, **narrow)() as stream:
        message = rf"sample_id='{BAD_NAME}': Stack\('label_id'\): the value 300 does not fit dtype uint8\. Give a wider"
        with pytest.raises(sp.errors.DataError, match=message):
            list(stream)


def test_a_duplicate_identity_is_refused_at_registration(empty: sp.Catalog) -> None:
    table = images(24)
    names = table["sample_id"].to_pylist()
    names[20] = names[BAD_ROW]
    table = table.set_column(0, "sample_id", pa.array(names))
    with pytest.raises(
        sp.errors.CatalogError, match=rf"identity repeats: .*{BAD_NAME}.*Name a unique column or several"
    ):
        empty.register("twice", sp.Arrow(table), semantic=SEMANTIC)


Verb = Callable[[sp.Relation], Any]


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda r: r.filter(sp.col("labl_id") == 1), "labl_id.*label_id"),
        (lambda r: r.project("smaple_id"), "smaple_id.*sample_id"),
        (lambda r: r.cache(imge_ref=sp.Raw()), "imge_ref.*image_ref"),
        (lambda r: r.cache(label_id=sp.Raw()), "label_id"),
        (lambda r: r.sample(identity="nobody", order=sp.Sequential()), "nobody.*sample_id"),
        (lambda r: plan(r, other=sp.Stack("labl_id")), "labl_id.*label_id"),
        (lambda r: plan(r, other=sp.List("labl_id")), "labl_id.*label_id"),
        (lambda r: plan(r, other=sp.Stack("split")), r"column is string.*Use List\(\"split\"\)"),
        (lambda r: plan(r, other=sp.Stack("image_ref")), r"which names bytes. Say how to read them: decode=\"jpeg\""),
        (lambda r: plan(r, other=sp.Stack("label_id", decode="jpeg")), "label_id.*image/jpeg-ref"),
        (lambda r: sp.Stack("label_id", dtype="flaot16"), "'flaot16' is unknown; it is one of bool, uint8"),
        (lambda r: sp.Stack("label_id", layout="nchw"), r"need a decoded column. Give decode=\"jpeg\" or \"h264\""),
        (lambda r: sp.Stack("image_ref", decode="jepg") and plan(r, o=sp.Stack("image_ref", decode="jepg")), "jpeg"),
        (lambda r: plan(r, batch_size=0), "batch_size"),
        (lambda r: plan(r).to_numpy(prefetch=0), "prefetch"),
        (
            lambda r: r.limit(10).to_arrow() and len(plan(r.filter(sp.col("label_id") == 99)).to_numpy()),
            "no row of lance",
        ),
    ],
)
def test_a_plan_that_cannot_be_says_which_name_and_what_would_be_right(
    catalog: sp.Catalog, use: Verb, message: str
) -> None:
    with pytest.raises(sp.errors.PlanError, match=f"(?s){message}"):
        use(catalog.table("lance"))


@pytest.mark.parametrize(
    ("bindings", "message"),
    [
        ({"rnak": 1}, "'rnak' is not a binding; there are epoch, data_parallel_rank"),
        ({"rank": 2, "world_size": 2}, r"with a rank in \[0, 2\)"),
        ({"world_size": 0}, "counts from 1"),
        ({"merge": 0}, "counts from 1"),
        ({"epoch": -1}, "counts from 0"),
        ({"epoch": "3"}, "is a str. Give an integer"),
    ],
)
def test_a_binding_that_does_not_fit_is_refused(catalog: sp.Catalog, bindings: dict[str, Any], message: str) -> None:
    with maker(catalog)() as stream, pytest.raises(sp.errors.BindError, match=message):
        stream.bind(**bindings)


def test_unknown_names_in_the_catalog_come_with_near_ones(catalog: sp.Catalog) -> None:
    with pytest.raises(sp.errors.CatalogError, match=r"'lnace' is not in catalog .*lance.*Register it first"):
        catalog.table("lnace")
    with pytest.raises(
        sp.errors.CatalogError, match=r"stream 'traain' is not in catalog .*Save it with save_stream first"
    ):
        catalog.open_stream("traain")
