"""How long simulated losses take to be repaired, compared with a computed lower bound.

A case is a stream over a lossy path to a number of receivers, with the default (adaptive) timers. The bound of a loss
is one round trip per try: one for the first repair, and one more for each repair that was lost on its way to the same
receiver. Times count from the arrival of the first later datagram, which reveals the loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from umstack._sim_bench import ffi, lib
from umstack.sim.options import ADAPTIVE_JOIN, ADAPTIVE_SESSION, MS, SECOND, US
from umstack.sim.trace import Fate, Type
from umstack.sim.world import Source, World

DELAYS_NS = (50 * US, 1 * MS, 20 * MS)
LOSSES_PPM = (1_000, 10_000, 20_000, 50_000, 100_000)
RECEIVERS = (1, 3, 30, 300)

MEDIAN_MAX = 1.3
"""Limit of the median of the recovery times, each in units of its own bound."""
P99_MAX = 2.0
"""Limit of their 99th percentile."""
REPAIRS_MAX = 1.10
"""Limit of the repairs per needed repair."""

_PER_ROUND_TRIP = 10
_LOSSES_WANTED = 1500
_MESSAGES_MIN, _MESSAGES_MAX = 1_000, 60_000
_WARM_UP = 200
_RETRANSMISSION = 0x20
_NAK_HEADER_BYTES = 12
_NEVER = np.iinfo(np.int64).max
_FIELDS = {
    "time_ns": "i8",
    "what": "u1",
    "type": "u1",
    "flags": "u1",
    "from": "i4",
    "to": "i4",
    "sqn": "u4",
    "bytes_at": "u8",
    "length": "u4",
}
_BURST_END_PPM = 250_000  # bursts of four datagrams on average
_Array = npt.NDArray[Any]
_SMALL = {"hold_datagrams": 128, "hold_messages": 1024, "inbox_datagrams": 256}


@dataclass(frozen=True, slots=True)
class RecoveryCase:
    """A path: its delay in each direction, the loss at each receiver, and how it reorders."""

    delay_ns: int
    loss_ppm: int
    receivers: int
    has_bursts: bool = False
    """Losses come in bursts of four datagrams on average."""
    reorders: bool = False
    """One in twenty datagrams arrives up to three datagrams late."""
    is_start: bool = False
    """The stream starts with the measurement: nothing was measured before."""

    @property
    def name(self) -> str:
        """Return a short description."""
        kind = ", bursts" * self.has_bursts + ", reordered" * self.reorders + ", start" * self.is_start
        return (
            f"{self.delay_ns / MS:g} ms, {self.loss_ppm / 10_000:g} %{kind}, {self.receivers} receiver"
            + "s" * (self.receivers > 1)
        )


@dataclass(frozen=True, slots=True)
class RecoveryResult:
    """The measurements of a case."""

    case: RecoveryCase
    losses: int
    median: float
    """Recovery time in round trips."""
    p99: float
    median_of_bound: float
    """Recovery time in bounds, each loss compared with its own bound."""
    p99_of_bound: float
    repairs_per_need: float
    """Repairs sent per repair that a receiver was missing."""
    naks_per_loss: float
    false_naks: int
    """Sequence numbers NAKed by receivers that had not lost them."""
    unrepaired: int

    @property
    def misses(self) -> list[str]:
        """Return the limits that the case exceeds; empty if it meets them all."""
        found = []
        if self.median_of_bound > MEDIAN_MAX:
            found.append("median")
        if self.p99_of_bound > P99_MAX:
            found.append("p99")
        if self.repairs_per_need > REPAIRS_MAX:
            found.append("repairs")
        if self.case.reorders and self.false_naks:
            found.append("false NAKs")
        if self.unrepaired:
            found.append("unrepaired")
        return found


def recovery_cases() -> Iterator[RecoveryCase]:
    """Yield the cases of the whole table."""
    for delay_ns in DELAYS_NS:
        for receivers in RECEIVERS:
            for loss_ppm in LOSSES_PPM:
                yield RecoveryCase(delay_ns, loss_ppm, receivers)
            yield RecoveryCase(delay_ns, 10_000, receivers, has_bursts=True)
        for receivers in (1, 3):
            yield RecoveryCase(delay_ns, 10_000, receivers, reorders=True)
            yield RecoveryCase(delay_ns, 10_000, receivers, is_start=True)


def measure_recovery(case: RecoveryCase, seed: int = 1) -> RecoveryResult:
    """Run one case under virtual time."""
    needed = _LOSSES_WANTED * 1_000_000 // (case.loss_ppm * case.receivers)
    messages = min(max(needed, _MESSAGES_MIN), _MESSAGES_MAX)
    with World(seed) as world:
        source = _build(world, case)
        if not case.is_start:
            _publish(world, source, case, _WARM_UP)
            world.run_for(SECOND)  # the source counts its receivers
            _publish(world, source, case, _WARM_UP)
        first = source.session.probe.next_sqn
        _publish(world, source, case, messages)
        world.run_for(100 * case.delay_ns + SECOND)
        return _evaluate(case, _Trace(world, first))


def _publish(world: World, source: Source, case: RecoveryCase, messages: int) -> None:
    for _ in range(messages):
        source.send(bytes(8), flush=True)
        world.run_for(_interval_ns(case))


def _interval_ns(case: RecoveryCase) -> int:
    return 2 * case.delay_ns // _PER_ROUND_TRIP


def _build(world: World, case: RecoveryCase) -> Source:
    publisher = world.host(**_SMALL)
    publisher.set_faults(delay_ns=case.delay_ns)
    session = publisher.session(batch_minimum_bytes=1, window_bytes=1 << 20, **ADAPTIVE_SESSION)
    source = session.source()
    faults = {"delay_ns": case.delay_ns, "loss_ppm": case.loss_ppm}
    if case.has_bursts:
        begin_ppm = case.loss_ppm * _BURST_END_PPM // (1_000_000 - case.loss_ppm)
        faults |= {"loss_ppm": 0, "burst_begin_ppm": begin_ppm, "burst_end_ppm": _BURST_END_PPM}
    if case.reorders:
        faults |= {"reorder_ppm": 50_000, "reorder_ns": 3 * _interval_ns(case)}
    for number in range(case.receivers):
        host = world.host(**_SMALL)
        host.set_faults(**faults)
        receiver = host.receiver(block_rows=256, block_bytes=1 << 17, message_max_bytes=1 << 16)
        receiver.join(source, random_seed=number + 1, loss_capacity=1024, **ADAPTIVE_JOIN)
    return source


class _Trace:
    """The DATA datagrams of a world as an array, and the lists of its NAKs."""

    def __init__(self, world: World, first_sqn: int) -> None:
        """Read the trace from `first_sqn` on."""
        self.first_sqn = first_sqn
        count = ffi.new("uint64_t *")
        raw = lib.um_sim_trace(world.handle, count)
        offsets = dict(ffi.typeof("um_sim_trace_entry").fields)
        layout = np.dtype(
            {
                "names": list(_FIELDS),
                "formats": list(_FIELDS.values()),
                "offsets": [offsets[name].offset for name in _FIELDS],
                "itemsize": ffi.sizeof("um_sim_trace_entry"),
            }
        )
        every: _Array = np.frombuffer(ffi.buffer(raw, count[0] * layout.itemsize), dtype=layout)
        data = every[(every["type"] == Type.DATA) & (every["sqn"] >= first_sqn)]
        is_repair = (data["flags"] & _RETRANSMISSION) != 0
        self.sent_repairs = data[is_repair & (data["what"] == Fate.SENT)]
        self.arrived = data[data["what"] == Fate.RECEIVED]
        dropped = data[data["what"] == Fate.DROPPED]
        was_repair = (dropped["flags"] & _RETRANSMISSION) != 0
        self.lost, self.lost_repairs = dropped[~was_repair], dropped[was_repair]
        is_nak = (every["type"] == Type.NAK) & (every["what"] == Fate.SENT)
        memory = lib.um_sim_trace_bytes(world.handle)
        self.naks = [
            (int(entry["from"]), *np.frombuffer(_list_of(memory, entry), dtype=">u4").tolist())
            for entry in every[is_nak]
        ]


def _list_of(memory: Any, entry: Any) -> bytes:
    start = int(entry["bytes_at"]) + _NAK_HEADER_BYTES
    return bytes(ffi.buffer(memory + start, int(entry["length"]) - _NAK_HEADER_BYTES))


def _first_arrivals(arrived: _Array, sqn_end: int) -> npt.NDArray[np.int64]:
    """Return when each sqn first arrived at one receiver; _NEVER if it did not."""
    first = np.full(sqn_end, _NEVER)
    np.minimum.at(first, arrived["sqn"], arrived["time_ns"])
    return first


def _evaluate(case: RecoveryCase, trace: _Trace) -> RecoveryResult:
    round_trip_ns = 2 * case.delay_ns
    sqn_end = int(max(trace.arrived["sqn"].max(), trace.lost["sqn"].max())) + 1
    waits, tries, needed, unrepaired = [], [], set[tuple[int, int]](), 0
    lost_of: dict[int, set[int]] = {}
    for host in range(1, case.receivers + 1):
        arrived = trace.arrived[trace.arrived["to"] == host]
        first = _first_arrivals(arrived, sqn_end)
        later = np.minimum.accumulate(first[::-1])[::-1]
        lost = trace.lost["sqn"][trace.lost["to"] == host]
        lost_of[host] = set(lost.tolist())
        shown = np.append(later[1:], _NEVER)[lost]
        lost, shown = lost[shown < _NEVER], shown[shown < _NEVER]
        is_repaired = first[lost] < _NEVER
        unrepaired += int((~is_repaired).sum())
        waits.append((first[lost] - shown)[is_repaired])
        failed = trace.lost_repairs[trace.lost_repairs["to"] == host]
        failed = failed[failed["time_ns"] < first[failed["sqn"]]]
        tries.append(1 + np.bincount(failed["sqn"], minlength=sqn_end)[lost][is_repaired])
        repairs = arrived[(arrived["flags"] & _RETRANSMISSION) != 0]
        useful = repairs[repairs["time_ns"] == first[repairs["sqn"]]]
        needed |= set(zip(useful["sqn"].tolist(), useful["bytes_at"].tolist(), strict=True))
        needed |= set(zip(failed["sqn"].tolist(), failed["bytes_at"].tolist(), strict=True))
    waited = np.concatenate(waits) / round_trip_ns
    of_bound = waited / np.concatenate(tries)
    naks = [(host, sqn) for host, *sqns in trace.naks for sqn in sqns if sqn >= trace.first_sqn]
    median, p99 = (float(np.quantile(waited, q)) for q in (0.5, 0.99))
    median_of_bound, p99_of_bound = (float(np.quantile(of_bound, q)) for q in (0.5, 0.99))
    return RecoveryResult(
        case=case,
        losses=len(waited),
        median=median,
        p99=p99,
        median_of_bound=median_of_bound,
        p99_of_bound=p99_of_bound,
        repairs_per_need=len(trace.sent_repairs) / len(needed),
        naks_per_loss=len(naks) / len(trace.lost),
        false_naks=sum(sqn not in lost_of[host] for host, sqn in naks),
        unrepaired=unrepaired,
    )
