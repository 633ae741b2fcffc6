"""MIX in EXPLAIN DATA: the streams of a mixture, their targets, what they get, and how often their rows repeat."""

from collections.abc import Mapping
from typing import Any, Final

from spiral_stream.explain.batch.tokens import MeanTokens, counting_column, mean_tokens
from spiral_stream.explain.figure import EXACT, RATIO, Figure, Phrase, marked, phrase
from spiral_stream.explain.subject import Subject
from spiral_stream.plan.nodes import Sample
from spiral_stream.plan.tree import need
from spiral_stream.plan.verbs.mix import Mix

_REPEATS: Final = 4  # passes per epoch above which repeated data is known to give little (Muennighoff et al. 2023)
_STREAMS: Final = 256  # streams whose lengths are inspected
_NAMED: Final = 3  # streams that a warning names
_DECISIONS: Final = 8  # the last ones are listed, with so many streams of each


def mix_facts(subject: Subject) -> Any:
    """Return one row per stream; "none" without a mixture."""
    mixture, epoch = subject.stages.epochs.mixture, subject.bound.epoch
    if mixture is None:
        return "none"
    node = need(need(subject.stages.plan, Sample).source, Mix)
    streams, quotas = subject.stages.streams, [int(each) for each in mixture.quotas(epoch)]
    begin, end = mixture.shares(epoch, 0), mixture.shares(epoch, mixture.total)
    means = [mean_tokens(subject, k) for k in range(len(streams))] if len(streams) <= _STREAMS else []
    rows: list[dict[str, Any]] = []
    for k, stream in enumerate(streams):
        moves = abs(begin[k] - end[k]) > 1e-9  # noqa: PLR2004  of a share
        rows.append(
            {
                "stream": stream.name,
                "target": _target(float(begin[k]), float(end[k])) if moves else _share(float(begin[k])),
                "quota": Figure(quotas[k], "samples"),
                "eligible rows": Figure(stream.selected.total, "rows"),
                "passes this epoch": Figure(quotas[k] / stream.selected.total, "passes"),
            }
        )
    out: dict[str, Any] = {
        "epoch_size": EXACT.phrase("{samples} samples, exact quotas (largest remainder)", samples=mixture.total),
        "proportions": "of samples" if node.by is None else f"of {node.by}, by its mean over the rows that pass",
    }
    out |= _ways(node)
    if node.by is not None:
        for row, stream in zip(rows, streams, strict=True):
            row[f"mean {node.by}"] = Figure(float(stream.selected.mean(node.by)), f"{node.by} a row")
    known = [mean for mean in means if mean is not None]
    if known and len(known) == len(streams):
        out["tokens from"] = ", ".join(dict.fromkeys(mean.source for mean in known))
        if node.by is None:
            column = counting_column(streams[0].node.schema())
            ask = "a column of their tokens" if column is None else f'"{column}"'
            out["by tokens"] = f"mix(by={ask}) would make the targets shares of tokens, with about those samples"
        _add_tokens(node, rows, known, [float(each) for each in begin])
    elif subject.stages.sequences:
        out["share of tokens"] = "unknown: materialize the token cache"
    out["streams"] = rows
    if node.schedule:
        out["schedule"] = _schedule(node)
    if subject.decided:
        out["decided"] = [_decision(each) for each in subject.decided[-_DECISIONS:]]
    _warn(subject, node, rows)
    return out


def _share(share: float) -> Figure:
    return Figure(share, RATIO, form=".3%")


def _target(begin: float, end: float) -> Phrase:
    return phrase("{begin} -> {end}", begin=_share(begin), end=_share(end))


def _schedule(node: Mix) -> list[dict[str, Any]]:
    begins = "from sample" if node.schedule_in == "samples" else f"from {node.by}"
    named = [
        ", ".join(f"{p.name} {s:g}" for p, s in zip(node.parts, shares, strict=True)) for _, shares in node.schedule
    ]
    return [{begins: at, "proportions": shares} for (at, _), shares in zip(node.schedule, named, strict=True)]


def _decision(made: Mapping[str, Any]) -> dict[str, str]:
    """One row: from where on shares hold, and what they are: as decided, as the epoch rounds them, as they were delivered."""
    streams = dict(list(made["streams"].items())[:_DECISIONS])
    rest = f", and {len(made['streams']) - len(streams):,} more" if len(made["streams"]) > len(streams) else ""

    def shown(which: str) -> str:
        each = [f"{name} {found[which]:.3%}" for name, found in streams.items() if found[which] is not None]
        return ", ".join(each) + rest if each else "nothing yet"

    return {
        "from": f"batch {made['batch']:,} of epoch {made['epoch']:,}",
        "decided": shown("share"),
        "rounded": shown("rounded"),
        "realised": shown("realised"),
    }


def _ways(node: Mix) -> dict[str, str]:
    """What else decides how the streams are put together."""
    power = {} if node.temperature is None else {"temperature": f"proportions to the power of 1/{node.temperature:g}"}
    return {**power, **({"order of streams": "one after the other, as listed"} if node.in_turn else {})}


def _add_tokens(node: Mix, rows: list[dict[str, Any]], means: list[MeanTokens], shares: list[float]) -> None:
    """Add each stream's share of tokens, and how samples would be shared if proportions were of tokens."""
    amounts = [row["quota"].value * mean.tokens for row, mean in zip(rows, means, strict=True)]
    inverse = [share / mean.tokens if mean.tokens else 0.0 for share, mean in zip(shares, means, strict=True)]
    for row, mean, amount, would in zip(rows, means, amounts, inverse, strict=True):
        total = (
            mean.exact and row["quota"].value % row["eligible rows"].value == 0
        )  # whole passes count every row alike
        row["tokens a row"] = Figure(mean.tokens, "tokens", marked(mean.exact), source=mean.source, form=",.1f")
        share = amount / max(sum(amounts), 1e-9)
        row["share of tokens"] = Figure(share, RATIO, marked(total), source=mean.source, form=".1%")
        if node.by is None:
            inverted = would / max(sum(inverse), 1e-9)
            row["samples by tokens"] = Figure(inverted, RATIO, "estimated", source=mean.source, form=".1%")


def _warn(subject: Subject, node: Mix, rows: list[dict[str, Any]]) -> None:
    often = [row for row in rows if row["passes this epoch"].value > _REPEATS]
    if not often:
        return
    often.sort(key=lambda row: -float(row["passes this epoch"].value))
    named = ", ".join(f"{row['stream']} {row['passes this epoch'].value:,.1f} times" for row in often[:_NAMED])
    more = f" and {len(often) - _NAMED:,} streams more" if len(often) > _NAMED else ""
    column = counting_column(subject.stages.streams[0].node.schema())
    by = "" if node.by is not None or column is None else f', or mix by="{column}"'
    subject.warnings.add(
        f"rows repeat more than {_REPEATS} times an epoch: {named}{more}. Lower epoch_size or their proportions, add data{by}"
    )
