"""`spiral page` and what a notebook shows, seen in a browser: no error on its console, and nothing asked of a network."""

import re
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from typer.testing import CliRunner

import spiral_stream as sp
from spiral_stream.commands.cli import app
from tests.fixtures import relations, texts
from tests.fixtures.browser import Page, browser
from tests.fixtures.streams import plan

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
HOSTILE = "</style><script>alert(1)</script><img onerror=alert(1)>"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[sp.Catalog, Path]:
    """A catalog with a relation of each kind, two streams and a cache; and its page, as the command writes it."""
    pytest.importorskip("av")
    from tests.fixtures.sounds import recording
    from tests.fixtures.videos import write_video

    folder = tmp_path_factory.mktemp("page")
    catalog = texts.make_catalog(folder, {"docs": 40}, shortest=4)
    images = relations.imagenet_train(60, labels=4, shards=4, side=40)
    catalog.register("photos", sp.Arrow(images), identity="sample_id", semantic={"image_ref": "image/jpeg-ref"})
    catalog.measure("photos")
    write_video(folder / "a.mp4")
    (folder / "a.flac").write_bytes(recording("flac", 2.0)[0])
    media = pa.table({"id": [0, 1], HOSTILE: [HOSTILE] * 2, "clip": ["a.mp4"] * 2, "sound": ["a.flac"] * 2})
    semantic = {"clip": "video/h264-ref", "sound": "audio/ref"}
    catalog.register("media", sp.Arrow(media, base=folder), identity="id", semantic=semantic)
    with plan(catalog.table("photos"), profile=sp.Raw(shorter_side=24)).to_numpy() as stream:
        stream.materialize(lambda _: None)
        catalog.save_stream("train", stream)
    sampled = catalog.table("docs").sample(order=sp.Sequential()).map(sp.Tokenize("text", tokenizer="words") >> "tok")
    packing = sp.batching.Packed(max_tokens=64, window_size=30)
    catalog.save_stream(
        "text", sampled.collate(batch_size=2, formation=packing, fields={"ids": sp.Pad("tok")}).to_numpy()
    )
    done = CliRunner().invoke(app, ["page", "--out", str(folder / "page.html"), "--catalog", str(catalog.root)])
    assert done.exit_code == 0, done.output
    return catalog, folder / "page.html"


@pytest.fixture(scope="module")
def page(made: tuple[sp.Catalog, Path], tmp_path_factory: pytest.TempPathFactory) -> Page:  # type: ignore[misc]  # yields
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def seen(page: Page) -> str:
    return str(page.value("document.body.innerText"))


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_reader_sees_the_catalog_and_nothing_is_asked_of_a_network(
    made: tuple[sp.Catalog, Path], page: Page, width: int, dark: bool
) -> None:
    catalog, file = made
    page.open(file, width, dark=dark)
    text = seen(page)

    for name in (*catalog.tables(), *catalog.streams()):
        assert text.count(name) >= 2  # in the list, and over its section
    for words in (
        "Relations",
        "Streams",
        "Caches",
        "EXPLAIN DATA",
        "Raw(shorter_side=24)",
        "batch 0 row 0",
        "batch 1 row 0",
    ):
        assert words in text
    assert HOSTILE in text  # as text
    assert str(page.value("document.title")).startswith("Catalog ")
    assert page.value("document.scripts.length") == 0
    assert page.value("document.documentElement.scrollWidth") == width  # wide tables scroll by themselves
    assert page.value("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
    assert page.value("document.images.length") >= 8 + 8
    paper, ink = page.value(
        "[getComputedStyle(document.documentElement).backgroundColor, getComputedStyle(document.body).color]"
    )
    assert contrast(paper, ink) > 10
    assert page.said == []
    assert page.asked == []


def contrast(one: str, other: str) -> float:
    """The ratio of luminances that WCAG defines."""

    def luminance(color: str) -> float:
        parts = [int(each) / 255 for each in re.findall(r"\d+", color)[:3]]
        r, g, b = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_a_clip_plays_and_each_part_of_its_bar_shows_its_frame(made: tuple[sp.Catalog, Path], page: Page) -> None:
    page.open(made[1])
    page.value("document.querySelector('.sp-clip').scrollIntoView({block: 'center'})")
    frame = "getComputedStyle(document.querySelector('.sp-clip .sp-f'))"
    assert page.value(f"{frame}.animationName") == "none"
    x, y, width, height = page.value(
        "(r => [r.x, r.y, r.width, r.height])(document.querySelector('.sp-clip i:nth-child(5)').getBoundingClientRect())"
    )
    page.hover(x + width / 2, y + height / 2)
    before = "getComputedStyle(document.querySelector('.sp-clip i:nth-child(5)'), '::before')"
    shown = page.value(f"(s => [s.content, s.backgroundPositionX])({before})")
    size = page.value("document.querySelector('.sp-clip .sp-f').getBoundingClientRect().width")
    assert shown[0] != "none"
    assert shown[1] == f"-{4 * size:g}px"

    page.hover(x + width / 2, y - 30, click=True)
    assert page.value(f"{frame}.animationName") == "sp-play"
    page.hover(x + width / 2, y - 30, click=True)
    assert page.value(f"{frame}.animationName") == "none"


def test_a_sound_can_be_played(made: tuple[sp.Catalog, Path], page: Page) -> None:
    page.open(made[1])
    loaded = "new Promise(done => { const a = document.querySelector('audio'); const end = () => done([a.duration, a.error]);"
    loaded += " a.readyState ? end() : (a.onloadedmetadata = end, a.onerror = end, a.load()) })"
    duration, error = page.value(loaded)

    assert error is None
    assert duration == pytest.approx(2.0, abs=0.05)


def test_what_a_notebook_shows_fits_a_light_and_a_dark_paper(
    made: tuple[sp.Catalog, Path], page: Page, tmp_path: Path
) -> None:
    catalog, _ = made
    parts = [catalog.table("photos")._repr_html_(), catalog.table("media")._repr_html_()]
    for name in ("train", "text"):
        with catalog.open_stream(name) as stream:
            parts += [stream._repr_html_(), stream.explain()._repr_html_()]
    for paper, ink in (("#ffffff", "#202020"), ("#111111", "#dddddd")):
        file = tmp_path / f"{paper[1:]}.html"
        style = f"background:{paper};color:{ink}"
        file.write_text(f'<!doctype html><meta charset="utf-8"><body style="{style}">{"".join(parts)}')
        page.open(file, 1000)
        inks = page.value(
            "[...document.querySelectorAll('.sp td, .sp dd, .sp pre, .sp p')].map(e => getComputedStyle(e).color)"
        )
        assert {contrast(ink_, _rgb(paper)) > 7 for ink_ in set(inks)} == {True}
        bars = page.value("getComputedStyle(document.querySelector('.sp-h')).fill")
        assert contrast(bars, _rgb(paper)) > 3
    assert page.said == []
    assert page.asked == []


def _rgb(color: str) -> str:
    return "rgb({}, {}, {})".format(*(int(color[at : at + 2], 16) for at in (1, 3, 5)))


def test_the_browser_of_these_tests_counts_what_is_asked_and_hears_errors(page: Page, tmp_path: Path) -> None:
    (tmp_path / "bad.html").write_text(
        "<img src='http://127.0.0.1:9/x.png'><script>console.error('no'); nothing()</script>"
    )
    said, asked = len(page.said), len(page.asked)
    page.open(tmp_path / "bad.html")

    assert len(page.asked) == asked + 1
    assert len(page.said) >= said + 2
    del page.said[said:], page.asked[asked:]


def jpeg(pixels: np.ndarray) -> bytes:
    file = BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95)
    return file.getvalue()


def test_the_page_keeps_to_its_bytes(made: tuple[sp.Catalog, Path], tmp_path: Path) -> None:
    catalog, file = made
    rng = np.random.default_rng(0)
    assert file.stat().st_size <= 16 << 20
    wide = {f"c{k}": rng.normal(size=4) for k in range(200)}
    many = sp.connect(str(tmp_path / "many"))
    for k in range(12):
        many.register(f"r{k:02}", sp.Arrow(pa.table({"id": range(4), **wide})), identity="id")
    noise = [jpeg(rng.integers(0, 256, (200, 200, 3), dtype=np.uint8)) for _ in range(40)]
    photos = sp.Arrow(pa.table({"id": range(40), "image": noise}))
    many.register("a_noise", photos, identity="id", semantic={"image": "image/jpeg-ref"})
    small = many.page(tmp_path / "small.html", pictures=40, max_bytes=256 << 10)
    text = small.read_text()

    assert small.stat().st_size <= 256 << 10
    assert "left out" in text
    assert "stand in the list alone" in text
    assert all(f"r{k:02}" in text for k in range(12))
    assert catalog.page(tmp_path / "one.html", "photos").stat().st_size < file.stat().st_size
