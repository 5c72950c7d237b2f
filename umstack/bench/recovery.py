"""Recovery: measures the cost of loss at a switch port for streams and round trips, in rate, time and NAKs.

The same loss is applied for comparison to datagrams of raw sockets, which stay lost, or over TCP to a plain stream and
a plain round trip, which the kernel repairs, and to other stacks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from umstack.bench import throughput
from umstack.bench.latency import measure_over_tcp, measure_round_trip
from umstack.bench.requests import Other, round_trip_peers
from umstack.bench.result import Result, merged, p99, rate, ratio
from umstack.bench.round_trip_ends import RoundTripSpec
from umstack.bench.stream_ends import StreamSpec
from umstack.bench.tcp_ends import Peer
from umstack.bench.tcp_peers import measure_peer, peers
from umstack.bench.throughput import Baseline, Pins, Progress, measure_stream
from umstack.errors import Unsupported
from umstack.lab import Lab

STREAM_OPTIONS = """
receiver transport_lbtrm_nak_initial_backoff_interval 0.2
receiver transport_lbtrm_nak_backoff_interval 2
receiver transport_lbtrm_nak_suppress_interval 0
source transport_lbtrm_ignore_interval 1
receiver flow_control_receiver_window 4194304
"""
"""For a fast network: a gap is NAKed almost immediately and not after UM's 50 ms, during which a window would fill. The
window (and by default the queue) is large enough for the data sent until a lost retransmission is re-NAKed."""

ROUND_TRIP_OPTIONS = """
source transport_lbtrm_sm_minimum_interval 0.3
source transport_lbtrm_ignore_interval 0
receiver transport_lbtrm_nak_initial_backoff_interval 0
receiver transport_lbtrm_nak_backoff_interval 1
receiver transport_lbtrm_nak_suppress_interval 0
"""
"""For request and reply: no data follows a lost message, so early session messages must reveal the loss."""


def tuned_for(transport: str, options: str) -> str:
    """Rename LBT-RM options for another transport."""
    return options.replace("transport_lbtrm_", f"transport_{transport}_")


def round_trip_spec(
    config: str, seconds: float, is_tuned: bool = False, transport: str = "lbtrm"
) -> RoundTripSpec:
    """Return the round trip under loss: blocking, at the core's own speed."""
    tuned = tuned_for(transport, ROUND_TRIP_OPTIONS) if is_tuned else ""
    return RoundTripSpec(
        config=f"{tuned}{config}", mode="sequential", loop="core", seconds=seconds, transport=transport
    )


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """Stream, round trip and loss rate of the measurement."""

    stream: StreamSpec
    round_trip: RoundTripSpec | None
    loss: float = 0.01
    rounds: int = 3
    is_pinned: bool = True
    peers: Sequence[str] = ()
    """Names of other stacks to measure: `zmq`, over TCP."""
    is_captured: bool = False
    """True: each round also measures both streams with a capture at the publisher's port. Not over TCP."""

    @property
    def has_tcp(self) -> bool:
        """True if any contender uses TCP, so that segments must be dropped, too."""
        return self.stream.transport == "tcp" or bool(self.peers)


def measure(plan: RecoveryPlan, progress: Progress) -> list[Result]:
    """Measure the stream alternately without the program that drops datagrams, without loss and with loss, and its
    baselines and the round trips with loss."""
    if plan.is_captured:
        measure_captured = _measure_captured()
    pins = Pins.apart() if plan.is_pinned else Pins()
    spec = plan.stream
    bare: list[Result] = []
    lossless: list[Result] = []
    lossy: list[Result] = []
    captured: dict[float, list[Result]] = {0.0: [], plan.loss: []} if plan.is_captured else {}
    with Lab(hosts=1 + spec.receivers, segmentation="real") as lab:
        streams, trips = _streams_beside(lab, plan, pins), _round_trips(lab, plan, pins)
        beside: dict[str, list[Result]] = {what: [] for what in streams}
        there_and_back: dict[str, list[Result]] = {what: [] for what in trips}
        for number in range(1, plan.rounds + 1):
            at = f"round {number} of {plan.rounds}"
            progress(f"{at}: {spec.size} B, no program at the ports")
            _lose(lab, 0.0, plan, has_program=False)
            bare.append(_without_program(measure_stream(lab, spec, pins)))
            progress(f"{at}: {spec.size} B without loss")
            _lose(lab, 0.0, plan)
            lossless.append(measure_stream(lab, spec, pins))
            _lose(lab, plan.loss, plan)
            progress(f"{at}: {spec.size} B losing {plan.loss:.2%}")
            lossy.append(_measure_lossy(lab, spec, plan.loss, pins))
            for loss, found in captured.items():
                progress(f"{at}: {spec.size} B losing {loss:.2%}, captured")
                _lose(lab, loss, plan)
                found.append(measure_captured(lab, spec, pins))
            for what, measure_one in streams.items():
                progress(f"{at}: {what} losing {plan.loss:.2%}")
                beside[what].append(_with_loss(measure_one(), plan.loss))
            for what, measure_one in trips.items():
                progress(f"{at}: round trips of {what} losing {plan.loss:.2%}")
                there_and_back[what].append(_with_loss(measure_one(), plan.loss))
    best = merged(lossy, rate)
    best["ratios"] = {"lossless": ratio(lossy, lossless, rate), "no program": ratio(lossy, bare, rate)}
    best["ratios"] |= {what: ratio(lossy, found, rate) for what, found in beside.items()}
    plain = merged(lossless, rate)
    for one, loss in ((plain, 0.0), (best, plan.loss)):
        if loss in captured:
            one["detail"]["recovery"] = merged(captured[loss], _standing)["detail"]["recovery"]
    results = [merged(bare, rate), plain, best, *(merged(found, rate) for found in beside.values())]
    for what, found in there_and_back.items():
        results.append(merged(found, p99))
        if what == "umstack":
            others = {other: rounds for other, rounds in there_and_back.items() if other != what}
            results[-1]["ratios"] = {
                other: ratio(found, rounds, p99) for other, rounds in others.items()
            } or None
    return results


def _measure_captured() -> Callable[[Lab, StreamSpec, Pins], Result]:
    """Return the measurement that needs the packages of the report."""
    try:
        from umstack.bench.standing import measure_captured
    except ImportError as error:
        raise Unsupported(
            f"measuring stalls needs {error.name}", hint="pip install 'umstack[report]', or use --no-capture"
        ) from None
    return measure_captured


def _standing(found: Result) -> float:
    return float(found["detail"]["recovery"]["standing_share"] or 0.0)


Measurements = dict[str, Callable[[], Result]]


def _streams_beside(lab: Lab, plan: RecoveryPlan, pins: Pins) -> Measurements:
    """Measure the baselines of the stream: a raw stream of the same kind, and peers."""
    spec = plan.stream
    sender, receiver = lab.hosts[:2]

    def over_tcp(what: Peer) -> Callable[[], Result]:
        cpus = pins.publisher, pins.subscriber
        return partial(measure_peer, sender, receiver, what, spec.size, spec.seconds, cpus)

    found: Measurements = {}
    if spec.transport == "tcp":
        found["raw-tcp"] = over_tcp("raw-tcp")
    else:
        what = throughput.baselines(spec.size, "real")[-1 if spec.size > 700 else 1]
        found[what] = partial(Baseline(what, spec.size, spec.seconds, pins, spec.transport).measure, lab)
    return found | {peer: over_tcp(peer) for peer in peers(plan.peers)}


def _round_trips(lab: Lab, plan: RecoveryPlan, pins: Pins) -> Measurements:
    """Measure round trips, if requested: the stack's, over TCP those of a plain connection, and the peers'."""
    trip = plan.round_trip
    if trip is None:
        return {}
    beside: list[Other] = ["raw-tcp"] if trip.transport == "tcp" else []
    found: Measurements = {"umstack": partial(measure_round_trip, lab, trip, pins)}
    for what in (*beside, *round_trip_peers(plan.peers)):
        found[what] = partial(measure_over_tcp, lab, what, trip, pins)
    return found


def _lose(lab: Lab, loss: float, plan: RecoveryPlan, has_program: bool = True) -> None:
    """Make every port toward a host drop this fraction of the datagrams, independently of the other ports. Over LBT-RU
    this includes control datagrams, and if any contender uses TCP it includes TCP segments.

    The ports' program also runs for a lossless stream: it uses the publisher's processor and is not a cost of loss.
    With `has_program` False it is detached, which shows that cost.
    """
    is_unicast = plan.stream.transport != "lbtrm"
    for host in lab.hosts:
        lab.port(host.number).set(loss=loss, counts=has_program, unicast=is_unicast, tcp=plan.has_tcp)


def _with_loss(found: Result, loss: float, **more: float | int | None) -> Result:
    return {**found, "detail": {**found["detail"], "loss": loss, **more}}


def _without_program(found: Result) -> Result:
    return {**found, "detail": {**found["detail"], "has_port_program": False}}


def _dropped(lab: Lab, spec: StreamSpec) -> int:
    return sum(lab.port(number).counters().dropped for number in range(1, spec.receivers + 1))


def _measure_lossy(lab: Lab, spec: StreamSpec, loss: float, pins: Pins) -> Result:
    """Measure one stream, and count the datagrams that the switch dropped."""
    before = _dropped(lab, spec)
    found = measure_stream(lab, spec, pins)
    dropped = _dropped(lab, spec) - before
    naks = None if spec.transport == "tcp" else found["detail"]["naks_sent"]
    per_dropped = naks / dropped if dropped and naks is not None else None
    return _with_loss(found, loss, datagrams_dropped=dropped, naks_per_datagram_dropped=per_dropped)
