"""Capture points whose clocks differ: latency, recovery times and suggestions are those of exact clocks."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import polars as pl
import pytest

pytest.importorskip("pyarrow")

from tests.story import MS, US, Story
from tests.unit.test_analysis import ONE, START, rows
from umstack.analysis.tables import Tables, tables_of
from umstack.facts.facts import facts_of_packets

DOWN_NS, UP_NS = 250 * US, 150 * US
STEP_NS = 700 * US
"""Some milliseconds have two datagrams, by any clock."""
SEED = random.SystemRandom().randrange(2**32)


def two_points(clock: Callable[[int], int], *, has_naks: bool = True) -> Tables:
    """A source, a point near it with an exact clock, and one near the receiver with another."""
    chance = random.Random(SEED)
    near, far = Story("near"), Story("far")

    def down(send: Callable[[Story, int], None], at_ns: int) -> None:
        send(near, at_ns)
        send(far, clock(at_ns + DOWN_NS + chance.randrange(20 * US)))

    for sqn in range(1, 5_001):
        down(partial(Story.data, sqn=sqn), START + sqn * STEP_NS)
        if sqn % 50 == 0 and has_naks:
            nak_ns = START + sqn * STEP_NS + 2 * MS
            far.nak(clock(nak_ns), ONE, sqn)
            near.nak(nak_ns + UP_NS + chance.randrange(20 * US), ONE, sqn)
            down(partial(Story.again, sqn=sqn), nak_ns + 500 * US)
    return tables_of(facts_of_packets([near.batch(), far.batch()]))


@pytest.mark.parametrize(
    ("offset_ns", "drift"),
    [
        (0, 0.0),
        (30 * MS, 0.0),
        (-30 * MS, 0.0),
        (3_000 * MS, 0.0),
        (0, 2e-3),
        (-40 * MS, -2e-3),
        (80 * US, 0.0),
    ],
)
def test_clocks_are_compared_in_both_directions(offset_ns: int, drift: float) -> None:
    """Data go down, NAKs go up: the offset and the drift are found within the uncertainty that is reported."""
    print("seed", SEED)
    tables = two_points(lambda at_ns: at_ns + offset_ns + round((at_ns - START) * drift))
    [way] = rows(tables["latency"])
    assert (way["from_point"], way["to_point"], way["negative"]) == ("near", "far", 0)
    is_wrong = drift != 0 or abs(offset_ns) > DOWN_NS
    assert way["is_corrected"] == is_wrong
    assert way["uncertainty_ns"] <= 250 * US
    at_start_ns = way["offset_ns"]
    assert abs(at_start_ns - offset_ns) <= way["uncertainty_ns"] + 50 * US
    assert way["drift"] == pytest.approx(drift, abs=2e-5)
    if is_wrong:
        assert abs(way["latency_p50"] - DOWN_NS) <= way["uncertainty_ns"] + 50 * US
    [recovered] = rows(tables["recovery_latency"])
    assert abs(recovered["request_p50"] - 760 * US) <= 20 * US
    exact = two_points(lambda at_ns: at_ns)["suggestions"].select("option", "value")
    assert not len(suggested_otherwise(tables, exact))


def suggested_otherwise(tables: Tables, exact: pl.DataFrame) -> pl.DataFrame:
    """The suggestions that differ from those of exact clocks by more than a tenth and a millisecond."""
    both = tables["suggestions"].join(exact, "option", "full", suffix="_exact")
    apart = (pl.col("value") - pl.col("value_exact")).abs()
    limit = pl.max_horizontal(pl.col("value_exact") * 0.1, pl.lit(1.0))
    return both.filter(pl.coalesce(apart > limit, pl.lit(True)))


def test_without_naks_nothing_is_corrected() -> None:
    """In one direction a slow path looks like a clock that is ahead: the columns of the offset are null."""
    [way] = rows(two_points(lambda at_ns: at_ns + 30 * MS, has_naks=False)["latency"])
    assert (way["offset_ns"], way["uncertainty_ns"], way["is_corrected"]) == (None, None, None)
    assert way["latency_min"] >= 30 * MS
