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
    """Sixty contexts with six thousand topics, all discovered by each context: a record received costs at most a
    tenth of what it costs to make a source or a receiver, and a topic is advertised and queried at most 100 times.

    A slower machine repeats more records until it has handled them all, so the total time proves nothing by itself.
    """
    plan = ResolutionPlan(topics=6000, contexts=60, hosts=6, seconds=120)
    measured = measure(plan, print)
    found, cpu_seconds = measured["detail"], measured["cpu_seconds"]
    assert found["resolved_seconds"] is not None, found
    assert found["unresolved"] == 0
    counters = found["counters"]
    records = counters["tr_advertisements_rcved"] + counters["tr_queries_rcved"]
    assert records > plan.topics * (plan.contexts - 1)
    per_record = (cpu_seconds["contexts"] + cpu_seconds["daemons"] - cpu_seconds["making"]) / records
    per_object = cpu_seconds["making"] / (2 * plan.topics)
    print(f"{1e6 * per_record:.2f} us for a record, {1e6 * per_object:.1f} us for a source or receiver")
    assert per_record < per_object / 10, (cpu_seconds, found)
    assert max(counters["tr_advertisements_sent"], counters["tr_queries_sent"]) < 100 * plan.topics, found
