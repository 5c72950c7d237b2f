"""The protocol of persistence: sources, readers and Stores under random faults, on simulated disks and connections.

`python -m tests.store_simulation FIRST COUNT` runs more seeds.
"""

from __future__ import annotations

import itertools
import random

import pytest

from tests.store_simulation import Failed, simulate
from umstack.persistence.messages import extended
from umstack.persistence.source_side import StabilityRule

_SEEDS = 15
_PACED_SEEDS = 9
_WRAP = (1 << 32) - 100


@pytest.mark.parametrize("first_sqn", [0, _WRAP])
@pytest.mark.parametrize("rule", list(StabilityRule))
def test_stable_messages_survive_every_fault(rule: StabilityRule, first_sqn: int) -> None:
    """Stable messages are readable and equal, numbers are not used twice, and everything becomes stable at the end.

    UP-6, UP-16, UP-23, UP-24, UP-51, UP-55, UP-58, UP-59, W16.
    """
    first = random.SystemRandom().randrange(1 << 31)
    print(f"seeds from {first}")
    runs = [simulate(seed, rule=rule, first_sqn=first_sqn) for seed in range(first, first + _SEEDS)]
    assert sum(len(run.stable) for run in runs) > 50 * _SEEDS
    assert sum(run.read_count for run in runs) > 50 * _SEEDS
    assert sum(run.forged_count for run in runs) > 0
    assert sum(run.life for run in runs) > _SEEDS


@pytest.mark.parametrize("first_sqn", [0, _WRAP])
def test_receivers_set_the_pace_under_every_fault(first_sqn: int) -> None:
    """No message is dropped that a registered blocking receiver wants, and none is lost that a Store has for it.

    No Store keeps more than its limit. A source that is blocked by receivers that ended goes on after their lifetime.
    UP-87, UP-88, UP-90, UP-91.
    """
    first = random.SystemRandom().randrange(1 << 31)
    print(f"seeds from {first}")
    rules = itertools.cycle(StabilityRule)
    runs = [
        simulate(seed, rule=next(rules), first_sqn=first_sqn, is_paced=True)
        for seed in range(first, first + _PACED_SEEDS)
    ]
    assert sum(run.blocked_count for run in runs) > _PACED_SEEDS
    for at in range(2):
        assert sum(run.receivers[at].delivered_count for run in runs) > 50 * _PACED_SEEDS


@pytest.mark.parametrize(
    ("seed", "rule", "first_sqn"),
    [
        (
            39,
            StabilityRule.QUORUM,
            _WRAP,
        ),  # one Store wiped, one late, one away: stable numbers were used again
        (129, StabilityRule.QUORUM, _WRAP),  # an empty Store got its first message from behind the wrap
        (158, StabilityRule.ALL, 0),  # a source that ended at once kept its successor from registering
        (336, StabilityRule.QUORUM, 0),  # a Store that was away had messages of a former life
    ],
)
def test_situations_that_failed(seed: int, rule: StabilityRule, first_sqn: int) -> None:
    """Seeds that found faults pass."""
    simulate(seed, rule=rule, first_sqn=first_sqn)


def _simulate_many(first: int, count: int) -> None:
    for seed in range(first, first + count):
        simulate(seed, lies=True)


def test_disks_that_lie_are_noticed() -> None:
    """The check fails if Stores acknowledge messages that their disks do not have."""
    with pytest.raises(Failed, match="stable and in no Store"):
        _simulate_many(0, 20)


def test_numbers_are_extended_to_the_nearest() -> None:
    """Across the wrap in both directions, and never below 0."""
    assert extended(0xFFFFFF9C, 0) == 0xFFFFFF9C
    assert extended(5, 0xFFFFFFFE) == (1 << 32) + 5
    assert extended(0xFFFFFFFE, (1 << 32) + 5) == 0xFFFFFFFE
