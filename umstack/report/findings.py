"""Findings: one sentence for each observation in the tables, the worst first.

One file, because all findings together are one list, in one order and one tone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from umstack.capture.reading.notes import SNAP_LENGTH
from umstack.capture.reading.schema import LBTTCP
from umstack.facts.kinds import COPY, NOTE
from umstack.foreign_text import displayed
from umstack.report.costs import GAINS, REMEDIES, Cost, CostKind
from umstack.report.figures import has_data, of_session, stalled_share, traffic_of, where_seen_best
from umstack.report.quantities import (
    bit_rate,
    count,
    duration,
    moment,
    session_name,
    session_number,
    several,
    share,
    volume,
)
from umstack.report.stall_text import stall
from umstack.report.summary import Row, Summary


class Severity(IntEnum):
    """How much a finding matters."""

    BAD = 0
    WORTH_A_LOOK = 1
    GOOD = 2
    NOTE = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """A sentence and its severity. `topic` is the kind of finding, for programs.

    A finding that costs something and is worth a look is a problem; the others are facts and advice.
    """

    topic: str
    severity: Severity
    text: str
    cost: Cost | None = None

    @property
    def is_problem(self) -> bool:
        """True if the finding has a cost and is worth a look."""
        return self.cost is not None and self.severity <= Severity.WORTH_A_LOOK

    @property
    def is_advice(self) -> bool:
        """True if the finding suggests an option."""
        return self.topic == SUGGESTION

    @property
    def remedy(self) -> str | None:
        """The remedy of a problem, None for other findings."""
        return REMEDIES[self.topic] if self.is_problem else None


CAUSES = {
    "sporadic": "single datagrams, spread over time: look for a link with errors or a policer",
    "burst": "several in a row: a queue, a ring or a socket buffer overflowed",
    "connectivity": "every datagram for a while: a path was down",
    "tail": "the last datagrams before a pause, detected only by a session message",
    "head": "the first datagrams of a session: the receiver joined late",
}
SUGGESTION = "suggestion"
_Rule = Callable[[Summary], Iterator[Finding]]
Rules = tuple[_Rule, ...]

NOTABLE_LOSS = 0.001
_LOW_FILL = 0.5
_FEW_MESSAGES = 2.0
_BUSY_DATAGRAMS_PER_SECOND = 1000
_BURSTY = 10.0
_BURST_DATAGRAMS_PER_SECOND = 10_000
"""Minimum rate in the busiest millisecond: in a slow session, any single datagram is many times the mean rate."""
NOTABLE_STALL = 0.02
_USELESS_SHARE = 0.1
_COPIED_SHARE = 0.4
_NAMED = 5


def findings(summary: Summary) -> list[Finding]:
    """Return all findings, the worst first."""
    if not has_data(summary):
        text = (
            "No session data was found: these captures contain no LBT-RM, LBT-RU or LBT-TCP, or only on unexpected "
            "ports."
        )
        return [Finding("sessions", Severity.BAD, text), *_notes(summary)]
    return findings_of_part(summary)


def findings_of_part(summary: Summary) -> list[Finding]:
    """Return the findings on one session, or on everything of no session: others may have data."""
    rules: Rules = (
        _traffic, _restarts, _topics, _loss, _clients, _causes, _stalls, _gaps, _recovery, _storms, _repairs,
        _lost_repairs, _recoveries, _stores, _unstable, _duplicates, _bursts, _fill, _fragments, _latency,
        _suggestions, _copies, _malformed, _notes,
    )  # fmt: skip
    without_data = [rule for rule in rules if rule is not _traffic]
    return _by_severity(rules if has_data(summary) else without_data, summary)


def window_findings(summary: Summary) -> list[Finding]:
    """Return the findings of a time window, except those the monitor makes itself: traffic, incidents, storms and
    capture notes."""
    rules: Rules = (
        _restarts, _topics, _clients, _gaps, _recovery, _repairs, _lost_repairs, _recoveries, _stores, _duplicates,
        _bursts, _fill, _fragments, _latency, _suggestions, _copies, _malformed,
    )  # fmt: skip
    return _by_severity(rules, summary)


def _by_severity(rules: Iterable[_Rule], summary: Summary) -> list[Finding]:
    found = [finding for rule in rules for finding in rule(summary)]
    return sorted(found, key=lambda finding: finding.severity)


def _traffic(summary: Summary) -> Iterator[Finding]:
    sent = traffic_of(summary)
    parts = f" of {count(len(summary.runs))} runs together" if len(summary.runs) > 1 else ""
    rate = (
        f": {bit_rate(sent.bytes_per_second)} of payload on average"
        if sent.bytes_per_second is not None
        else ""
    )
    streamed = any(row["transport"] == LBTTCP for row in summary["sessions"])
    only = all(row["transport"] == LBTTCP for row in summary["sessions"])
    what = [] if only else [f"{count(sent.datagrams)} datagrams"]
    if streamed:
        what.append(f"{count(sent.messages_over_tcp)} messages over LBT-TCP")
    text = (
        f"{count(sent.sessions)} {'session' if sent.sessions == 1 else 'sessions'} sent {' and '.join(what)}, "
        f"{volume(sent.payload_bytes)}, in {duration(sent.span_ns)}{parts}{rate}."
    )
    yield Finding("traffic", Severity.NOTE, text)


def _restarts(summary: Summary) -> Iterator[Finding]:
    for row in where_seen_best(summary["sessions"], "restarts"):
        if row["restarts"]:
            times = "once" if row["restarts"] == 1 else f"{count(row['restarts'])} times"
            text = f"The source of {session_name(row)} restarted {times} with the same session id."
            cost = Cost(CostKind.INTERRUPTED, row["restarts"], f"{count(row['restarts'])} restarts")
            yield Finding("restarts", Severity.WORTH_A_LOOK, text, cost)


def _topics(summary: Summary) -> Iterator[Finding]:
    of_sessions: dict[str, list[Row]] = {}
    for row in summary["topics"]:
        of_sessions.setdefault(session_number(row), []).append(row)
    for name, rows in list(of_sessions.items())[:3]:
        parts = [f"{count(row['messages'])} of {topic_name(row)}" for row in rows]
        yield Finding("topics", Severity.NOTE, f"Messages of {name} by topic: {several(parts, _NAMED)}.")


def topic_name(row: Row) -> str:
    """Return the topic's name, or its number if the name was not captured."""
    return displayed(row["topic"]) if row["topic"] else f"topic {row['topic_index']}"


def _loss(summary: Summary) -> Iterator[Finding]:
    [lost] = summary["lost"]
    sent = traffic_of(summary).datagrams if has_data(summary) else 0
    if not lost["losses"] and not sent:
        return
    if not lost["losses"] and summary["missing"]:
        text = "No receiver sent a NAK and nothing was retransmitted, but datagrams are missing from the capture."
        yield Finding("loss", Severity.WORTH_A_LOOK, text)
        return
    if not lost["losses"]:
        yield Finding(
            "loss", Severity.GOOD, "No loss was seen: no receiver sent a NAK and nothing was retransmitted."
        )
        return
    ratio = lost["datagrams"] / sent if sent else 1.0
    unrepaired = lost["losses"] - lost["repaired"]
    set_to = summary.expected_loss
    why = (
        ""
        if set_to is None
        else f", as the network was set to lose {share(set_to)} on the way to each receiver"
    )
    of_sent = f" of {count(sent)} datagrams ({share(ratio)})" if sent else " datagrams that were not captured"
    text = (
        f"{count(lost['datagrams'])}{of_sent} were missed by at least one receiver{why}. Counted per receiver, "
        f"{count(lost['losses'])} were lost and {count(lost['repaired'])} of them retransmitted in the capture."
    )
    severity = Severity.BAD if ratio >= NOTABLE_LOSS else Severity.WORTH_A_LOOK
    if set_to is not None:
        severity = Severity.NOTE
    yield Finding("loss", severity, text)
    if unrepaired:
        text = (
            f"{count(unrepaired)} losses have no retransmission in the capture: look for unrecoverable loss."
        )
        cost = Cost(CostKind.LOST, unrepaired, f"{count(unrepaired)} datagrams lost")
        yield Finding("unrepaired", Severity.BAD, text, cost)


def _clients(summary: Summary) -> Iterator[Finding]:
    """Yield the receivers of unicast sessions, their reconnections, and the messages missing from connections."""
    for row in summary["client_totals"][:_NAMED]:
        many, streamed = row["clients"], row["transport"] == LBTTCP
        text = f"{session_name(row)} sends over {row['transport']}"
        if streamed:
            text += (
                f" by {count(many)} {'connection' if many == 1 else 'connections'} to {count(row['hosts'])} "
            )
            text += f"{'host' if row['hosts'] == 1 else 'hosts'}: {count(row['connected'])} opened and "
            text += f"{count(row['ended'])} closed during the capture."
        else:
            text += f" to {count(many)} {'receiver' if many == 1 else 'receivers'}: {count(row['connected'])} sent a "
            text += "connection request during the capture."
        yield Finding("clients", Severity.NOTE, text)
        if row["again"]:
            who = several([f"{one['who']} ({count(one['many'])} times)" for one in row["again"]], _NAMED)
            text = f"Receivers of {session_name(row)} reconnected: {who}."
            many = sum(one["many"] for one in row["again"])
            cost = Cost(CostKind.INTERRUPTED, many, f"{count(many)} reconnections")
            yield Finding("reconnects", Severity.WORTH_A_LOOK, text, cost)
        if streamed:
            yield _missed(row)


def _missed(row: Row) -> Finding:
    if not row["missed"]:
        text = f"No connection of {session_name(row)} has a gap in its topic sequence numbers (LBT-TCP has no NAKs)."
        return Finding("stream-loss", Severity.NOTE, text)
    who = several([f"{one['who']} missed {count(one['many'])}" for one in row["missed"]], _NAMED)
    text = (
        f"Connections of {session_name(row)} have gaps in topic sequence numbers: {who}. LBT-TCP has no NAKs: either a "
        "source-paced source dropped data for a slow receiver, or the capture is incomplete."
    )
    missed = sum(one["many"] for one in row["missed"])
    return Finding(
        "stream-loss", Severity.BAD, text, Cost(CostKind.LOST, missed, f"{count(missed)} messages lost")
    )


def _causes(summary: Summary) -> Iterator[Finding]:
    worst: dict[str, Row] = {}
    for row in summary["incidents"]:
        worst.setdefault(row["cause"], row)
    for row in summary["causes"]:
        most = worst.get(row["cause"])
        text = (
            f"{count(row['incidents'])} loss {'incident' if row['incidents'] == 1 else 'incidents'} with "
            f"{count(row['lost'])} losses {'is' if row['incidents'] == 1 else 'are'} of the kind '{row['cause']}': "
            f"{CAUSES[row['cause']]}."
        )
        if most is not None:
            who = most["receiver"] or "a receiver whose NAKs were not captured"
            lasted_ns = most["end_ns"] - most["start_ns"]
            when = f"in {duration(lasted_ns)} from" if lasted_ns else "at"
            text += (
                f" In the worst, {who} lost {count(most['lost'])} {'datagram' if most['lost'] == 1 else 'datagrams'} "
                f"{when} {moment(most['start_ns'])}, at most {count(most['longest_run'])} in a row"
            )
            longest = row["longest_run"]
            text += (
                "." if longest == most["longest_run"] else f"; the longest run of all is {count(longest)}."
            )
        severity = Severity.WORTH_A_LOOK if summary.expected_loss is None else Severity.NOTE
        cost = Cost(CostKind.LATE, row["lost"], f"{count(row['lost'])} datagrams lost on the way")
        yield Finding(f"loss-{row['cause']}", severity, text, cost)


def _stalls(summary: Summary) -> Iterator[Finding]:
    for row in summary["stall_totals"][:_NAMED]:
        like = [one for one in summary["stalls"] if one["publisher"] == row["publisher"]]
        longest = next((one for one in like if one["session_id"] == row["session_id"]), None)
        ratio = stalled_share(summary, row)
        text = (
            f"{session_name(row)} stood still for {duration(row['stall_ns'])} ({share(ratio)} of its time) in "
            f"{count(row['stalls'])} {'stall' if row['stalls'] == 1 else 'stalls'}"
        )
        if longest is not None:
            text += f"{', the longest' if row['stalls'] > 1 else ''} at {moment(longest['start_ns'])}: {stall(longest)}"
        severity = Severity.BAD if ratio >= NOTABLE_STALL else Severity.WORTH_A_LOOK
        cost = Cost(CostKind.STOOD_STILL, row["stall_ns"], f"{duration(row['stall_ns'])} stood still")
        yield Finding("stall", severity, f"{text}.", cost)


def _gaps(summary: Summary) -> Iterator[Finding]:
    for row in summary["missing"]:
        text = (
            f"At {row['point']} {count(row['missing'])} datagrams were not captured when first sent: lost before that "
            "point, or dropped by the capture."
        )
        cost = Cost(CostKind.UNSEEN, row["missing"], f"{count(row['missing'])} datagrams not seen")
        yield Finding("gaps", Severity.WORTH_A_LOOK, text, cost)


def _recovery(summary: Summary) -> Iterator[Finding]:
    rows = [row for row in summary["recovery_latency"] if row["request_p99"] is not None]
    if not rows:
        return
    slowest = max(rows, key=lambda row: row["request_p99"])
    text = (
        f"The slowest receiver, {slowest['receiver']}, waited {duration(slowest['request_p50'])} (median) and "
        f"{duration(slowest['request_p99'])} (99th percentile) from NAK to retransmission"
    )
    if slowest["recovery_p99"] is not None:
        times = f"{duration(slowest['recovery_p50'])} and {duration(slowest['recovery_p99'])}"
        text += f"; from the first sending, {times}"
    yield Finding("recovery", Severity.NOTE, text + ".")
    impatient = [row for row in rows if row["naks_per_loss"] > 1.1]
    if impatient:
        most = max(impatient, key=lambda row: row["naks_per_loss"])
        text = (
            f"{count(len(impatient))} {'receiver sends' if len(impatient) == 1 else 'receivers send'} several NAKs for "
            f"the same datagram; {most['receiver']} sent {most['naks_per_loss']:.1f} NAKs per loss."
        )
        again = sum(row["lost"] * (row["naks_per_loss"] - 1) for row in impatient)
        cost = Cost(CostKind.REPEATED, again, f"{count(again)} repeated NAKs")
        yield Finding("repeated-naks", Severity.WORTH_A_LOOK, text, cost)


def _storms(summary: Summary) -> Iterator[Finding]:
    if summary.expected_loss is not None:
        if storms := summary["nak_storms"]:
            most = max(storms, key=lambda row: row["requests"])
            text = (
                f"{count(len(storms))} {'burst' if len(storms) == 1 else 'bursts'} of NAKs, the largest for "
                f"{count(most['requests'])} sequence numbers in {duration(most['end_ns'] - most['start_ns'])}: repair "
                "of the losses that the network was set to make."
            )
            yield Finding("nak-storm", Severity.NOTE, text)
        return
    for row in summary["nak_storms"][:3]:
        text = f"A NAK storm on {session_name(row)} from {moment(row['start_ns'])}: {storm(row)}."
        cost = Cost(CostKind.REPEATED, row["requests"], f"{count(row['requests'])} requests")
        yield Finding("nak-storm", Severity.BAD, text, cost)


def storm(row: Row) -> str:
    """Describe a row of `nak_storms`."""
    first, lasted_ns = row["receivers"][0], row["end_ns"] - row["start_ns"]
    many = len(row["receivers"])
    return (
        f"in {duration(lasted_ns)}, {count(row['naks'])} NAKs of {count(many)} "
        f"{'receiver' if many == 1 else 'receivers'} requested {count(row['requests'])} sequence numbers, "
        f"{count(row['repeated'])} of them repeatedly; {first['receiver']} sent {share(first['share'])} of the requests"
    )


def _repairs(summary: Summary) -> Iterator[Finding]:
    # A point that does not see all NAKs would count other receivers' retransmissions as unnecessary.
    for row in where_seen_best(summary["repairs"], "naks"):
        useless = row["useless_bytes"]
        if useless and useless >= _USELESS_SHARE * row["retransmitted_bytes"]:
            text = (
                f"{share(useless / row['retransmitted_bytes'])} of the retransmitted bytes of {session_name(row)} were "
                f"unnecessary: {count(row['repeated'])} retransmissions repeated an earlier one without another NAK, "
                f"{count(row['unrequested'])} had no NAK at all."
            )
            session = of_session(summary["sessions"], row)
            wasted = useless / max(1, session.get("data_bytes", 0) + row["retransmitted_bytes"])
            cost = Cost(CostKind.BANDWIDTH, wasted, f"{share(wasted)} of the bandwidth")
            yield Finding("useless-repairs", Severity.WORTH_A_LOOK, text, cost)
        refused = {
            "its rate limit": row["refused_rx_delay"] + row["refused_shed"],
            "its ignore interval": row["refused_ignored"],
            "data it no longer held": row["refused_no_retry"],
        }
        for reason, number in refused.items():
            if number:
                text = f"{session_name(row)} refused or delayed {count(number)} requests because of {reason}."
                cost = Cost(CostKind.REPEATED, number, f"{count(number)} requests refused")
                yield Finding("refused", Severity.WORTH_A_LOOK, text, cost)


def _lost_repairs(summary: Summary) -> Iterator[Finding]:
    for row in summary["lost_repairs"][:_NAMED]:
        text = (
            f"Of {count(row['retransmissions'])} retransmissions of {session_name(row)} that passed "
            f"{row['from_point']}, {count(row['lost'])} did not arrive at {row['to_point']}: lost on the way."
        )
        cost = Cost(CostKind.REPEATED, row["lost"], f"{count(row['lost'])} repairs lost")
        yield Finding("lost-repairs", Severity.WORTH_A_LOOK, text, cost)


RECOVERIES = {
    "late_join": "Late join",
    "off_transport": "Off-transport recovery",
    "store": "Recovery from a Store",
    None: "Recovery",
}


def _recoveries(summary: Summary) -> Iterator[Finding]:
    for kind, name in RECOVERIES.items():
        rows = [row for row in summary["recoveries"] if row["recovery"] == kind]
        fetched = [row for row in rows if row["fragments"]]
        for row in fetched[:_NAMED]:
            text = f"{name}: receiver {row['receiver']} fetched {recovery(row)}."
            # A late join is normal; off-transport recovery means that retransmission failed.
            bad = kind == "off_transport" and summary.expected_loss is None
            severity = Severity.WORTH_A_LOOK if bad else Severity.NOTE
            cost = Cost(CostKind.LATE, row["messages"], f"{count(row['messages'])} messages late")
            yield Finding("recovery-tcp", severity, text, cost)
        if len(fetched) > _NAMED:
            text = f"{name}: {count(len(fetched) - _NAMED)} more receivers and topics are in recoveries/."
            yield Finding("recovery-tcp", Severity.NOTE, text)
        for row in rows:
            if row["requests"] and not row["fragments"]:
                text = (
                    f"{name}: receiver {row['receiver']} requested {count(row['requests'])} messages of "
                    f"{topic_name(row)} over TCP and received none."
                )
                cost = Cost(CostKind.LOST, row["requests"], f"{count(row['requests'])} messages not received")
                yield Finding("recovery-tcp", Severity.WORTH_A_LOOK, text, cost)


def _stores(summary: Summary) -> Iterator[Finding]:
    for row in summary["stores"]:
        store = f"Store {row['store']}:{row['store_port']}"
        if row["refused"]:
            text = f"{store} refused {count(row['refused'])} registrations of {row['client']}."
            yield Finding("stores", Severity.WORTH_A_LOOK, text)
        if row["lost"]:
            text = f"{store} gave up {count(row['lost'])} messages of {row['client']}: it will not have them."
            cost = Cost(CostKind.LOST, row["lost"], f"{count(row['lost'])} messages not stored")
            yield Finding("stores", Severity.WORTH_A_LOOK, text, cost)


def _unstable(summary: Summary) -> Iterator[Finding]:
    sent = {(row["publisher"], row["topic_index"]): row for row in summary["topics"]}
    for row in summary["stores"]:
        topic = sent.get((row["client"], row["topic_index"]))
        stable = row["highest_stable_sqn"]
        if topic is not None and stable is not None and (behind := topic["highest_sqn"] - stable) > 0:
            text = (
                f"At the end of the capture Store {row['store']}:{row['store_port']} had not acknowledged the last "
                f"{count(behind)} messages of {topic_name(topic)}."
            )
            yield Finding("stores", Severity.NOTE, text)


def recovery(row: Row) -> str:
    """Describe the messages fetched in a row of `recoveries`."""
    took = duration(row["end_ns"] - row["start_ns"])
    many = row["connections"]
    again = f" in {count(many)} connections" if many > 1 else ""
    return (
        f"{count(row['messages'])} messages of {topic_name(row)} ({volume(row['payload_bytes'])}) "
        f"over TCP in {took}{again}, outside the transport"
    )


def _duplicates(summary: Summary) -> Iterator[Finding]:
    for row in summary["duplicates"][:3]:
        ratio = row["copies"] / max(1, row["distinct"])
        text = f"At {row['point']} {count(row['copies'])} datagrams of {session_name(row)} were seen more than once"
        if ratio >= _COPIED_SHARE:
            text += ": the capture sees the same datagrams at several ports, and rates count each copy"
        else:
            text += ": the network duplicates them"
        cost = Cost(CostKind.BANDWIDTH, ratio, f"{share(ratio)} more bandwidth")
        yield Finding("duplicates", Severity.WORTH_A_LOOK, text + ".", cost)


def _bursts(summary: Summary) -> Iterator[Finding]:
    for row in where_seen_best(summary["rate_summary"], "peak_bytes_per_second")[:3]:
        session = of_session(summary["sessions"], row)
        seconds = session.get("seconds") or 0
        mean = session.get("data_bytes", 0) / seconds if seconds else 0
        many = row["peak_datagrams_per_second"] >= _BURST_DATAGRAMS_PER_SECOND
        if mean and many and row["peak_bytes_per_second"] >= _BURSTY * mean:
            text = (
                f"{session_name(row)} sends in bursts: its busiest millisecond ran at "
                f"{bit_rate(row['peak_bytes_per_second'])}, {row['peak_bytes_per_second'] / mean:.0f} times its mean."
            )
            yield Finding("bursts", Severity.WORTH_A_LOOK, text)


def _fill(summary: Summary) -> Iterator[Finding]:
    for row in where_seen_best(summary["datagram_fill"], "datagrams")[:3]:
        session = of_session(summary["sessions"], row)
        text = (
            f"A datagram of {session_name(row)} carries {row['messages_per_datagram']:.1f} messages and fills "
            f"{share(row['fill'])} of the MTU; {share(row['payload_share'])} of the bytes on the wire are payload."
        )
        wasteful = row["fill"] < _LOW_FILL and row["messages_per_datagram"] < _FEW_MESSAGES
        busy = (session.get("datagrams_per_second") or 0) > _BUSY_DATAGRAMS_PER_SECOND
        if wasteful and busy:
            text += " Batching would put several messages into one datagram."
        severity = Severity.WORTH_A_LOOK if wasteful and busy else Severity.NOTE
        overhead = 1 - row["payload_share"]
        yield Finding(
            "fill", severity, text, Cost(CostKind.BANDWIDTH, overhead, f"{share(overhead)} of the bandwidth")
        )
        if row["over_mtu"]:
            are_fragmented = bool(summary["ip_fragments"])
            text = f"{count(row['over_mtu'])} datagrams of {session_name(row)} exceed the MTU: " + (
                "IP fragmented them."
                if are_fragmented
                else "no fragment was captured, so the path has a larger one than the report assumes."
            )
            severity = Severity.BAD if are_fragmented else Severity.NOTE
            large = row["over_mtu"] / row["datagrams"]
            cost = Cost(CostKind.BANDWIDTH, large, f"{share(large)} of the datagrams fragmented")
            yield Finding("over-mtu", severity, text, cost)


def _fragments(summary: Summary) -> Iterator[Finding]:
    total = sum(row["fragments"] for row in summary["ip_fragments"])
    if total:
        first = summary["ip_fragments"][0]
        text = (
            f"{count(total)} IP fragments were captured, most from {first['source_address']} to "
            f"{first['destination_address']}: one lost fragment loses the whole datagram."
        )
        # A session whose datagrams exceed the MTU reports them itself.
        is_explained = any(row["over_mtu"] for row in summary["datagram_fill"])
        cost = Cost(CostKind.BANDWIDTH, 0, f"{count(total)} IP fragments")
        yield Finding("ip-fragments", Severity.BAD, text, None if is_explained else cost)


def _latency(summary: Summary) -> Iterator[Finding]:
    for row in summary["latency"][:3]:
        text = (
            f"From {row['from_point']} to {row['to_point']} a datagram took {duration(row['latency_p50'])} (median), "
            f"{duration(row['latency_p99'])} (99th percentile)."
        )
        if row["is_corrected"]:
            ahead = "ahead of" if row["offset_ns"] >= 0 else "behind"
            text += (
                f" The clock of {row['to_point']} is {duration(abs(row['offset_ns']))} {ahead} that of "
                f"{row['from_point']}, within {duration(row['uncertainty_ns'])}"
            )
            text += f", and drifts by {row['drift'] * 1e6:.0f} ppm" if row["drift"] else ""
            text += ": all times are corrected."
        elif row["offset_ns"] is None:
            text += " No NAK was seen at both points, so a difference of their clocks is part of these times."
        if row["negative"]:
            text += (
                f" {count(row['negative'])} latencies are negative: the clocks of the two points disagree."
            )
        yield Finding("latency", Severity.NOTE, text)


def _suggestions(summary: Summary) -> Iterator[Finding]:
    # An option that would have helped no loss is in the table only.
    useful = [row for row in summary["suggestions"] if row["losses_helped"]]
    shown = useful[:_NAMED]
    # A back-off without the other intervals that go with it would be bad advice, and so would the reverse.
    together = ("_nak_backoff_interval", "_ignore_interval", "_nak_suppress_interval")
    sessions = [(row["publisher"], row["session_id"]) for row in shown if row["option"].endswith(together)]
    pairs = [
        row
        for row in summary["suggestions"]
        if row["option"].endswith(together)
        and row not in shown
        and (row["publisher"], row["session_id"]) in sessions
    ]
    for row in [*shown, *pairs]:
        yield Finding(SUGGESTION, Severity.NOTE, suggestion(row))


def suggestion(row: Row) -> str:
    """Describe a row of `suggestions`."""
    text = f"Set {row['option']} of {session_name(row)} to {row['value']:,} {row['unit']}: {row['reason']}."
    if row["losses_helped"]:
        who = several(row["receivers"], _NAMED) or "unknown receivers"
        gain = next(gain for option, gain in GAINS.items() if row["option"].endswith(option))
        text += f" Expected gain: {count(row['losses_helped'])} losses of {who} {gain}."
    return text


def _copies(summary: Summary) -> Iterator[Finding]:
    for row in summary["remarks"]:
        if row["kind"] == COPY:
            text = (
                f"{count(row['packets'])} packets of {row['point']} are copies, captured within 100 us: a mirror of "
                "several ports, or a network that duplicates packets. Every table counts them once."
            )
            yield Finding("copies", Severity.NOTE, text)


def _malformed(summary: Summary) -> Iterator[Finding]:
    for row in summary["remarks"]:
        if row["status"] not in (None, "ok", "not ours", "IP fragment") and row["kind"] not in (COPY, NOTE):
            text = f"{count(row['packets'])} packets of {row['point']} could not be decoded: {row['status']}."
            cost = Cost(CostKind.UNSEEN, row["packets"], f"{count(row['packets'])} packets unread")
            yield Finding("malformed", Severity.WORTH_A_LOOK, text, cost)


def _notes(summary: Summary) -> Iterator[Finding]:
    for row in summary["notes"]:
        text = row["status"].removeprefix("note: ") + "."
        # A snap length was chosen by the user and costs the report nothing.
        severity = Severity.NOTE if SNAP_LENGTH in text else Severity.WORTH_A_LOOK
        yield Finding("capture", severity, text, Cost(CostKind.UNSEEN, 0, "incomplete capture"))
    if more := summary.totals.get("notes", 0) - len(summary["notes"]):
        text = f"{count(more)} more notes on the captures are in remarks/."
        yield Finding("capture", Severity.WORTH_A_LOOK, text, Cost(CostKind.UNSEEN, 0, "incomplete capture"))
