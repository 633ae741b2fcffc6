"""Draw pictures of a relation, and of other numbers, with matplotlib, which is imported when the first is drawn.

Only this room knows it. Every picture says how many shards it shows, and names axes and units. Lines and bars are binned
before they are drawn, so that a picture of 20,000 shards takes no longer than one of 20.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from io import BytesIO
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.arguments import door
from spiral_stream.display.wording import number, one_line
from spiral_stream.errors import PlanError
from spiral_stream.extras import need
from spiral_stream.report.blocks import BlockMix
from spiral_stream.report.heatmap import Heat
from spiral_stream.report.timeline import OTHER, Timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

P = ParamSpec("P")
Form = Literal["svg", "png"]
Floats = NDArray[np.float64]

WIDTH: Final = 480  # pixels of a PNG; an SVG is 4 % smaller, which is what the page of an asset has room for
_DPI: Final = 100
_NAME: Final = 22  # characters of a tick
_TICK: Final = 14  # and where many stand in a line
_WORST: Final = 12  # shards that are named
_POINTS: Final = 500  # of a line
_TICKS: Final = 25  # names along an axis
_BARS: Final = 40
_FEW: Final = 3  # shards; fewer have no histogram
_APART: Final = 3  # curves; the names of more would cover them
_LETTER: Final = 6.6  # pixels of a title
_STYLE: Final = {
    "font.size": 8.0,
    "axes.titlesize": 9.0,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "svg.hashsalt": "spiral",  # the same picture has the same bytes
    "svg.fonttype": "path",
    "savefig.transparent": True,  # on light paper and on dark
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), "#747b85"),
}
_BLUE, _ORANGE, _GRAY = "#3b6ea5", "#d9822b", "#777777"


@final
@dataclass(frozen=True, slots=True)
class Picture:
    """A drawn picture.

    Examples:
        >>> drawn = spiral.report.Picture("dot", "A dot", "svg", b"<svg></svg>")
        >>> drawn.title
        'A dot'
    """

    name: str  # of a file, without its ending
    title: str
    form: Form
    data: bytes


def _styled(draw: Callable[P, "Picture"]) -> Callable[P, "Picture"]:
    """Draw in the style of this room, and leave that of the process as it is."""

    @wraps(draw)
    def styled(*args: P.args, **kwargs: P.kwargs) -> "Picture":
        need("matplotlib", "a report's pictures", "pictures=False")
        from matplotlib import rc_context

        with rc_context(_STYLE):
            return draw(*args, **kwargs)

    return styled


@_styled
def worst_shards(column: str, names: Sequence[str], distance: Floats, by_chance: float, form: Form) -> Picture:
    """Draw the distances of all shards, sorted, and name the worst."""
    order = np.argsort(-distance, kind="stable")
    title = f"Distance of {len(names):,} storage shards in {one_line(column, _NAME)}, the worst first"
    figure = _figure(320 if len(names) > _FEW else 180, title)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2)) if len(names) > _WORST else (figure.subplots(), None)
    shown = order[:_WORST]
    left.barh(range(len(shown)), distance[shown], color=_BLUE, height=0.7)
    left.set_yticks(range(len(shown)), [one_line(names[k], _NAME) for k in shown])
    left.invert_yaxis()
    left.set(
        xlim=(0, 1.05 * max(1e-3, float(distance.max()), by_chance)),
        xlabel="total variation to the whole (0 alike, 1 apart)",
    )
    left.axvline(by_chance, color=_ORANGE, linewidth=1, linestyle="--", label=f"by chance {number(by_chance)}")
    if right is not None:
        at = np.unique(np.linspace(0, len(order) - 1, _POINTS).astype(np.int64))
        right.plot(100 * (at + 0.5) / len(order), distance[order[at]], color=_BLUE, linewidth=1.5, label="a shard")
        for value, words, style in ((float(distance.mean()), "mean", "-"), (by_chance, "by chance", "--")):
            color = _GRAY if words == "mean" else _ORANGE
            right.axhline(value, color=color, linewidth=1, linestyle=style, label=f"{words} {number(value)}")
        right.set(xlabel="% of all shards, sorted", xlim=(0, 100), ylim=(0, None), ylabel="total variation")
    legend = (left if right is None else right).get_legend_handles_labels()
    figure.legend(*legend, loc="outside lower center", ncols=3)
    return _drawn(figure, f"{column}_worst_shards", title, form)


@_styled
def heat_map(column: str, heat: Heat, form: Form) -> Picture:
    """Draw how much more or less of each value groups of shards hold than the whole."""
    from matplotlib.colors import TwoSlopeNorm

    rows, shown = heat.ratio.shape
    grouped = f"{heat.shards:,} shards in {rows} groups" if rows < heat.shards else f"{heat.shards:,} shards"
    left_out = f"; the {shown} most frequent of {heat.of_values:,}" if shown < heat.of_values else ""
    title = f"Values of {one_line(column, _NAME)} by storage shard\n{grouped}, by name{left_out}"
    figure = _figure(int(min(430, max(250, 150 + 16 * rows))), title)
    axes = figure.subplots()
    log = np.log2(np.maximum(heat.ratio, 2.0**-4))
    image = axes.imshow(
        log, aspect="auto", cmap="RdBu_r", norm=TwoSlopeNorm(0.0, -3.0, 3.0), interpolation="nearest", origin="upper"
    )
    _ticks(axes.set_xticks, heat.values, rotation=60 if max(map(len, heat.values)) > 3 or shown > 12 else 0)  # noqa: PLR2004
    _ticks(axes.set_yticks, heat.groups, most=_NAME)
    axes.set(xlabel="value, the most frequent first", ylabel="storage shard")
    bar = figure.colorbar(image, ax=axes, extend="both", pad=0.02)
    bar.set_ticks([-3, -2, -1, 0, 1, 2, 3], labels=["⅛", "¼", "½", "1", "2", "4", "8"])
    bar.set_label("× its share of the whole")
    return _drawn(figure, f"{column}_by_shard", title, form)


@_styled
def over_time(column: str, line: Timeline, form: Form) -> Picture:
    """Draw the shares of the most frequent values along time."""
    from matplotlib import colormaps

    title = f"Shares of {one_line(column, _NAME)} over {one_line(line.time, _NAME)}\n{line.by}"
    figure = _figure(270, title)
    axes = figure.subplots()
    totals = line.rows.sum(axis=1)
    held = totals > 0
    edges: Any = line.edges
    if line.is_moment:
        edges = line.edges.astype("datetime64[us]")
    left, width = edges[:-1][held], np.diff(edges)[held]
    floor = np.zeros(int(held.sum()))
    for k, value in enumerate(line.values):
        share = 100 * line.rows[held, k] / totals[held]
        color = "#cccccc" if value == OTHER and k == len(line.values) - 1 else colormaps["tab10"](k % 10)
        axes.bar(left, share, width, bottom=floor, align="edge", color=color, label=one_line(value, _NAME))
        floor = floor + share
    axes.set(ylim=(0, 100), xlim=(edges[0], edges[-1]), ylabel="% of the rows of that time", xlabel=line.time)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.tick_params(axis="x", rotation=25 if line.is_moment else 0)
    return _drawn(figure, f"{column}_over_{line.time}", title, form)


@_styled
def effective_values(column: str, effective: Floats, overall: float, form: Form) -> Picture:
    """Draw how many values shards have in effect: exp(entropy)."""
    title = f"Effective number of values of {one_line(column, _NAME)} in each of {len(effective):,} storage shards"
    figure = _figure(220, title)
    axes = figure.subplots()
    if len(effective) < _FEW:
        axes.plot(effective, np.ones(len(effective)), "o", color=_BLUE, label="a shard")
        axes.set(yticks=[], ylim=(0, 2))
    else:
        bins = np.linspace(1, max(float(effective.max()), overall, 2.0), min(_BARS, max(8, len(effective) // 4)) + 1)
        axes.hist(effective, bins=bins.tolist(), color=_BLUE, label="shards")
        axes.set_ylabel("shards")
        if len(effective) > 100:  # noqa: PLR2004
            axes.set_yscale("symlog", linthresh=1)
            axes.set_ylim(bottom=0)
    axes.axvline(overall, color=_ORANGE, linewidth=1.5, label=f"the whole relation, {number(overall)}")
    axes.set(xlim=(0, None), xlabel="effective number of values, exp(entropy); 1 is a shard of one value")
    figure.legend(loc="outside lower center", ncols=2)
    return _drawn(figure, f"{column}_effective", title, form)


@_styled
def block_sizes(column: str, found: Sequence[BlockMix], shard_mean: float, used_by: str, form: Form) -> Picture:
    """Draw what is left of the skew in blocks of several sizes; ``used_by`` says whose size is marked."""
    title = f"What shuffle_block_size leaves of the skew of {one_line(column, _NAME)}"
    figure = _figure(310, title)
    axes = figure.subplots()
    rows = [each.block_rows for each in found]
    axes.plot(rows, [each.mean for each in found], "o-", color=_BLUE, label="a block, mean")
    axes.plot(rows, [each.p95 for each in found], "o:", color=_BLUE, alpha=0.6, label="a block, 95th percentile")
    axes.plot(rows, [each.by_chance for each in found], "--", color=_ORANGE, label="as many random rows")
    axes.axhline(shard_mean, color=_GRAY, linewidth=1, label=f"a storage shard, mean {number(shard_mean)}")
    for each in found:
        if each.chosen:
            axes.axvline(each.block_rows, color=_GRAY, linewidth=1.5, linestyle=":", label=f"the block size {used_by}")
    axes.set_xscale("log")
    axes.set(ylim=(0, None), xlabel="shuffle_block_size, rows", ylabel="total variation to the whole")
    axes.set_xticks(
        rows, [f"{each.block_rows:,}\n{_few_digits(each.shards_per_block)} shards" for each in found], fontsize=7
    )
    axes.minorticks_off()
    figure.legend(loc="outside lower center", ncols=2)
    return _drawn(figure, f"{column}_in_blocks", title, form)


@_styled
@door(PlanError)
def draw_bars(
    name: str,
    title: str,
    heights: Sequence[tuple[str, float]],
    *,
    across: str,
    up: str,
    form: Form = "svg",
    width: int = WIDTH,
) -> Picture:
    """Draw a bar chart. Neighbours among many bars are drawn as one, with their sum; none is left out.

    Args:
        name: of the picture's file, without its ending.
        title: of the picture.
        heights: what each bar is called, and its height.
        across: what the bars are, with the unit.
        up: what their heights are, with the unit.
        form: ``svg`` or ``png``.
        width: pixels of a PNG; an SVG is 4 % smaller.

    Examples:
        >>> drawn = spiral.report.draw_bars(
        ...     "labels", "Rows per label", [("fox", 12), ("owl", 30)], across="label", up="rows"
        ... )
        >>> drawn.form, drawn.data[:5]
        ('svg', b'<?xml')
    """
    size = max(1, -(-len(heights) // _BARS))
    groups = [heights[at : at + size] for at in range(0, len(heights), size)]
    binned = f"\n{len(heights):,} bars in {len(groups)} groups" if len(groups) < len(heights) else ""
    figure = _figure(220, title + binned, width)
    axes = figure.subplots()
    names = [group[0][0] if len(group) == 1 else f"{group[0][0]} … {group[-1][0]}" for group in groups]
    axes.bar(range(len(groups)), [sum(height for _, height in group) for group in groups], color=_BLUE, width=0.8)
    if names:
        _ticks(
            axes.set_xticks, names, rotation=60 if max(map(len, names)) * len(names) * WIDTH > 6 * _TICK * width else 0
        )
    axes.set(xlabel=across, ylabel=up, ylim=(0, None))
    return _drawn(figure, name, title, form)


@_styled
@door(PlanError)
def draw_curves(
    name: str,
    title: str,
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]],
    *,
    across: str,
    marks: Sequence[float] = (),
    marked: str = "",
    form: Form = "svg",
    width: int = WIDTH,
) -> Picture:
    """Draw curves over one axis, panel below panel. Of many points the mean of neighbours is drawn.

    Args:
        name: of the picture's file, without its ending.
        title: of the picture.
        panels: what goes up in a panel, with the unit -> name of a curve -> its points, from left to right.
        across: what all panels have across, with the unit.
        marks: places that a vertical line marks.
        marked: what the marks are.
        form: ``svg`` or ``png``.
        width: pixels of a PNG; an SVG is 4 % smaller.

    Examples:
        >>> loss = {"loss": {"train": [(0, 2.3), (1, 1.7)], "val": [(0, 2.4), (1, 1.9)]}}
        >>> spiral.report.draw_curves("loss", "Loss", loss, across="epoch").title
        'Loss'
    """
    from matplotlib import colormaps
    from matplotlib.ticker import MaxNLocator

    thinned = {
        up: {words: _thinned(np.asarray(points, np.float64).reshape(-1, 2)) for words, points in curves.items()}
        for up, curves in panels.items()
    }
    lines_at = np.asarray(marks, np.float64).tolist()
    names = [tuple(curves) for curves in thinned.values()]
    is_shared = len(names) > 1 and len(set(names)) == 1 and len(names[0]) > 1  # each panel has the same curves
    figure = _figure(60 + int(160 * min(1.0, width / WIDTH) ** 0.5) * len(thinned), title, width)
    every = figure.subplots(len(thinned), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (up, curves) in zip(every, thinned.items(), strict=True):
        for k, (words, (x, y)) in enumerate(curves.items()):
            style = "o-" if len(x) < _TICKS else "-"
            axes.plot(x, y, style, color=colormaps["tab10"](k % 10), linewidth=1.2, markersize=3, label=words)
        if width < WIDTH:  # a name is longer than a small panel is high
            axes.set_title(up, fontsize=8)
        else:
            axes.set_ylabel(up)
        axes.ticklabel_format(useOffset=False)
        if all(np.all(x == np.round(x)) for x, _ in curves.values()):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if len(curves) > _APART and not is_shared:
            axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        elif len(curves) > 1 and not is_shared:
            axes.legend(loc="best")
        named = axes.get_lines() if is_shared else []
        lines = [axes.axvline(at, color=_ORANGE, linewidth=1, linestyle="--", label=marked) for at in lines_at]
        if axes is every[-1] and (named or (lines and marked)):
            handles = [*named, *(lines[:1] if marked else [])]
            figure.legend(handles=handles, loc="outside lower center", ncols=2 if width < WIDTH else 4)
    every[-1].set_xlabel(across)
    return _drawn(figure, name, title, form)


def _thinned(points: Floats) -> tuple[Floats, Floats]:
    """Return at most `_POINTS` points: the means of neighbours, the last point as it is."""
    size = -(-len(points) // _POINTS)
    if size <= 1:
        return points[:, 0], points[:, 1]
    starts = np.arange(0, len(points), size)
    counts = np.diff(np.append(starts, len(points)))[:, None]
    means = np.add.reduceat(points, starts) / counts
    return np.append(means[:, 0], points[-1, 0]), np.append(means[:, 1], points[-1, 1])


def _figure(height: int, title: str, width: int = WIDTH) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI, layout="constrained")
    lines = [part for line in title.split("\n") for part in wrap(line, int(width / _LETTER)) or [""]]
    figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=9)
    return figure


def _few_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004


def _ticks(set_ticks: Any, names: Sequence[str], rotation: int = 0, most: int = _TICK) -> None:
    """Name at most `_TICKS` places of an axis."""
    at = range(0, len(names), -(-len(names) // _TICKS))
    turned = {"rotation": rotation, "ha": "right", "rotation_mode": "anchor"} if rotation else {}
    set_ticks(at, [one_line(names[k], most) for k in at], fontsize=7, **turned)


def _drawn(figure: "Figure", name: str, title: str, form: Form) -> Picture:
    file = BytesIO()
    figure.savefig(file, format=form, metadata={"Date": None} if form == "svg" else {"Software": None})
    return Picture("".join(c if c.isalnum() or c in "_-" else "-" for c in name), title, form, file.getvalue())
