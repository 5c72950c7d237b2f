"""Where a capture sees what goes out: the choice, on facts made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from umstack.capture.writing.egress_way import choose
from umstack.capture.writing.errors import CaptureError
from umstack_xdp.egress_facts import EgressFacts
from umstack_xdp.facts import Unknown

GOOD = EgressFacts(
    segments_udp=False,
    programs=0,
    has_filters=False,
    disciplines=("fq_codel", "mq"),
    missing=(),
)
UNKNOWN = Unknown("no information")


def test_tc_is_chosen_where_it_shows_the_same_and_saves_something() -> None:
    """The sender is spared where nothing speaks against it."""
    choice = choose("auto", GOOD, filter_fits=True)
    assert (choice.way, choice.is_costly) == ("tc", False)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"programs": 1}, "1 other programs"),
        ({"has_filters": True}, "a filter at tc egress"),
        ({"disciplines": ("netem",)}, "netem"),
        ({"disciplines": ("mq", "tbf")}, "discipline tbf may"),
        ({"missing": ("CAP_BPF",), "programs": UNKNOWN}, "requires CAP_BPF"),
        ({"segments_udp": UNKNOWN}, "no information"),
        ({"programs": UNKNOWN}, "no information"),
        ({"has_filters": UNKNOWN}, "no information"),
        ({"disciplines": UNKNOWN}, "no information"),
    ],
)
def test_each_doubt_keeps_to_the_device(change: dict[str, Any], reason: str) -> None:
    """A way that may show other frames than those sent is not chosen, and the reason is reported."""
    choice = choose("auto", replace(GOOD, **change), filter_fits=True)
    assert (choice.way, choice.is_costly) == ("device", True)
    assert reason in choice.reason


def test_a_device_that_cuts_runs_itself_is_left_to_it() -> None:
    """Runs are seen whole there, so nothing is saved, whatever else there is."""
    choice = choose("auto", replace(GOOD, segments_udp=True, programs=3), filter_fits=False)
    assert (choice.way, choice.is_costly) == ("device", False)


def test_a_filter_without_space_keeps_to_the_device() -> None:
    """The tap takes so many ranges."""
    assert choose("auto", GOOD, filter_fits=False).way == "device"


def test_all_reasons_are_reported() -> None:
    """All obstacles are reported at once, so that the user does not find them one by one."""
    choice = choose("auto", replace(GOOD, has_filters=True, programs=2), filter_fits=True)
    assert "filter" in choice.reason
    assert "2 other programs" in choice.reason


def test_asked_for_tc_is_tc_though_there_are_doubts() -> None:
    """CLI rule: a forced mode is not second-guessed."""
    doubtful = replace(GOOD, programs=1, has_filters=True, segments_udp=True)
    assert choose("tc", doubtful, filter_fits=True).way == "tc"


def test_asked_for_tc_fails_with_what_is_missing() -> None:
    """A forced way that is not available fails with the reason and the remedy."""
    with pytest.raises(CaptureError, match=r"CAP_BPF, CAP_NET_ADMIN.*few ranges.*--egress auto"):
        choose("tc", replace(GOOD, missing=("CAP_BPF", "CAP_NET_ADMIN")), filter_fits=False)


def test_asked_for_device_is_device() -> None:
    """CLI rule: a forced mode is not second-guessed."""
    choice = choose("device", GOOD, filter_fits=True)
    assert (choice.way, choice.is_costly) == ("device", False)
