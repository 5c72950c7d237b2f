"""Topic resolution at scale, through daemons on hosts without multicast (issue 29)."""

from __future__ import annotations

from umstack.bench.resolution import ResolutionPlan, measure


def test_many_topics_of_many_contexts_are_resolved_through_two_daemons() -> None:
    """Issue 29: every context knows every topic and resolves those it receives, with default schedules and limits.

    The size is a tenth of what `umstack bench resolution` measures, because all contexts share this machine.
    """
    plan = ResolutionPlan(topics=1000, contexts=20, hosts=4, daemons=2, seconds=30)
    found = measure(plan, print)["detail"]
    assert found["resolved_seconds"] is not None, found
    assert found["unresolved"] == 0
    assert found["least_known"] == 950
    counters = found["counters"]
    assert counters["tr_rcv_topics"] == counters["tr_src_topics"] == 1000
    assert counters["tr_dgrams_dropped_malformed"] == counters["tr_dgrams_send_failed"] == 0
    # With a datagram for each new topic, as it was, this would be more than the number of advertisements.
    assert counters["tr_dgrams_sent"] < counters["tr_advertisements_sent"] / 3
    assert [daemon["clients"] for daemon in found["daemons"]] == [20, 20]
