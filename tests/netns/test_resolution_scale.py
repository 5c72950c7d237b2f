"""Topic resolution at scale, through daemons on hosts without multicast."""

from __future__ import annotations

from tests.bench.measure_resolution import ResolutionPlan, measure


def test_many_topics_of_many_contexts_are_resolved_through_two_daemons() -> None:
    """Every context discovers every topic and resolves those it receives, with default schedules and limits.

    The size is a tenth of the measured benchmark, because all contexts share this machine.
    """
    plan = ResolutionPlan(topics=1000, contexts=20, hosts=4, daemons=2, seconds=30)
    found = measure(plan, print)["detail"]
    assert found["resolved_seconds"] is not None, found
    assert found["unresolved"] == 0
    assert 950 <= found["least_known"] <= 1000, "its own a context hears of a busy daemon only"
    counters = found["counters"]
    assert counters["tr_rcv_topics"] == counters["tr_src_topics"] == 1000
    assert counters["tr_dgrams_dropped_malformed"] == counters["tr_dgrams_send_failed"] == 0
    # With one datagram for each new topic this would exceed the number of advertisements.
    assert counters["tr_dgrams_sent"] < counters["tr_advertisements_sent"] / 3
    assert [daemon["clients"] for daemon in found["daemons"]] == [20, 20]


def test_what_resolution_costs_on_a_network_of_many_topics() -> None:
    """Sixty contexts with six thousand topics, all discovered by each context, need less than 9 s of
    processor time in total.
    """
    plan = ResolutionPlan(topics=6000, contexts=60, hosts=6, seconds=60)
    measured = measure(plan, print)
    found, cpu_seconds = measured["detail"], measured["cpu_seconds"]
    assert found["resolved_seconds"] is not None, found
    assert found["unresolved"] == 0
    assert cpu_seconds["contexts"] + cpu_seconds["daemons"] < 9, (cpu_seconds, found)
