"""Issue 29: resolution domains and interest are visible in `umstack stat`; a report that lies of them is refused."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from click.testing import CliRunner

from tests.unit.loopback import SHARED, open_context
from tests.waiting import wait_for
from umstack.cli import command as umstack
from umstack.cli.stat import _resolution
from umstack.telemetry import report_check
from umstack.telemetry.report_check import BadReport


def test_stat_says_where_and_for_what_a_context_resolves() -> None:
    """`umstack stat PID`: where it resolves, what it advertises and queries, and what of that has no source."""
    with open_context(statistics=True) as context:
        context.source("reported/one", **SHARED)
        context.receiver("reported/one")
        context.receiver("reported/nobody")
        wait_for(
            lambda: context.stats()["resolution"]["unresolved"] == ["reported/nobody"],
            "the one with a source",
        )
        shown = CliRunner().invoke(umstack, ["stat", str(os.getpid())])
        told = " ".join(shown.stdout.split())
        assert "topic resolution by multicast" in told
        assert "advertised reported/one" in told
        assert "unresolved reported/nobody" in told
        as_json = CliRunner().invoke(umstack, ["stat", str(os.getpid()), "--json"])
        reports = json.loads(as_json.stdout)["contexts"]
        assert any(one["resolution"]["queried"] == ["reported/one", "reported/nobody"] for one in reports)


def test_daemons_are_told_by_what_they_do() -> None:
    """The one that is used, one that answers and one that does not; many topics are cut."""
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
def test_a_report_that_is_forged_is_refused(forged: Any) -> None:
    """What another process says of its resolution has the shape that ours has."""
    with pytest.raises(BadReport):
        report_check._resolution(forged)
    report_check._resolution(None)
