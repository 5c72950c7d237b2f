"""Recovery times on lossy paths, compared with their lower bound: a part of `umstack sim --recovery-table`."""

from __future__ import annotations

import pytest

from umstack.sim import MS, US
from umstack.sim.recovery_table import RecoveryCase, measure_recovery

DELAYS = (50 * US, 1 * MS, 20 * MS)
WITHIN_LIMITS = [
    RecoveryCase(delay, loss, 1) for delay in DELAYS for loss in (1_000, 10_000, 50_000, 100_000)
]
WITHIN_LIMITS += [RecoveryCase(delay, 10_000, 1, has_bursts=True) for delay in DELAYS]
WITHIN_LIMITS += [RecoveryCase(delay, loss, 3) for delay in DELAYS for loss in (10_000, 20_000)]


@pytest.mark.parametrize("case", WITHIN_LIMITS, ids=lambda case: case.name)
def test_a_loss_costs_about_one_round_trip_per_lost_try(case: RecoveryCase) -> None:
    """UM-116, UM-122, UM-129: recovery takes at most 1.3 times its bound at the median and twice at the 99th
    percentile, with at most 1.1 repairs per needed one.
    """
    result = measure_recovery(case)
    assert result.losses >= 40
    assert not result.misses, result


def test_the_bound_counts_the_repairs_that_were_lost() -> None:
    """With a twentieth lost, more than one in a hundred losses loses its repair, too, so the bound is two trips."""
    result = measure_recovery(RecoveryCase(1 * MS, 50_000, 1))
    assert (result.median_bound, result.p99_bound) == (1.0, 2.0)
    assert result.median == pytest.approx(1.0)
    assert result.p99 >= 2.0
    assert result.naks_per_loss > 1.0
