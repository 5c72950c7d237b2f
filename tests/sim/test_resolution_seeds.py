"""Topic resolution under attack, by seed: receivers find sources, and tables and rates stay within their
bounds.
"""

from __future__ import annotations

import json
import random

import pytest
from click.testing import CliRunner

from umstack.cli.sim import command
from umstack.sim.resolution import ResolutionCanary, run_resolution_seed, run_resolution_seeds

RANDOM_SEEDS = 80

# Seeds that found a mistake once, each with the mistake.
REGRESSIONS = {
    134369209792111: "forged sources kept a full table, which refused a source advertised just before it was emptied",
}


def test_random_seeds_of_topic_resolution() -> None:
    """UX-14, UX-15, UX-16, UX-5: in spite of forged, replayed and malformed records, every source is found in bounded
    time."""
    first = random.SystemRandom().randrange(2**48)
    print(f"first seed: {first}")
    results = list(run_resolution_seeds(first, RANDOM_SEEDS))
    failed = [result for result in results if result.violation]
    assert not failed, "\n".join(f"{result.violation}\n  {result.replay}" for result in failed)
    assert sum(result.forged for result in results) > 100 * RANDOM_SEEDS
    assert sum(result.found for result in results) > 10 * RANDOM_SEEDS


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_seeds_that_once_failed(seed: int) -> None:
    """UX-14: seeds that found a mistake stay in the suite."""
    assert run_resolution_seed(seed).violation == ""


@pytest.mark.parametrize(
    "canary", [canary for canary in ResolutionCanary if canary is not ResolutionCanary.NONE]
)
def test_a_removed_bound_is_detected(canary: ResolutionCanary) -> None:
    """The checkers detect a missing rate limit, an unbounded cache, and unreported ended sessions."""
    assert any(result.violation for result in run_resolution_seeds(1, 60, canary))


def test_runs_of_topic_resolution_are_deterministic() -> None:
    """The same seed gives the same run; another seed gives another run."""
    digests = [run_resolution_seed(seed).digest for seed in (1, 2, 3)]
    assert digests == [run_resolution_seed(seed).digest for seed in (1, 2, 3)]
    assert len(set(digests)) == 3


def test_the_command_runs_topic_resolution() -> None:
    """`umstack sim --resolution` runs seeds and explains invalid options."""
    done = CliRunner().invoke(command, ["--resolution", "--seeds", "3", "--first-seed", "1", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["seeds"], report["first_seed"], report["failed"]) == (3, 1, [])
    assert report["datagrams_forged"] > 0
    assert CliRunner().invoke(command, ["--resolution", "--adversary"]).exit_code == 2
