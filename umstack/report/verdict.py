"""The verdict of a report: one sentence, and the problems by cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from umstack.report.costs import CostKind
from umstack.report.figures import Figures
from umstack.report.findings import NOTABLE_LOSS, NOTABLE_STALL, Finding, Severity
from umstack.report.quantities import count, duration, share
from umstack.report.summary import Summary

_GONE = 2
"""How many kinds of missing data the verdict names."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One sentence on the captures, and how bad it is."""

    severity: Severity
    text: str


def problems_of(found: Iterable[Finding]) -> list[Finding]:
    """Return the problems, the most expensive first."""
    costly = [(one.cost, one) for one in found if one.is_problem and one.cost is not None]
    return [one for _, one in sorted(costly, key=lambda pair: (pair[0].kind, -pair[0].size))]


def verdict_of(summary: Summary, figures: Figures | None, found: Sequence[Finding]) -> Verdict:
    """Return the verdict: data missing for good, then standing still, then repaired losses, then everything else.

    `figures` is None if the captures contain no session; the first finding then gives the reason.
    """
    if figures is None:
        return Verdict(found[0].severity, found[0].text)
    problems = problems_of(found)
    gone = [one.cost.text for one in problems if one.cost is not None and one.cost.kind is CostKind.LOST]
    parts, severities = [], [Severity.GOOD]
    if gone:
        severities.append(Severity.BAD)
        parts.append(f"{' and '.join(gone[:_GONE])}, without a repair in the capture")
    if figures.stall_ns:
        severities.append(Severity.BAD if figures.stall_share >= NOTABLE_STALL else Severity.WORTH_A_LOOK)
        still = f"{duration(figures.stall_ns)} ({share(figures.stall_share)} of its time)"
        parts.append(f"a publisher stood still for {still} because of losses")
    if figures.lost:
        severities.append(Severity.NOTE if summary.expected_loss is not None else _severity_of(figures))
        parts.append(_losses(summary, figures))
    if not parts:
        parts.append("no loss was seen, and no publisher stood still")
        if problems:
            severities.append(Severity.WORTH_A_LOOK)
            many = len(problems)
            parts.append(f"{count(many)} other {'thing is' if many == 1 else 'things are'} worth a look")
    text = "; ".join(parts)
    return Verdict(min(severities), f"{text[0].upper()}{text[1:]}.")


def _severity_of(figures: Figures) -> Severity:
    is_notable = (figures.loss_share or 0) >= NOTABLE_LOSS
    return Severity.BAD if is_notable else Severity.WORTH_A_LOOK


def _losses(summary: Summary, figures: Figures) -> str:
    text = f"{share(figures.loss_share)} of the datagrams were lost on the way"
    if summary.expected_loss is not None:
        text += f", as the network was set to lose {share(summary.expected_loss)} to each receiver,"
    if figures.repair_p50_ns is None:
        return f"{text} and none was repaired"
    which = "most of them" if figures.unrepaired else "all"
    return f"{text} and {which} repaired, in {duration(figures.repair_p50_ns)} (median)"
