"""The four figures of a report: rate, loss, time to repair, time standing still."""

from __future__ import annotations

from dataclasses import dataclass

from umstack.capture.reading.schema import LBTTCP
from umstack.facts.kinds import RATED_NS
from umstack.report.quantities import bit_rate, count, duration, session_name, share
from umstack.report.summary import Row, Summary


@dataclass(frozen=True, slots=True)
class Traffic:
    """First transmissions of all sessions, without headers, each at the point that saw most of it."""

    sessions: int
    datagrams: int
    messages_over_tcp: int
    payload_bytes: int
    span_ns: int
    """From the first datagram to the last, without the pauses between runs."""

    @property
    def bytes_per_second(self) -> float | None:
        """The mean rate, None if the span is too short for one."""
        return self.payload_bytes / (self.span_ns / 1e9) if self.span_ns >= RATED_NS else None


@dataclass(frozen=True, slots=True)
class Figure:
    """One of the four figures, for people."""

    name: str
    value: str
    note: str


@dataclass(frozen=True, slots=True)
class Figures:
    """The four figures of a report, for programs. Null: the captures do not show it."""

    bytes_per_second: float | None
    peak_bytes_per_second: float | None
    datagrams: int
    lost: int
    """Datagrams that at least one receiver missed."""
    loss_share: float | None
    unrepaired: int
    """Losses without a retransmission in the capture, counted per receiver."""
    repair_p50_ns: float | None
    repair_p99_ns: float | None
    stall_ns: int
    """Time that the publisher which stood still longest stood still."""
    stall_share: float
    """Share of that publisher's time."""


def where_seen_best(rows: list[Row], most: str) -> list[Row]:
    """Return one row per session, that of the capture point with the most in column `most`; sorted by it."""
    best: dict[tuple[str, int], Row] = {}
    for row in sorted(
        rows, key=lambda row: (-(row[most] or 0), row["publisher"], row["session_id"], row["point"])
    ):
        best.setdefault((row["publisher"], row["session_id"]), row)
    return list(best.values())


def of_session(rows: list[Row], like: Row) -> Row:
    """Return the row of the same session and point as `like`, empty if there is none."""
    keys = ("publisher", "session_id", "point")
    return next((row for row in rows if all(row[key] == like[key] for key in keys)), {})


def has_data(summary: Summary) -> bool:
    """Return true if a session in the captures sent something."""
    return any(row["datagrams"] or row["messages"] for row in summary["sessions"])


def traffic_of(summary: Summary) -> Traffic:
    """Return what all sessions of a summary sent; it has at least one."""
    rows = where_seen_best(summary["sessions"], "datagrams")
    span_ns = max(row["last_ns"] for row in rows) - min(row["first_ns"] for row in rows)
    if len(summary.runs) > 1:
        span_ns = sum(run.end_ns - run.start_ns for run in summary.runs)
    over_tcp = sum(row["messages"] for row in rows if row["transport"] == LBTTCP)
    sent_bytes = sum(row["data_bytes"] for row in rows)
    return Traffic(len(rows), sum(row["datagrams"] for row in rows), over_tcp, sent_bytes, span_ns)


def stalled_share(summary: Summary, row: Row) -> float:
    """Return the share of its time that the session of a row of `stall_totals` stood still."""
    seconds = of_session(summary["sessions"], row).get("seconds")
    return row["stall_ns"] / (seconds * 1e9) if seconds else 1.0


def figures_of(summary: Summary) -> Figures | None:
    """Return the figures, None if no session in the captures sent anything."""
    if not has_data(summary):
        return None
    sent = traffic_of(summary)
    [lost] = summary["lost"]
    peaks = [row["peak_bytes_per_second"] for row in summary["rate_summary"]]
    ratio = lost["datagrams"] / sent.datagrams if sent.datagrams else None
    still = summary["stall_totals"][0] if summary["stall_totals"] else None
    return Figures(
        bytes_per_second=sent.bytes_per_second,
        peak_bytes_per_second=max(peaks, default=None),
        datagrams=sent.datagrams,
        lost=lost["datagrams"],
        loss_share=1.0 if lost["losses"] and ratio is None else ratio,
        unrepaired=lost["losses"] - lost["repaired"],
        repair_p50_ns=lost["repair_p50_ns"],
        repair_p99_ns=lost["repair_p99_ns"],
        stall_ns=still["stall_ns"] if still else 0,
        stall_share=stalled_share(summary, still) if still else 0.0,
    )


def shown_figures(summary: Summary, figures: Figures) -> list[Figure]:
    """Return the four figures in words."""
    sent = traffic_of(summary)
    what = [f"{count(sent.datagrams)} datagrams"] if sent.datagrams else []
    if sent.messages_over_tcp:
        what.append(f"{count(sent.messages_over_tcp)} messages over LBT-TCP")
    rate = f"{' and '.join(what) or 'nothing'} in {duration(sent.span_ns)}"
    if figures.peak_bytes_per_second:
        rate += f", busiest millisecond {bit_rate(figures.peak_bytes_per_second)}"
    return [
        Figure("Rate (payload)", bit_rate(figures.bytes_per_second), rate),
        Figure("Loss", share(figures.loss_share), _loss_note(summary, figures)),
        Figure("Time to repair", *_repair(figures)),
        Figure("Standing still", *_standing(summary, figures)),
    ]


def _loss_note(summary: Summary, figures: Figures) -> str:
    if figures.loss_share is None:
        return "LBT-TCP has no NAKs"
    if not figures.lost:
        return "no NAK and no retransmission"
    set_to = summary.expected_loss
    text = f"{count(figures.lost)} datagrams missed by a receiver"
    text += f", {count(figures.unrepaired)} without a repair" if figures.unrepaired else ", all repaired"
    return text if set_to is None else f"{text}; set to {share(set_to)} to each receiver"


def _repair(figures: Figures) -> tuple[str, str]:
    if figures.repair_p50_ns is None:
        return "-", "nothing was repaired"
    return duration(figures.repair_p50_ns), f"median; 99 % within {duration(figures.repair_p99_ns)}"


def _standing(summary: Summary, figures: Figures) -> tuple[str, str]:
    if not figures.stall_ns:
        return "0 s", "no loss held up a publisher"
    first, many = summary["stall_totals"][0], len(summary["stall_totals"])
    more = f", the longest of {count(many)} sessions" if many > 1 else ""
    return (
        duration(figures.stall_ns),
        f"{share(figures.stall_share)} of the time of {session_name(first)}{more}",
    )
