"""The tables of a report, of facts: every analysis of docs/analysis.md by its name."""

from __future__ import annotations

import polars as pl

from umstack.facts import loss, numbering, traffic
from umstack.facts.facts import Facts
from umstack.facts.suggestions import suggestions


def tables_of(facts: Facts, mtu: int = 1500) -> dict[str, pl.DataFrame]:
    """All tables. `latency` is there only where two points of capture saw something."""
    known = numbering.references(facts)
    everything = numbering.seen(facts, known)
    rare = loss.rare(facts, known)
    covered = numbering.coverage(everything)
    found = traffic.sessions(facts, covered)
    lost = loss.losses(rare, everything)
    made = {
        "topics": traffic.topics(facts),
        "sessions": found,
        "losses": lost,
        "repairs": loss.repairs(rare),
        "coverage": covered,
        "nak_storms": loss.nak_storms(rare),
        "rates": facts.rates,
        "datagram_sizes": facts.sizes,
        "ip_fragments": facts.fragments,
        "remarks": facts.remarks,
        "incidents": loss.incidents(lost, found, everything),
        "gaps": numbering.gaps(everything),
        "recovery_latency": loss.recovery_latency(lost),
        "recovery_histogram": loss.recovery_histogram(lost),
        "rate_summary": traffic.rate_summary(facts.rates),
        "bursts": traffic.bursts(facts.rates),
        "duplicates": traffic.duplicates(covered),
        "datagram_fill": traffic.datagram_fill(facts.sizes, mtu),
        "fill_histogram": traffic.fill_histogram(facts.sizes, mtu),
    }
    if len({one.point for one in everything if len(one.sqns)}) > 1:
        made["latency"] = traffic.latency(everything)
    made["suggestions"] = suggestions(lost, made["incidents"], made["recovery_latency"], facts.rates)
    return made
