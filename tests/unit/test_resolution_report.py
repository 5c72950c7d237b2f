"""`umstack stat` shows resolution domains and interest; a forged report is refused."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from click.testing import CliRunner

from tests.unit.loopback import SHARED, open_context, write_counters
from tests.waiting import wait_for
from umstack.cli import command as umstack
from umstack.cli.stat import _resolution
from umstack.telemetry import report_check
from umstack.telemetry.report_check import BadReport


def test_stat_shows_resolvers_and_topics() -> None:
    """`umstack stat PID` shows the resolvers, the advertised and queried topics, and the topics without a source."""
    with open_context(statistics=True) as context:
        context.source("reported/one", **SHARED)
        context.receiver("reported/one")
        context.receiver("reported/nobody")
        wait_for(
            lambda: context.stats()["resolution"]["unresolved"] == ["reported/nobody"],
            "the one with a source",
        )
        write_counters(context)
        shown = CliRunner().invoke(umstack, ["stat", str(os.getpid())])
        printed = " ".join(shown.stdout.split())
        assert "topic resolution by multicast" in printed
        assert "advertised reported/one" in printed
        assert "unresolved reported/nobody" in printed
        as_json = CliRunner().invoke(umstack, ["stat", str(os.getpid()), "--json"])
        reports = json.loads(as_json.stdout)["contexts"]
        assert any(one["resolution"]["queried"] == ["reported/one", "reported/nobody"] for one in reports)


def test_daemons_are_listed_by_state() -> None:
    """The daemon in use, one that answers and one that does not; a long list of topics is truncated."""
    shown = _resolution(
        {
            "by": "daemons",
            "daemons": [
                {"address": "10.1.0.1:1", "answers": False, "used": False},
                {"address": "10.1.0.2:1", "answers": True, "used": True},
                {"address": "10.1.0.3:1", "answers": True, "used": False},
            ],
            "advertised": [f"t{number}" for number in range(12)],
        }
    )
    assert shown["daemon 10.1.0.1:1"] == "does not answer"
    assert shown["daemon 10.1.0.2:1"] == "used"
    assert shown["daemon 10.1.0.3:1"] == "answers"
    assert shown["advertised"].endswith("t9, ... (12 listed)")


@pytest.mark.parametrize(
    "forged",
    [
        7,
        {"by": 7},
        {"advertised": "one"},
        {"queried": [7]},
        {"daemons": 7},
        {"daemons": ["10.1.0.1"]},
        {"daemons": [{"answers": True}]},
        {"daemons": [{"address": 7}]},
    ],
)
def test_a_forged_report_is_refused(forged: Any) -> None:
    """The resolution report of another process must have the same shape as our own."""
    with pytest.raises(BadReport):
        report_check._resolution(forged)
    report_check._resolution(None)
