"""Recovery: what loss at a switch port costs a stream, and a round trip, in rate, time and NAKs."""

from __future__ import annotations

from dataclasses import dataclass

from umstack.bench import throughput
from umstack.bench.latency import measure_round_trip
from umstack.bench.result import Result, merged, p99, rate, ratio
from umstack.bench.round_trip_ends import RoundTripSpec
from umstack.bench.stream_ends import StreamSpec
from umstack.bench.throughput import Baseline, Pins, Progress, measure_stream
from umstack.lab import Lab

STREAM_OPTIONS = """
receiver transport_lbtrm_nak_initial_backoff_interval 0.2
receiver transport_lbtrm_nak_backoff_interval 2
receiver transport_lbtrm_nak_suppress_interval 0
source transport_lbtrm_ignore_interval 1
receiver flow_control_receiver_window 4194304
"""
"""For a fast network: what is missing is asked for at once, not after UM's 50 ms, in which a window fills. The window
(with the queue, which is that large by default) holds what is sent until a repair that was lost, too, has been asked
for again."""

ROUND_TRIP_OPTIONS = """
source transport_lbtrm_sm_minimum_interval 0.3
source transport_lbtrm_ignore_interval 0
receiver transport_lbtrm_nak_initial_backoff_interval 0
receiver transport_lbtrm_nak_backoff_interval 1
receiver transport_lbtrm_nak_suppress_interval 0
"""
"""For a request and a reply: nothing comes after a lost message to reveal it, so session messages must, and soon."""


def tuned_for(transport: str, options: str) -> str:
    """Options that are named for LBT-RM, of another transport."""
    return options.replace("transport_lbtrm_", f"transport_{transport}_")


def round_trip_spec(
    config: str, seconds: float, is_tuned: bool = False, transport: str = "lbtrm"
) -> RoundTripSpec:
    """The round trip under loss: blocking, at the core's own speed."""
    tuned = tuned_for(transport, ROUND_TRIP_OPTIONS) if is_tuned else ""
    return RoundTripSpec(
        config=f"{tuned}{config}", mode="sequential", loop="core", seconds=seconds, transport=transport
    )


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What `umstack bench recovery` measures."""

    stream: StreamSpec
    round_trip: RoundTripSpec | None
    loss: float = 0.01
    rounds: int = 3
    is_pinned: bool = True


def measure(plan: RecoveryPlan, progress: Progress) -> list[Result]:
    """The stream without loss and with it, in turn; a raw stream with it, to see it; round trips with it."""
    pins = Pins.apart() if plan.is_pinned else Pins()
    spec = plan.stream
    what = throughput.baselines(spec.size, "real")[-1 if spec.size > 700 else 1]
    baseline = Baseline(what, spec.size, spec.seconds, pins, spec.transport)
    lossless: list[Result] = []
    lossy: list[Result] = []
    raws: list[Result] = []
    trips: list[Result] = []
    with Lab(hosts=1 + spec.receivers, segmentation="real") as lab:
        for number in range(1, plan.rounds + 1):
            progress(f"round {number} of {plan.rounds}: {spec.size} B without loss")
            _lose(lab, 0.0, spec)
            lossless.append(measure_stream(lab, spec, pins))
            _lose(lab, plan.loss, spec)
            progress(f"round {number} of {plan.rounds}: {spec.size} B losing {plan.loss:.2%}")
            lossy.append(_measure_lossy(lab, spec, plan.loss, pins))
            progress(f"round {number} of {plan.rounds}: {what} losing {plan.loss:.2%}")
            raws.append(_with_loss(baseline.measure(lab), plan.loss))
            if plan.round_trip is not None:
                progress(f"round {number} of {plan.rounds}: round trips losing {plan.loss:.2%}")
                trips.append(_with_loss(measure_round_trip(lab, plan.round_trip, pins), plan.loss))
    best = merged(lossy, rate)
    best["ratios"] = {"lossless": ratio(lossy, lossless, rate)}
    found = [merged(lossless, rate), best, merged(raws, rate)]
    return [*found, merged(trips, p99)] if trips else found


def _lose(lab: Lab, loss: float, spec: StreamSpec) -> None:
    """Every port toward a host loses this fraction of the datagrams, each by itself; over LBT-RU control, too.

    A lossless stream pays for the ports' program, too: it runs on the publisher's processor, and is no cost of loss.
    """
    for host in lab.hosts:
        lab.port(host.number).set(loss=loss, counts=True, unicast=spec.transport != "lbtrm")


def _with_loss(found: Result, loss: float, **more: float | int | None) -> Result:
    return {**found, "detail": {**found["detail"], "loss": loss, **more}}


def _dropped(lab: Lab, spec: StreamSpec) -> int:
    return sum(lab.port(number).counters().dropped for number in range(1, spec.receivers + 1))


def _measure_lossy(lab: Lab, spec: StreamSpec, loss: float, pins: Pins) -> Result:
    """One stream, and what the switch says it lost of it."""
    before = _dropped(lab, spec)
    found = measure_stream(lab, spec, pins)
    dropped = _dropped(lab, spec) - before
    naks = found["detail"]["naks_sent"]
    per_dropped = naks / dropped if dropped else None
    return _with_loss(found, loss, datagrams_dropped=dropped, naks_per_datagram_dropped=per_dropped)
