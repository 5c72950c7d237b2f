"""Recovery times on lossy paths, compared with their lower bound: a part of `umstack sim --recovery-table`."""

from __future__ import annotations

import pytest

from umstack.sim import MS
from umstack.sim.recovery_table import RecoveryCase, measure_recovery, recovery_cases


def is_part(case: RecoveryCase) -> bool:
    """Return true if the case is a part of this test."""
    return case.receivers < 300 or case.loss_ppm == 20_000


@pytest.mark.parametrize("case", list(filter(is_part, recovery_cases())), ids=lambda case: case.name)
def test_a_loss_costs_about_one_round_trip_per_lost_try(case: RecoveryCase) -> None:
    """UM-116, UM-122, UM-129: recovery takes at most 1.3 times its bound at the median and twice at the 99th
    percentile, with at most 1.1 repairs per needed one.
    """
    result = measure_recovery(case)
    assert result.losses >= 40
    assert not result.misses, result


def test_the_bound_counts_the_repairs_that_were_lost() -> None:
    """Of ten losses at a tenth, one loses its repair, too: it takes two round trips, which is close to its bound."""
    result = measure_recovery(RecoveryCase(1 * MS, 100_000, 1))
    assert result.median == pytest.approx(1.0)
    assert result.p99 > 2.0 > result.p99_of_bound
    assert result.naks_per_loss > 1.05
