"""Random worlds against the checkers: UX-22, and every requirement ffi/sim's checkers name."""

from __future__ import annotations

import json
import random

import pytest
from click.testing import CliRunner

from umstack.cli.sim import command
from umstack.sim import Canary, run_seed, run_seeds, trace_seed

RANDOM_SEEDS = 1000

# Seeds that found a mistake once, and what it was.
REGRESSIONS = {
    10: "a limiter's slice that was over kept the session's timer in the past",
    29: "a controller began with a datagram recovered from before it was mapped, so all in between looked lost",
    114: "a claim made before the path shrank",
    161: "as 29, in arrival order",
    314: "a receiver whose goodbye was lost holds the window until it is forgotten",
    1798: "a gap that had been filled was given up, and a whole message dropped without a word",
    3217: "fragments held while starting were not counted when the reorder buffer was full",
    3314: "a message that reached behind the gap given up was dropped without a word",
    10390: "a gap was noted twice when a TSNI had told of it and the store was full",
    17126: "as 10390, in sequence order",
}


def test_random_seeds() -> None:
    """Whatever the seed: payloads right, nothing twice, nothing out of order, no loss untold, and then rest (UX-22)."""
    first = random.SystemRandom().randrange(2**48)
    print(f"first seed: {first}")
    failed = [result for result in run_seeds(first, RANDOM_SEEDS) if result.violation]
    assert not failed, "\n".join(f"{result.violation}\n  {result.replay}" for result in failed)


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_seeds_that_once_failed(seed: int) -> None:
    """Seeds that found mistakes stay in the suite."""
    assert run_seed(seed).violation == ""


@pytest.mark.parametrize("canary", [canary for canary in Canary if canary is not Canary.NONE])
def test_a_planted_mistake_is_found(canary: Canary) -> None:
    """The checkers see: a network that changes payloads, rows lost or doubled, a receiver left behind."""
    seeds = range(1, 21)
    found = [seed for seed in seeds if run_seed(seed, canary).violation]
    assert len(found) > len(seeds) / 4


def test_a_seed_is_a_run() -> None:
    """Twice the same seed is twice the same run, to the last nanosecond; another seed is another run."""
    digests = [run_seed(seed).digest for seed in (1, 2, 3)]
    assert digests == [run_seed(seed).digest for seed in (1, 2, 3)]
    assert len(set(digests)) == 3
    result, world = trace_seed(2)
    with world:
        assert result.digest == digests[1]
        assert len(world.trace()) > result.datagrams_sent
        assert sum(row.kind == 0 for row in world.rows()) == result.messages_delivered


def test_the_command_reports_seeds_as_json() -> None:
    """`umstack sim --json` prints one object, exits 0 when everything held."""
    done = CliRunner().invoke(command, ["--seeds", "20", "--first-seed", "1", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["seeds"], report["first_seed"], report["failed"]) == (20, 1, [])
    assert report["totals"]["messages_delivered"] > 0


def test_the_command_names_the_seed_that_failed() -> None:
    """A failure exits 1 and says how to run that seed again; doing so fails the same way."""
    done = CliRunner().invoke(
        command, ["--seeds", "20", "--first-seed", "1", "--canary", "lose-row", "--json"]
    )
    assert done.exit_code == 1
    failure = json.loads(done.stdout)["failed"][0]
    assert failure["replay"] == f"umstack sim --seed {failure['seed']} --trace --canary=lose-row"
    again = CliRunner().invoke(command, failure["replay"].split()[2:])
    assert again.exit_code == 1
    assert failure["violation"] in again.output
