"""The timers in force, and their reasons: from the options through the core to the texts of `umstack stat`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.waiting import wait_for
from umstack import Context
from umstack._core import lib
from umstack._engine.receiver_sessions import receiver_session_config
from umstack._engine.transport_address import LbtrmAddress
from umstack.config import Config
from umstack.telemetry.timers import receiver_timers, source_timers

CORE = SimpleNamespace(datagram_bytes=1472, receiver_id=1, options=Config().context_options())
ADDRESS = LbtrmAddress("127.0.0.1", "224.10.10.10", 1, 14400, 14390)
SOURCE_ALL = lib.UM_ADAPTIVE_IGNORE | lib.UM_ADAPTIVE_SM | lib.UM_ADAPTIVE_REPORTS


@pytest.mark.parametrize(
    ("options", "window_bytes"),
    [
        ({}, 2097152),
        ({"recovery_timing": "fixed"}, 0),
        ({"recovery_timing": "fixed", "flow_control_receiver_window": 65536}, 65536),
    ],
)
def test_with_fixed_timing_status_messages_are_asked_for(
    options: dict[str, str | int], window_bytes: int
) -> None:
    """UM-74, UM-76: with fixed timing a receiver sends status messages only if its window is set."""
    receiver = Config().receiver_options(**options)
    config = receiver_session_config(ADDRESS, receiver, CORE)  # type: ignore[arg-type]
    assert config.window_bytes == window_bytes
    assert config.status_maximum_interval_ns == 30_000_000_000


@pytest.mark.parametrize(
    ("options", "measured"),
    [
        ({}, lib.UM_ADAPTIVE_INITIAL | lib.UM_ADAPTIVE_BACKOFF | lib.UM_ADAPTIVE_SUPPRESS),
        ({"recovery_timing": "fixed"}, 0),
        (
            {"transport_lbtrm_nak_initial_backoff_interval": 5},
            lib.UM_ADAPTIVE_BACKOFF | lib.UM_ADAPTIVE_SUPPRESS,
        ),
        (
            {"transport_lbtrm_nak_backoff_interval": 200, "transport_lbtrm_nak_suppress_interval": 0},
            lib.UM_ADAPTIVE_INITIAL,
        ),
        (
            {"recovery_timing": "adaptive", "transport_lbtrm_nak_generation_interval": 5000},
            lib.UM_ADAPTIVE_INITIAL | lib.UM_ADAPTIVE_BACKOFF | lib.UM_ADAPTIVE_SUPPRESS,
        ),
    ],
)
def test_an_option_that_is_set_is_used(options: dict[str, str | int], measured: int) -> None:
    """UM-117, UM-122, UM-131: each NAK timer is measured unless its option is set, even if to the default."""
    chosen = Config().receiver_options(**options)
    assert _receiver_bits(chosen) == measured
    text = "\n".join(f"receiver {name} {value}" for name, value in options.items())
    assert _receiver_bits(Config.parse(text).receiver_options()) == measured


def _receiver_bits(options: object) -> int:
    return int(receiver_session_config(ADDRESS, options, CORE).adaptive_timers)  # type: ignore[arg-type]


def test_a_receiver_reports_its_timers_and_reasons() -> None:
    """The texts contain the value, whether it was measured, reported, assumed or configured, and its inputs."""
    counters = {
        "timers_adaptive": lib.UM_ADAPTIVE_INITIAL | lib.UM_ADAPTIVE_SUPPRESS,
        "group_receivers": 3,
        "round_trip": 0.07,
        "round_trip_variance": 0.002,
        "round_trip_samples": 9,
        "reordering": 1.5,
        "nak_initial_backoff": 0.13,
        "nak_backoff": 200.0,
        "nak_suppress": 0.11,
    }
    assert receiver_timers(counters) == {
        "first NAK after": "up to 0.130 ms: 3 receivers, round trip 0.070 ms (+- 0.002), reordering 1.500 ms",
        "next NAK after": "200 ms: configured",
        "NAK after an NCF": "0.110 ms: round trip 0.070 ms (+- 0.002), doubling",
    }
    timers = receiver_timers({**counters, "round_trip_samples": 0, "reordering": 0.0})
    assert (
        timers["first NAK after"]
        == "up to 0.130 ms: 3 receivers, round trip 0.070 ms (reported by the source)"
    )
    assumed = receiver_timers({**counters, "round_trip_samples": 0, "group_receivers": 0})
    assert "receivers not counted yet, round trip 0.070 ms (assumed)" in assumed["first NAK after"]


def test_a_source_reports_its_timers_and_reasons() -> None:
    """The texts of the source's timers contain the same."""
    counters = {
        "timers_adaptive": lib.UM_ADAPTIVE_IGNORE,
        "group_receivers": 1,
        "group_round_trip": 0.2,
        "ignore_interval": 0.2,
        "sm_first_interval": 60.0,
    }
    assert source_timers(counters) == {
        "NAKs ignored for": "0.200 ms: 1 receiver, longest round trip 0.200 ms",
        "session message after": "60 ms: configured",
    }
    assert (
        "no round trip known yet" in source_timers({**counters, "group_round_trip": 0.0})["NAKs ignored for"]
    )


@pytest.mark.parametrize(("timing", "is_reported"), [("adaptive", True), ("fixed", False)])
def test_receivers_learn_their_number(timing: str, is_reported: bool) -> None:
    """The statistics of contexts show the timers in force; with fixed timers no report is sent."""
    with Context("lo") as publisher, Context("lo") as subscriber:
        receiver = subscriber.receiver("timers", recovery_timing=timing, flow_control_receiver_window=2097152)
        source = publisher.source("timers", recovery_timing=timing, flow_control="min")
        source.wait_connected(timeout=10)
        source.send(b"x", flush=True)
        receiver.poll(1, 10)
        wait_for(lambda: source.stats()["status_messages_received"] >= 4, "status messages")
        wait_for(
            lambda: subscriber.stats()["receiver_transports"][0]["group_receivers"] == is_reported, "a report"
        )
        (heard,) = subscriber.stats()["receiver_transports"]
        (sent,) = publisher.stats()["source_transports"]
        assert (
            sent["group_reports_sent"] == sent["group_receivers"] == heard["group_receivers"] == is_reported
        )
        assert sent["timers_adaptive"] == SOURCE_ALL * is_reported
        texts = {**receiver_timers(heard), **source_timers(sent)}.values()
        assert all(text.endswith("configured") is not is_reported for text in texts)
