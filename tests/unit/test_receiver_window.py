"""The flow control window that a receiver reports: its documented default, and values set by the user (AE-18)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.loopback import PORTS, open_context
from tests.waiting import SECONDS, wait_for

DOCUMENTED = 2097152
OPTIONS_PAGE = Path(__file__).resolve().parents[2] / "docs" / "options.md"


@pytest.mark.parametrize(
    ("options", "window_bytes"),
    [({}, DOCUMENTED), ({"flow_control_receiver_window": 131072}, 131072)],
)
def test_a_receiver_reports_the_default_window_or_the_one_set(
    options: dict[str, int], window_bytes: int
) -> None:
    """AE-18: a receiver with an empty queue offers the whole window, and the source may send that much ahead."""
    with open_context(**PORTS) as publisher, open_context(**PORTS) as subscriber:
        source = publisher.source("window", flow_control="min")
        subscriber.receiver("window", **options)
        source.wait_connected(timeout=SECONDS)

        def reported() -> bool:
            sessions = subscriber.stats()["receiver_transports"]
            return bool(sessions) and sessions[0]["rcv_window"] == window_bytes

        wait_for(reported, f"a window of {window_bytes}")
        ahead = source.stats()["snd_lmt"] - source.stats()["snd_pos"]
        assert 0 < ahead <= window_bytes


def test_the_default_and_what_it_is_measured_against_are_documented() -> None:
    """AE-18: the options page has the default, and compares it with 128 KiB or half a term."""
    row = next(
        line for line in OPTIONS_PAGE.read_text().splitlines() if "flow_control_receiver_window`" in line
    )
    cells = [cell.strip() for cell in row.split("|")]
    assert str(DOCUMENTED) in cells
    assert "128 KiB, or half a term" in row
