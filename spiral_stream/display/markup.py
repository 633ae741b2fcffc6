"""Markup: the only room that writes HTML. Data is never markup.

A view is made of `element`s. What is no `Html` is data: `element` escapes it, and nothing else makes `Html`. A view has no
script and names no file: pictures and sounds lie in it. It keeps to a bound of bytes (`bounded`): it is a list of parts,
each whole by itself, and parts that do not fit are counted and left out.

A notebook's paper may be light or dark, and a view does not know which: text has the notebook's colour, lines and tints
are half transparent, and pictures are drawn in colours that are legible on both. A page has papers of its own.
"""

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final, final

from spiral_stream.display.wording import size

NOTEBOOK_BYTES: Final = 2 << 20  # most bytes of what a value shows of itself in a notebook
PAGE_BYTES: Final = 16 << 20  # and of a page
PAPER_BYTES: Final = 1 << 14  # of them for what is not a part: head, style, title
ROWS: Final = 200  # most rows of a table
_WORDS: Final = 512  # bytes of the line that says what is left out
_NUMBER: Final = re.compile(r"[~!<>\s]*[-∞]?\d[\d,.]*(e[+-]?\d+)?(\s?(%|[kMGTP]?B|bytes))?(\s\(.*\))?")
_UNSEEN: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")  # no character of a document
_VOID: Final = frozenset({"img", "input", "link", "meta"})
_BARS: Final = 48  # of a histogram
_HIGH: Final = 18  # pixels of a histogram
_WIDE: Final = 96


@final
class Html(str):
    """Text that is markup. Made by `element`, `joined` and `bounded` alone."""

    __slots__ = ()


def element(tag: str, *children: object, **attributes: object) -> Html:
    """Write an element.

    Args:
        tag: its name.
        *children: `Html` stands as it is, any other value is escaped; None is left out.
        **attributes: by name, without the underscore that ends a word of Python; None leaves one out.
    """
    names = "".join(
        f' {name.strip("_").replace("_", "-")}="{_clean(str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in _VOID:
        return Html(f"<{tag}{names}>")
    return Html(f"<{tag}{names}>{joined(children)}</{tag}>")


def joined(parts: Iterable[object]) -> Html:
    """Write one value after the other, as `element` does with its children."""
    return Html("".join(each if isinstance(each, Html) else _clean(str(each)) for each in parts if each is not None))


def _clean(text: str) -> str:
    return escape(_UNSEEN.sub("�", text))


def bounded(parts: Iterable[Html], most: int, way_out: str = "") -> Html:
    """Join the parts that fit into a number of bytes; the last line says how many do not.

    Args:
        parts: each whole by itself.
        most: bytes of the result.
        way_out: what shows the rest.
    """
    shown_parts, used, left, left_bytes = list[Html](), _WORDS, 0, 0
    for part in parts:
        count = len(part.encode())
        if used + count <= most:
            shown_parts.append(part)
            used += count
        else:
            left, left_bytes = left + 1, left_bytes + count
    if left:
        what = "1 part" if left == 1 else f"{left:,} parts"
        more = f" {way_out}" if way_out else ""
        shown_parts.append(
            note(f"{what} of {size(left_bytes)} left out: this shows at most {size(most)}.{more}"[: _WORDS // 4])
        )
    return joined(shown_parts)


def note(text: str) -> Html:
    """Write a line that asks for attention."""
    return element("p", text, class_="sp-note")


def quiet(*children: object) -> Html:
    """Write a line that explains."""
    return element("p", *children, class_="sp-quiet")


def folded(summary: object, *children: object, is_open: bool = False) -> Html:
    """Write what a reader unfolds."""
    return element("details", element("summary", summary), *children, open="" if is_open else None)


def table(rows: Sequence[Mapping[str, object]], *, most: int = ROWS, class_: str = "") -> Html:
    """Write rows as a table.

    Columns that are empty in all rows are left out; columns of numbers are aligned to the right.

    Args:
        rows: with the same names.
        most: rows that are shown; a line counts the others.
        class_: of the table, besides its own.
    """
    names = [name for name in rows[0] if any(row[name] not in ("", None) for row in rows[:most])] if rows else []
    if not names:
        return quiet("none")
    right = {name for name in names if all(is_number(row[name]) for row in rows[:most])}
    head = [element("th", name, class_="sp-n" if name in right else None) for name in names]
    body = [
        element("tr", *(element("td", row[name], class_=_class_of(row[name], name in right)) for name in names))
        for row in rows[:most]
    ]
    parts = element("thead", element("tr", *head)), element("tbody", *body)
    left = quiet(f"{len(rows) - most:,} more rows") if len(rows) > most else None
    return joined([element("div", element("table", *parts, class_=f"sp-t {class_}".strip()), class_="sp-x"), left])


def _class_of(value: object, right: bool) -> str | None:
    if right:
        return "sp-n"
    return None if isinstance(value, Html) or len(str(value)) < 30 else "sp-w"  # noqa: PLR2004


def is_number(value: object) -> bool:
    """Whether a cell of a table is a number as people write it, or empty."""
    if value in ("", None) or isinstance(value, int | float):
        return True
    return not isinstance(value, Html) and _NUMBER.fullmatch(str(value)) is not None


def pairs(facts: Iterable[tuple[object, object]]) -> Html:
    """Write facts, each with its name."""
    return element("dl", *(joined([element("dt", name), element("dd", value)]) for name, value in facts), class_="sp-d")


def histogram(counts: Sequence[float], words: str = "") -> Html:
    """Draw a histogram; a bin that holds anything is not drawn empty. Neighbours among many bins are drawn as one.

    Args:
        counts: per bin.
        words: what it shows, for a reader who cannot see it.
    """
    group = -(-len(counts) // _BARS) or 1
    sums = [sum(counts[at : at + group]) for at in range(0, len(counts), group)]
    top = max(sums, default=0)
    if not top:
        return Html("")
    step = _WIDE / len(sums)
    drawn = [
        element("rect", x=f"{k * step:.4g}", y=f"{_HIGH - high:.4g}", width=f"{step * 0.86:.3g}", height=f"{high:.4g}")
        for k, each in enumerate(sums)
        if each > 0 and (high := max(1.0, each / top * _HIGH))
    ]
    box = {"viewBox": f"0 0 {_WIDE} {_HIGH}", "width": _WIDE, "height": _HIGH}
    return element("svg", element("title", words), *drawn, class_="sp-h", role="img", preserveAspectRatio="none", **box)


def share_bar(part: float, total: float) -> Html:
    """Draw a part of a whole as a bar."""
    full = 0.0 if not total else max(0.0, min(1.0, part / total))
    return element("span", element("i", style=f"width:{100 * full:.3g}%"), class_="sp-s")


def data_uri(kind: str, data: bytes) -> str:
    """Return bytes as a place that a page needs no other file for.

    Args:
        kind: such as ``image/jpeg``.
        data: the file.
    """
    return f"data:{kind};base64,{b64encode(data).decode()}"


def view(*children: object) -> Html:
    """Write what a value shows of itself in a notebook."""
    return element("div", element("style", Html(STYLE)), *children, class_="sp")


def view_of(parts: Iterable[Html], way_out: str = "", most: int = NOTEBOOK_BYTES) -> str:
    """Write the parts of a view, as many as a notebook's bound lets.

    Args:
        parts: each whole by itself.
        way_out: what shows the rest.
        most: bytes of the result.
    """
    return str(view(bounded(parts, most - len(view().encode()), way_out)))


def page(title: str, *children: object) -> str:
    """Write a page: one file, a light and a dark paper, no script, nothing that is fetched."""
    head = [
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width,initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("link", rel="icon", href="data:,"),
        element("style", Html(STYLE + PAPER)),
    ]
    body = element("body", element("main", *children, class_="sp"))
    return f"<!doctype html>\n{element('html', element('head', *head), body, lang='en')}\n"


STYLE: Final = """
.sp{font:13px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;--line:rgba(128,128,128,.28);--tint:rgba(128,128,128,.1);
--ink:#3f7fc1;--warm:#c77a1e;max-width:100%;overflow-wrap:break-word}
.sp *{box-sizing:border-box}
.sp h1,.sp h2,.sp h3,.sp h4{font-weight:600;line-height:1.3;margin:1.4em 0 .5em}
.sp h1{font-size:20px;margin-top:0}.sp h2{font-size:17px}.sp h3{font-size:14px}.sp h4{font-size:13px;margin-top:1em}
.sp h5{font-size:12px;font-weight:500;margin:.8em 0 .1em;opacity:.66}
.sp>h4:first-of-type{margin-top:.2em}
.sp p{margin:.4em 0}.sp-quiet,.sp-d dt,.sp-t th,.sp-c h5{opacity:.66}.sp-quiet{font-size:12px}
.sp-note{font-size:13px;border-left:3px solid var(--warm);padding:1px 0 1px 8px}
.sp code,.sp pre,.sp-m{font-family:ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:12px}
.sp pre{background:var(--tint);color:inherit;border-radius:5px;padding:8px 10px;margin:.6em 0;overflow-x:auto;
line-height:1.45;white-space:pre-wrap;word-break:normal}
.sp-x{overflow-x:auto;max-width:100%}
.sp table.sp-t{border-collapse:collapse;border:0;table-layout:auto;margin:.3em 0;font-size:12px;width:auto;
font-variant-numeric:tabular-nums}
.sp .sp-t tr,.sp .sp-t tr:hover{background:none!important}
.sp .sp-t th,.sp .sp-t td{text-align:left;line-height:1.5;vertical-align:top;padding:3px 16px 3px 0;border:0;
border-bottom:1px solid var(--line);max-width:26em;white-space:nowrap}
.sp .sp-t th{font-weight:500;vertical-align:bottom}
.sp .sp-t td.sp-w{white-space:normal;min-width:14em}
.sp .sp-one td.sp-w{white-space:nowrap;max-width:none}
.sp .sp-t .sp-n{text-align:right}
.sp .sp-d{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:2px 18px;margin:.4em 0;padding:0;
font-size:12px}
.sp .sp-d dt{font-weight:400;float:none;width:auto;clear:none;margin:0}
.sp .sp-d dd{margin:0;padding:0;float:none;width:auto;overflow-wrap:anywhere;font-variant-numeric:tabular-nums}
.sp .sp-h{display:block;fill:var(--ink);width:96px;height:18px;max-width:none}
.sp-s{display:inline-block;width:96px;height:8px;border-radius:2px;background:var(--tint);overflow:hidden}
.sp-s i{display:block;height:100%;background:var(--ink)}
.sp details{margin:.5em 0}.sp summary{cursor:pointer;font-weight:500}
.sp-g{display:flex;flex-wrap:wrap;gap:14px;margin:.6em 0}
.sp-c{border:1px solid var(--line);border-radius:6px;padding:8px;width:min-content;min-width:162px;max-width:100%;
font-size:12px}
.sp-c.sp-long{flex:1 1 100%;width:auto}.sp-c.sp-heard{width:318px}
.sp .sp-c h5{font-size:11px;font-weight:400;margin:0 0 5px;line-height:1.4}
.sp-c img,.sp-c svg{display:block;border-radius:3px}
.sp-r{display:flex;flex-wrap:wrap;gap:6px}
.sp-long{display:flow-root}@media(min-width:641px){.sp-long>.sp-r{float:left;margin-right:14px}}
.sp .sp-c .sp-d{grid-template-columns:max-content minmax(0,1fr);gap:0 10px;margin:6px 0 0}.sp-c .sp-d dd{margin:0}
.sp-c figure{margin:0}.sp-c figcaption{font-size:11px;opacity:.66;margin-top:2px}
.sp-clip{display:block;width:var(--w);max-width:none;cursor:pointer;position:relative}
.sp-clip input{position:absolute;opacity:0;pointer-events:none}
.sp-f,.sp-bar i:hover::before{background-image:var(--s);background-repeat:no-repeat;width:var(--w);height:var(--h)}
.sp-f{display:block;border-radius:3px}
.sp-bar{display:flex;height:16px;margin-top:4px;padding-left:20px;position:static}
.sp-bar::before{content:"";position:absolute;left:3px;bottom:2px;border:solid transparent;border-width:6px 0 6px 10px;
border-left-color:currentColor;opacity:.7}
.sp-clip input:checked~.sp-bar::before{border-style:double;border-width:0 0 0 10px;height:12px;border-left-color:currentColor}
.sp-clip input:focus-visible~.sp-f{outline:2px solid var(--ink)}
.sp-bar i{flex:1;border-top:5px solid var(--line);margin:5px 1px 0 0}
.sp-bar i:hover{border-color:var(--ink)}
.sp-bar i:hover::before{content:"";position:absolute;left:0;top:0;background-position-x:calc(-1*var(--k)*var(--w))}
.sp-clip input:checked~.sp-f{animation:sp-play calc(var(--n)*.12s) steps(var(--n)) infinite}
.sp-bar b{position:absolute;left:20px;right:1px;bottom:6px;height:5px;pointer-events:none}
.sp-bar b::after{content:"";display:block;height:100%;width:0;background:var(--ink)}
.sp-clip input:checked~.sp-bar b::after{animation:sp-run calc(var(--n)*.12s) linear infinite}
@keyframes sp-play{to{background-position-x:calc(-1*var(--n)*var(--w))}}
@keyframes sp-run{to{width:100%}}
.sp audio{display:block;width:300px;max-width:100%;height:34px;margin-top:4px}
.sp .sp-wave{height:auto;fill:var(--ink);width:300px;max-width:100%;background:var(--tint)}
.sp-p{white-space:pre-wrap;overflow-wrap:anywhere;max-height:13em;overflow-y:auto;border-left:3px solid var(--line);
padding-left:8px;margin:4px 0;line-height:1.65}
.sp-p span{border-radius:3px}
.sp-0{background:rgba(63,127,193,.24)}.sp-1{background:rgba(217,130,43,.24)}.sp-2{background:rgba(72,160,92,.24)}
.sp-3{background:rgba(170,90,190,.22)}.sp-4{background:rgba(200,70,80,.2)}
.sp-pics{display:flex;flex-wrap:wrap;gap:14px}.sp-pics img{max-width:100%}
"""

PAPER: Final = """
:root{color-scheme:light dark}
html{background:#fff;color:#1c2127;scroll-padding-top:52px}body{margin:0}
main.sp{max-width:1180px;margin:0 auto;padding:26px 22px 80px;font-size:14px}
.sp{--ink:#2f6fb0}.sp a{color:var(--ink);text-decoration:none}.sp a:hover{text-decoration:underline}
main.sp h1{font-size:24px;letter-spacing:-.01em}
main.sp h2{font-size:19px;margin:2.2em 0 .6em;padding-top:.9em;border-top:1px solid var(--line)}
main.sp h3{font-size:16px;margin-top:2.2em}main.sp h4{font-size:13px;margin-top:1.3em}
main.sp .sp-nav+h2{border:0;margin-top:.6em}
.sp-nav{position:sticky;top:0;z-index:1;background:#fff;border-bottom:1px solid var(--line);margin:0 -22px;
padding:9px 22px;display:flex;flex-wrap:nowrap;overflow-x:auto;gap:6px 18px;font-size:13px;white-space:nowrap}
.sp-l{display:flex;flex-wrap:wrap;gap:4px 18px}
.sp-kind{opacity:.6;font-weight:400;font-size:13px;margin-left:.5em}
@media(prefers-color-scheme:dark){html,.sp-nav{background:#15181c;color:#dde2e8}.sp{--ink:#6ea8e0;--warm:#e0a04c}}
@media(max-width:640px){main.sp{padding:16px 10px 60px;font-size:13px}.sp-nav{margin:0 -10px;padding:8px 10px}
.sp>.sp-d,.sp section>.sp-d{grid-template-columns:fit-content(36%) minmax(0,1fr);gap:3px 12px}.sp-g{gap:10px}}
"""
