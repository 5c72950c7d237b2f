"""LiveRows: sessions and contexts with rates between two readings, for `umstack top` and `umstack watch`.

Pure: reports in, rows out. Rates are per second of the time that the context itself reports. An object that is new, or
was recreated under its name, has the rates since it was created.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from umstack.telemetry.time_histogram import RecoveryHistogram

Report = Mapping[str, Any]
Item = Mapping[str, Any]

_SHORTEST_SECONDS = 1e-3


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One transport session of one context, as one line of output. Rates are per second."""

    pid: int
    context: int
    interface: str
    direction: str
    """`send` or `recv`."""
    transport: str
    topics: tuple[str, ...]
    datagrams: float
    bytes: float
    loss: float
    """Share of datagrams lost in their first transmission, 0 to 1 (receiver); share NAKed (sender)."""
    naks: float
    unrecovered: float
    window: float | None
    """Share of the publication window in use, 0 to 1; None for a receiver without flow control."""
    back_pressure: float
    """Publish attempts refused or blocked (sender); pauses because the queue is full (receiver); per second."""
    queued: int
    """Datagrams waiting for rate limits (sender), messages the application has not read (receiver)."""
    recovery_p50_ms: float | None
    """Median recovery time between the readings; None for a sender and without recoveries."""


@dataclass(frozen=True, slots=True)
class ContextRow:
    """One context: its process and the state of its link."""

    pid: int
    context: int
    command: str
    interface: str
    link: str
    sessions: int
    receive_drops: float
    ring: Mapping[str, float]
    """Increase per second of those ring counters that grew."""


@dataclass(frozen=True, slots=True)
class LiveRows:
    """All contexts and sessions at one moment."""

    contexts: tuple[ContextRow, ...]
    sessions: tuple[SessionRow, ...]

    def as_json(self) -> dict[str, Any]:
        """Return plain dictionaries."""
        return {
            "contexts": [asdict(row) for row in self.contexts],
            "sessions": [asdict(row) for row in self.sessions],
        }


class _Change:
    """The counters of one object, now and at the earlier reading."""

    __slots__ = ("_before", "_now", "_seconds")

    def __init__(self, now: Item, before: Item | None, seconds: float) -> None:
        self._now, self._before, self._seconds = now, before or {}, seconds

    def grown(self, name: str) -> float:
        now, before = self._now.get(name) or 0, self._before.get(name) or 0
        return float(now - before if now >= before else now)

    def rate(self, *names: str) -> float:
        return sum(self.grown(name) for name in names) / self._seconds

    def recovered(self) -> RecoveryHistogram:
        now: Sequence[int] = self._now.get("recovery_counts") or ()
        before: Sequence[int] = self._before.get("recovery_counts") or (0,) * len(now)
        if len(before) != len(now) or any(new < old for new, old in zip(now, before, strict=True)):
            return RecoveryHistogram(tuple(now))
        return RecoveryHistogram(tuple(new - old for new, old in zip(now, before, strict=True)))


def identity(report: Report) -> tuple[int, int, float]:
    """Return the key that identifies a context, also after its process id was reused."""
    return report["pid"], report["number"], report["started_at"]


def earlier_of(
    reports: Sequence[Report], last: Sequence[Report], before_last: Sequence[Report]
) -> list[Report]:
    """Return the reports that a reading is compared with: those of the last reading.

    For a context that has written nothing since, it is the one that the last reading was compared with.
    """
    read_at = {identity(report): report["read_at"] for report in reports}
    earlier = {identity(report): report for report in before_last}
    earlier |= {
        identity(report): report for report in last if read_at.get(identity(report)) != report["read_at"]
    }
    return [report for key, report in earlier.items() if key in read_at]


def live_rows(reports: Sequence[Report], earlier: Sequence[Report]) -> LiveRows:
    """Return the rows of a reading, with rates since an earlier one (empty: since each context started)."""
    before = {identity(report): report for report in earlier}
    contexts: list[ContextRow] = []
    sessions: list[SessionRow] = []
    for report in reports:
        past = before.get(identity(report))
        since = past["read_at"] if past else report["started_at"]
        seconds = max(report["read_at"] - since, _SHORTEST_SECONDS)
        contexts.append(_context(report, past, seconds))
        sessions += _sending(report, past, seconds)
        sessions += _receiving(report, past, seconds)
    return LiveRows(tuple(contexts), tuple(sessions))


def _context(report: Report, past: Report | None, seconds: float) -> ContextRow:
    change = _Change(report["link_counters"], past and past["link_counters"], seconds)
    ring_names = [name for name in report["link_counters"] if name.startswith(("ring_", "xdp_"))]
    rates = {name: rate for name in ring_names if (rate := change.rate(name)) > 0}
    return ContextRow(
        pid=report["pid"],
        context=report["number"],
        command=report["command"],
        interface=report["interface"],
        link=str(report.get("link_mode") or report["link"]),
        sessions=len(report["source_transports"]) + len(report["receiver_transports"]),
        receive_drops=change.rate("receive_drops"),
        ring=rates,
    )


def _pairs(report: Report, past: Report | None, key: str, seconds: float) -> Iterator[tuple[Item, _Change]]:
    before = {item["transport"]: item for item in past[key]} if past else {}
    for item in report[key]:
        yield item, _Change(item, before.get(item["transport"]), seconds)


def _part(of: float, whole: float) -> float:
    return min(of / whole, 1.0) if whole > 0 else 0.0


def _sending(report: Report, past: Report | None, seconds: float) -> Iterator[SessionRow]:
    for item, change in _pairs(report, past, "source_transports", seconds):
        topics = dict.fromkeys(
            one["topic"] for one in report["sources"] if one.get("transport") == item["transport"]
        )
        sent = item.get("snd_pos") or 0
        space = (item.get("pub_lmt") or 0) - sent
        yield SessionRow(
            pid=report["pid"],
            context=report["number"],
            interface=report["interface"],
            direction="send",
            transport=item["transport"],
            topics=tuple(topics),
            datagrams=change.rate("msgs_sent"),
            bytes=change.rate("bytes_sent"),
            loss=_part(change.grown("naks_rcved"), change.grown("msgs_sent")),
            naks=change.rate("naks_rcved"),
            unrecovered=change.rate("naks_shed", "naks_out_of_window"),
            window=_part((item.get("pub_pos") or 0) - sent, space) if space > 0 else None,
            back_pressure=change.rate("back_pressured"),
            queued=(item.get("rctlr_data_msgs") or 0) + (item.get("rctlr_rx_msgs") or 0),
            recovery_p50_ms=None,
        )


def _receivers_of(report: Report, transport: str) -> list[Item]:
    """Return the receivers with a source in the session."""
    return [one for one in report["receivers"] if transport in one.get("transports", ())]


def _total(items: Iterable[Item], name: str) -> float:
    return sum(one.get(name) or 0 for one in items)


def _receiving(report: Report, past: Report | None, seconds: float) -> Iterator[SessionRow]:
    for item, change in _pairs(report, past, "receiver_transports", seconds):
        receivers = _receivers_of(report, item["transport"])
        pauses = _total(receivers, "queue_full_pauses")
        earlier = _total(_receivers_of(past, item["transport"]) if past else (), "queue_full_pauses")
        yield SessionRow(
            pid=report["pid"],
            context=report["number"],
            interface=report["interface"],
            direction="recv",
            transport=item["transport"],
            topics=tuple(dict.fromkeys(one["topic"] for one in receivers)),
            datagrams=change.rate("msgs_rcved"),
            bytes=change.rate("bytes_rcved"),
            loss=_part(change.grown("lost"), change.grown("lost") + change.grown("msgs_rcved")),
            naks=change.rate("naks_sent"),
            unrecovered=change.rate("unrecovered_txw", "unrecovered_tmo"),
            window=None,
            back_pressure=max(pauses - earlier, 0) / seconds,
            queued=int(_total(receivers, "queued_messages")),
            recovery_p50_ms=change.recovered().percentile_ms(50),
        )
