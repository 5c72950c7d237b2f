"""Analyses of captures of simulated runs are exact.

The simulator knows the fate of every datagram at every host (umstack.sim.truth); the capture does not hold it. Where
the capture is sufficient, the analyses must equal the truth, to the nanosecond and the datagram.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("polars")

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tests.sim.sim_run import (
    LONGEST_ROUND_TRIP_NS,
    PEAK_DATAGRAMS_PER_SECOND,
    PLANNED,
    RANDOM,
    ROUND_TRIP_NS,
    STORMY,
    STORMY_DELAY_NS,
    STORMY_RECEIVERS,
    SimRun,
    anything,
    scripted,
    storm,
)
from umstack.analysis.incidents import Thresholds
from umstack.analysis.losses import recovery_latency
from umstack.analysis.tables import Tables, tables_of
from umstack.capture import decode
from umstack.facts.facts import Facts, facts_of, facts_of_packets
from umstack.facts.packet_columns import points
from umstack.sim import MS, Loss, SessionTruth

WRAP = 2**32
SEEDS = 3
STORM_REGRESSIONS = {
    9669810: "a receiver lost the last datagram and every session message after it: nothing at its port shows the loss",
}
FRAME_HEADERS = 14 + 20 + 8
Key = tuple[str, int]
Where = tuple[str, int, str]
LossKey = tuple[Key, str, int]


@dataclass(slots=True)
class Seen:
    """Simulated runs and the tables of their captures."""

    runs: list[SimRun]
    anywhere: Tables
    at_the_switch: Tables
    at_the_hosts: Tables
    """Yield each capture point separately: `publisher` is followed by @ and the point."""
    lost_at_hosts: pl.DataFrame
    """The losses of each host, as captured at its own port."""

    def sessions(self, *kinds: str) -> Iterator[tuple[Key, SessionTruth]]:
        """Yield the truth of each session, for all runs or some of them."""
        for run in self.runs:
            if not kinds or run.kind in kinds:
                yield from (((one.publisher, one.session_id), one) for one in run.truth.sessions)

    def losses(self, *kinds: str) -> dict[LossKey, Loss]:
        """Return the losses that receivers NAKed."""
        return {
            (key, loss.receiver, loss.sqn): loss
            for key, session in self.sessions(*kinds)
            for loss in session.losses
            if loss.naks_ns
        }


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Return runs with deliberate losses, one with a storm, and random worlds of some seeds."""
    folder = tmp_path_factory.mktemp("simulated")
    first = random.SystemRandom().randrange(2**24)
    print(f"seeds from {first}")
    runs = [scripted(folder, first), scripted(folder, first + 1), storm(folder, first + 2)]
    runs += [anything(folder, first + 3 + number) for number in range(SEEDS)]
    return seen_in(runs)


def seen_in(runs: list[SimRun]) -> Seen:
    """Return the runs with the tables of their captures."""
    captures = [str(run.capture) for run in runs]
    by_point = at_each_point(captures)
    switch = Facts.merged(facts for point, facts in by_point.items() if point.endswith(":switch"))
    hosts: dict[str, list[pl.DataFrame]] = defaultdict(list)
    own: list[pl.DataFrame] = []
    for point, facts in by_point.items():
        if ":host" not in point:
            continue
        addresses = addresses_at(point)
        for name, table in tables_of(facts).items():
            if "publisher" in table.columns:
                hosts[name].append(table.with_columns(pl.col("publisher") + f"@{point}"))
        own.append(hosts["losses"][-1].filter(pl.col("receiver").is_in(addresses)))
    at_hosts = {name: pl.concat(tables) for name, tables in hosts.items()}
    return Seen(runs, tables_of(facts_of(captures)), tables_of(switch), at_hosts, pl.concat(own))


def at_each_point(captures: list[str]) -> dict[str, Facts]:
    """Return the facts of every capture point separately."""
    found: dict[str, list[pa.RecordBatch]] = defaultdict(list)
    for capture in captures:
        for batch in decode(capture, only_ours=True):
            at = points(batch)
            for point in at.unique().to_pylist():
                found[point].append(batch.filter(pc.equal(at, point)))
    return {point: facts_of_packets(batches) for point, batches in found.items()}


def addresses_at(point: str) -> list[str]:
    """Return the IPv4 and the IPv6 address of the host at a capture point; a world uses one of them."""
    number = 1 + int(point.rpartition(":host")[2])
    return [f"10.0.0.{number}", f"fd00::a00:{number:x}"]


def rows(table: pl.DataFrame) -> list[dict[str, Any]]:
    """Return all rows."""
    return table.to_dicts()


def session_of(row: dict[str, Any]) -> Key:
    """Return the session of a row, without its capture point."""
    return row["publisher"].partition("@")[0], row["session_id"]


def by_loss(frame: pl.DataFrame) -> dict[LossKey, dict[str, Any]]:
    """Return losses by sqns on the wire."""
    return {(session_of(row), row["receiver"], row["sqn"] % WRAP): row for row in rows(frame)}


def test_sessions_match_the_sent_datagrams(seen: Seen) -> None:
    """Datagrams, bytes, retransmissions, refusals and control packets are exact by kind and session.

    A retransmission counts as useless if it gave no receiver a missing datagram.
    """
    found = {session_of(row): row for row in rows(seen.at_the_switch["sessions"])}
    repaired = {session_of(row): row for row in rows(seen.at_the_switch["repairs"])}
    truth = dict(seen.sessions())
    assert found.keys() == truth.keys()
    for key, session in truth.items():
        row = found[key]
        for name in (
            "group",
            "datagrams",
            "data_bytes",
            "retransmissions",
            "session_messages",
            "naks",
            "ncfs",
        ):
            assert row[name] == getattr(session, name), name
        assert row["status_messages"] == session.status_messages
        if session.datagrams:
            assert (row["first_sqn"] % WRAP, row["last_sqn"] % WRAP) == (session.first_sqn, session.last_sqn)
        if session.retransmissions == 0 and not any(loss.naks_ns for loss in session.losses):
            continue
        row = repaired[key]
        assert row["retransmissions"] == session.retransmissions
        assert row["naks"] == sum(len(loss.naks_ns) for loss in session.losses)
        useless = (row["unrequested"] or 0) + (row["repeated"] or 0)
        assert useless <= session.retransmissions - session.useful_retransmissions
        for reason in ("ignored", "rx_delay", "shed", "no_retry"):
            assert row[f"refused_{reason}"] == session.refused.get(reason, 0)


def test_losses_match_the_truth(seen: Seen) -> None:
    """The send time, every NAK and the outcome of each receiver and sqn are exact to the nanosecond.

    At a receiver's own port everything is known except a first transmission that was only late. At the switch
    the arrival of a retransmission is unknown: if all of them arrived, the times are also exact, otherwise
    they are never later than the truth.
    """
    truth, planned = seen.losses(), seen.losses(PLANNED).keys()
    at_switch, at_hosts = by_loss(seen.at_the_switch["losses"]), by_loss(seen.lost_at_hosts)
    assert at_switch.keys() == at_hosts.keys() == truth.keys()
    for key, loss in truth.items():
        switch, host = at_switch[key], at_hosts[key]
        for row in (switch, host):
            assert (row["naks"], row["nak_ns"]) == (len(loss.naks_ns), loss.naks_ns[0])
        assert switch["sent_ns"] == loss.sent_ns
        if loss.came_at_first:
            continue
        assert host["repaired_ns"] == loss.repaired_ns, key
        if key in planned:
            assert switch["repaired_ns"] == loss.repair_sent_ns, key
        elif loss.repair_sent_ns is not None and loss.repair_sent_ns >= loss.naks_ns[-1]:
            assert loss.naks_ns[-1] <= switch["repaired_ns"] <= loss.repair_sent_ns, key


def rank(values: list[int], share: float) -> int:
    """Return the smallest value that a share of all values does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


@pytest.mark.parametrize(("kind", "end"), [(PLANNED, "repair_sent_ns"), (STORMY, "repaired_ns")])
def test_recovery_latency_is_exact(seen: Seen, kind: str, end: str) -> None:
    """Percentiles by receiver are exact: at the switch by the source's responses, at receivers' ports by
    their waiting.
    """
    frame = seen.at_the_switch["losses"] if kind == PLANNED else seen.lost_at_hosts
    lost: dict[tuple[Key, str], list[Loss]] = defaultdict(list)
    for (key, receiver, _), loss in seen.losses(kind).items():
        lost[key, receiver].append(loss)
    found = {(session_of(row), row["receiver"]): row for row in rows(recovery_latency([frame]))}
    assert len(lost) >= 3
    for key, all_of_it in lost.items():
        row = found[key]
        came = [loss for loss in all_of_it if getattr(loss, end) is not None]
        waits = [getattr(loss, end) - loss.naks_ns[0] for loss in came]
        assert (row["lost"], row["repaired"]) == (len(all_of_it), len(came))
        assert row["naks"] == sum(len(loss.naks_ns) for loss in all_of_it)
        reported = [row[f"request_{name}"] for name in ("p50", "p90", "p99", "p999", "max", "min")]
        assert reported == [
            *(rank(waits, share) for share in (0.5, 0.9, 0.99, 0.999)),
            max(waits),
            min(waits),
        ]
        if kind == PLANNED:
            whole = [getattr(loss, end) - loss.sent_ns for loss in came]
            assert (row["recovery_p50"], row["recovery_max"]) == (rank(whole, 0.5), max(whole))


def longest_run(numbers: list[int]) -> list[int]:
    """Return the longest run of consecutive numbers."""
    runs = [[numbers[0]]]
    for number in numbers[1:]:
        if number != runs[-1][-1] + 1:
            runs.append([])
        runs[-1].append(number)
    return max(runs, key=len)


def test_incidents_match_the_deliberate_losses(seen: Seen) -> None:
    """Every head, sporadic, burst, connectivity and tail incident is found with its cause, receiver, sqns and
    times, and no other incident is found.

    A loss that a receiver need not NAK because another receiver did is invisible at the switch. For frequent
    losses, the incidents equal a list of losses that is split at quiet times, with bursts separate from other
    losses.
    """
    reported = rows(seen.at_the_switch["incidents"])
    asked = seen.losses()
    found = {(session_of(row), row["receiver"], row["first_sqn"] % WRAP): row for row in reported}
    causes = Counter()
    for run in seen.runs:
        for one in run.injected:
            key = (run.session.publisher, run.session.session_id)
            lost = [sqn for sqn in one.sqns if (key, one.receiver, sqn % WRAP) in asked]
            if not lost:
                continue
            row = found[key, one.receiver, lost[0] % WRAP]
            sent = {sqn: asked[key, one.receiver, sqn % WRAP].sent_ns or 0 for sqn in lost}
            in_a_row = longest_run(lost)
            assert (row["cause"], row["lost"], row["last_sqn"] % WRAP) == (
                one.cause,
                len(lost),
                lost[-1] % WRAP,
            )
            assert (row["start_ns"], row["end_ns"], row["unrepaired"]) == (sent[lost[0]], sent[lost[-1]], 0)
            assert row["longest_run"] == len(in_a_row)
            assert row["longest_run_ns"] == sent[in_a_row[-1]] - sent[in_a_row[0]]
            causes[one.cause] += 1
    planned = {key for key, _ in seen.sessions(PLANNED)}
    assert causes.total() == sum(session_of(row) in planned for row in reported), "no other incidents"
    assert causes.keys() == {"head", "sporadic", "burst", "connectivity", "tail"}
    cut = Counter(
        (key, receiver, times[0], times[-1], len(times))
        for (key, receiver), all_of_it in lost_times(seen.losses(STORMY, RANDOM)).items()
        for part in parted(sorted(all_of_it), Thresholds().quiet_ns)
        for times in bursts_apart(part, run_starts(all_of_it))
    )
    assert any(row["cause"] == "sporadic" for row in reported if session_of(row) not in planned)
    assert cut == Counter(
        (session_of(row), row["receiver"], row["start_ns"], row["end_ns"], row["lost"])
        for row in reported
        if session_of(row) not in planned
    )


LostAt = tuple[int, int]
"""The time and the sqn of a loss."""


def lost_times(lost: dict[LossKey, Loss]) -> dict[tuple[Key, str], list[LostAt]]:
    """Return the losses of each receiver with their times."""
    found: dict[tuple[Key, str], list[LostAt]] = defaultdict(list)
    for (key, receiver, sqn), loss in lost.items():
        found[key, receiver].append((loss.naks_ns[0] if loss.sent_ns is None else loss.sent_ns, sqn))
    return found


def parted(lost: list[LostAt], quiet_ns: int) -> Iterator[list[LostAt]]:
    """Yield losses in order of time, split at quiet times."""
    cuts = [i for i in range(1, len(lost)) if lost[i][0] - lost[i - 1][0] > quiet_ns]
    for low, high in zip([0, *cuts], [*cuts, len(lost)], strict=True):
        yield lost[low:high]


def run_starts(lost: list[LostAt]) -> dict[int, int]:
    """Return the first sqn of the run of each lost sqn; sqns wrap."""
    numbers, first = {sqn for _, sqn in lost}, {}
    for sqn in numbers:
        start = sqn
        while (start - 1) % WRAP in numbers:
            start = (start - 1) % WRAP
        first[sqn] = start
    return first


def bursts_apart(part: list[LostAt], first: dict[int, int]) -> Iterator[list[int]]:
    """Yield the times of an incident, and separately those of each burst if less than half was lost in
    bursts.
    """
    runs: dict[int, list[int]] = defaultdict(list)
    for time_ns, sqn in part:
        runs[first[sqn]].append(time_ns)
    bursts = [run for run in runs.values() if len(run) >= Thresholds().burst_run]
    if 2 * sum(map(len, bursts)) >= len(part):
        yield [time_ns for time_ns, _ in part]
        return
    yield from bursts
    rest = [time_ns for time_ns, sqn in part if len(runs[first[sqn]]) < Thresholds().burst_run]
    yield sorted(rest)


def test_storms_belong_to_the_receiver_that_caused_them(seen: Seen) -> None:
    """A receiver that loses nearly everything is a storm; the losses of a path outage are not."""
    storms = {session_of(row): row for row in rows(seen.at_the_switch["nak_storms"])}
    assert not storms.keys() & dict(seen.sessions(PLANNED)).keys()
    for key, session in seen.sessions(STORMY):
        row = storms[key]
        asked = [
            (time_ns, loss.receiver, loss.sqn)
            for loss in session.losses
            for time_ns in loss.naks_ns
            if row["start_ns"] <= time_ns <= row["end_ns"]
        ]
        assert row["requests"] == len(asked)
        assert row["naks"] == len({(time_ns, receiver) for time_ns, receiver, _ in asked})
        assert row["repeated"] == len(asked) - len({(receiver, sqn) for _, receiver, sqn in asked})
        assert row["end_ns"] - row["start_ns"] > 100_000_000
        most = row["receivers"][0]
        [(receiver, requests)] = Counter(receiver for _, receiver, _ in asked).most_common(1)
        assert (most["receiver"], most["requests"]) == (receiver, requests)
        assert most["share"] > 0.9


def compared_gaps(seen: Seen) -> set[str]:
    """Compare the gaps and copies at each receiver's port with the truth. Return the kinds of the runs compared.

    A host of a random world may leave a session and join it again; the datagrams in between are a gap, not a
    loss.
    """

    def at(row: dict[str, Any]) -> Where:
        return (*session_of(row), row["point"])

    copies = {at(row): row["copies"] for row in rows(seen.at_the_hosts["duplicates"])}
    missing: Counter[Where] = Counter()
    for row in rows(seen.at_the_hosts["gaps"]):
        missing[at(row)] += row["missing"]
    truth, compared = dict(seen.sessions()), set()
    kinds = {(one.publisher, one.session_id): run.kind for run in seen.runs for one in run.truth.sessions}
    covered = seen.at_the_hosts["coverage"].group_by("point", "publisher", "session_id")
    for row in rows(covered.agg(pl.col("low").min())):
        publisher, session_id, point = where = at(row)
        session = truth.get((publisher, session_id))
        if session is None:
            continue  # a datagram that was mangled in flight
        addresses, kind = addresses_at(point), kinds[publisher, session_id]
        never_came = [
            loss
            for loss in session.losses
            if loss.receiver in addresses
            and loss.is_revealed
            and not loss.came_at_first
            and 0 < (loss.sqn - row["low"]) % WRAP < WRAP // 2
        ]
        assert missing[where] == len(never_came) or (kind == RANDOM and missing[where] > len(never_came))
        again = sum(session.duplicates.get(address, 0) for address in addresses)
        # A random world mangles datagrams: a copy with other bytes is none.
        assert copies.get(where, 0) == again or (kind == RANDOM and copies.get(where, 0) > again)
        compared.add(kind)
    return compared


def test_gaps_and_copies_at_each_host(seen: Seen) -> None:
    """At a receiver's port the table has the sqns whose first transmission never arrived, NAKed or not, and the
    duplicates. The last sqns are included if a session message showed them to the receiver.
    """
    assert compared_gaps(seen) == {PLANNED, STORMY, RANDOM}


@pytest.mark.parametrize("seed", STORM_REGRESSIONS)
def test_gaps_of_storms_that_once_failed(seed: int, tmp_path: Path) -> None:
    """Seeds that found mistakes stay in the suite."""
    assert compared_gaps(seen_in([storm(tmp_path, seed)])) == {STORMY}


def test_latency_is_the_delay_of_each_path(seen: Seen) -> None:
    """From the switch to each host of the storm, first transmissions have the delay of their path.

    Retransmissions do not count; the skew of two receivers is the difference of their delays.
    """
    [run] = [run for run in seen.runs if run.kind == STORMY]
    of_run = seen.anywhere["latency"].filter(pl.col("session_id") == run.session.session_id)
    found = {
        (row["from_point"].rpartition(":")[2], row["to_point"].rpartition(":")[2]): row
        for row in rows(of_run)
    }
    for number in range(STORMY_RECEIVERS):
        host, address = f"host{number + 1}", f"10.0.0.{number + 2}"
        row = found["switch", host]
        never_came = [
            loss for loss in run.session.losses if loss.receiver == address and not loss.came_at_first
        ]
        assert row["datagrams"] == run.session.datagrams - len(never_came)
        reported = [row[f"latency_{name}"] for name in ("min", "p50", "p999", "max")]
        assert reported == [(number + 1) * STORMY_DELAY_NS] * 4
        assert row["negative"] == 0
    apart = found["host1", "host4"]
    assert apart["latency_min"] == apart["latency_max"] == 3 * STORMY_DELAY_NS


def test_suggestions_follow_from_the_deliberate_losses(seen: Seen) -> None:
    """The run was built with a chosen longest round trip, burst and peak rate, so the back-offs and the
    window are known.
    """
    chosen = {(session_of(row), row["option"]): row for row in rows(seen.at_the_switch["suggestions"])}
    asked = seen.losses(PLANNED)
    for run in (run for run in seen.runs if run.kind == PLANNED):
        session = run.session
        key = (session.publisher, session.session_id)
        of_session = {(one, sqn): loss for (whose, one, sqn), loss in asked.items() if whose == key}
        [burst] = [one for one in run.injected if one.cause == "burst"]
        in_a_row = longest_run([sqn for sqn in burst.sqns if (burst.receiver, sqn % WRAP) in of_session])
        initial = math.ceil((len(in_a_row) - 1) + ROUND_TRIP_NS / MS)
        backoff = max(initial, 2 * LONGEST_ROUND_TRIP_NS // MS)
        waiting_ms = initial + 3 * backoff + 2 * LONGEST_ROUND_TRIP_NS // MS
        peak = PEAK_DATAGRAMS_PER_SECOND * (session.data_bytes // session.datagrams + FRAME_HEADERS)
        first = chosen[key, "transport_lbtrm_nak_initial_backoff_interval"]
        window = chosen[key, "transport_lbtrm_transmission_window_size"]
        assert (first["value"], first["losses_helped"]) == (initial, len(of_session))
        assert first["receivers"] == sorted({receiver for receiver, _ in of_session})
        assert window["value"] == peak * waiting_ms // 1000
