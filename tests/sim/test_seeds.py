"""Random worlds against the checkers: UX-22, and every requirement ffi/sim's checkers name."""

from __future__ import annotations

import json
import random

import pytest
from click.testing import CliRunner

from umstack.cli.sim import command
from umstack.sim import Adversary, Canary, Setup, Transport, run_seed, run_seeds, trace_seed

RANDOM_SEEDS = 1000
ATTACKED_SEEDS = 500
LBTRU_SEEDS = 400
ATTACKED_LBTRU_SEEDS = 500

ALONE = Setup(recovers=False)
"""Without late join and off-transport recovery, as the seeds below were found."""

ATTACKED_LBTRU = Setup(adversary=Adversary.FORGES_CONTROL, transport=Transport.LBTRU)

PLAIN_CANARIES = (Canary.STALE_PAYLOAD, Canary.LOSE_ROW, Canary.REPEAT_ROW, Canary.DEAF_RECEIVER)
"""Mistakes that show without recovery and without an adversary."""

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


# Seeds over LBT-RU that found a mistake once, and what it was.
LBTRU_REGRESSIONS = {
    232480143222790: "the copies of the client that a full link refused were the last each time, and so never sent",
    253466503062939: "as 232480143222790, for the start of a topic",
}

# The same of source-side filtering, with recovery.
FILTERED_REGRESSIONS = {
    26961238902045: "what another session of the host was passed over was believed, and so lost",
    26961238902261: "acknowledgements in flight took an interest back, again and again",
    26961238903507: "a session that had only been passed over datagrams took no retransmission",
    26961238905446: "a topic began before messages that were dropped while its interest was on its way",
    26961238932220: "a client that wanted nothing of a batch made it look sent, and another was the last each time",
}

# Seeds over LBT-RU with an adversary that found a mistake once, and what it was.
ATTACKED_LBTRU_REGRESSIONS = {
    1: "a connection request without a client id had an answer 20 bytes longer than it",
    5: "a forged answer to a connection request gave a receiver a client id that was not its own",
    7: "as 5, after a forged reset: for the client activity timeout its NAKs and acknowledgements were dropped",
}

# Seeds with an adversary that found a mistake once, and what it was.
ATTACKED_REGRESSIONS = {
    38: "a forged session message set the base of a receiver, whose source never sent a true one",
    79: "replayed datagrams ended a session: joined again it began with one of them, delivered already",
    107: "the trail of a forged session message gave up losses that could still be repaired",
    270: "claims of bases that were given up stayed in the loss map",
    1197: "a session that was ended by replays a second time began with what was replayed",
    165968691358104: "the simulator kept a claim open while receivers were said to have left, until it was unblocked",
}


# Seeds with late join and off-transport recovery that find a mistake when it is made again, and what it is.
RECOVERY_REGRESSIONS = {
    3: "what was fetched came before the beginning of the session",
    6: "a range that was a lie carried the stream off",
    59: "a fetch with a bound asked for as much again when it connected again, and passed over what came before",
    267: "no more was requested than may be outstanding, though a message has more fragments and waits for them",
    293: "a gap whose recovery was due while the queue was full had the timer run forever",
    299: "the bytes of a fragment held before the past was known were not counted for its message",
    1251: "a buffer that was full before the range was known began delivery, and the range had it begin again",
    6926: "a long run that was given up left the byte counts of its messages in the order map",
    101588: "a range that a resumed session cannot have was requested without end",
    105498: "a queue that was full when the session began stopped a late join for good",
    93431161113071: "what a range promised was lost before anything showed it, and then the transport delivered it",
    103532379194210: "what was fetched came again from the transport, as if the stream began anew",
    103532379179507: "a session that ended without a datagram was joined anew, and what it had lost was delivered",
    222899044222382: "a range beyond the stream, given up before the session's first datagram, was believed for good",
    101045151163383: "a range beyond what a TSNI had shown was believed for good",
    222899044223343: "the checker took a claim that was given up, and NAKed anew, for a NAK too soon",
    107676406361157: "as 222899044223343, for a claim from before the first data",
    76802757020968: "a fetch that began anew took what was lost before another topic's message for its own, and waited",
    46395930522412: "the checker looked for messages before the first one, where a range that was a lie had begun",
    66111114476768: "the checker took a lead that gave way, and was NAKed anew, for a NAK too soon",
    103532379186767: "requests were repeated while their answers were on a slow way, and answered after all of them",
}


def test_random_seeds() -> None:
    """UM-136..UM-142: late joins and recoveries from peers that stall, lie, repeat and disconnect are in it, too.

    Whatever the seed: payloads right, nothing twice, nothing out of order, no loss untold, and then rest (UX-22).
    """
    first = random.SystemRandom().randrange(2**48)
    print(f"first seed: {first}")
    results = list(run_seeds(first, RANDOM_SEEDS))
    failed = [result for result in results if result.violation]
    assert not failed, "\n".join(f"{result.violation}\n  {result.replay}" for result in failed)
    assert sum(result.messages_recovered for result in results) > RANDOM_SEEDS
    assert sum(result.fetches for result in results) > RANDOM_SEEDS


@pytest.mark.parametrize("seed", RECOVERY_REGRESSIONS)
def test_seeds_with_recovery_that_once_failed(seed: int) -> None:
    """UM-140, UM-142: seeds that found mistakes of late join and off-transport recovery stay in the suite."""
    assert run_seed(seed).violation == ""


def test_without_recovery_a_seed_is_the_same_run_as_ever() -> None:
    """What is drawn for recovery comes from numbers of its own."""
    result = run_seed(10, ALONE)
    assert (result.fetches, result.messages_recovered) == (0, 0)
    assert result.replay == "umstack sim --seed 10 --trace --transport-only"


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_seeds_that_once_failed(seed: int) -> None:
    """Seeds that found mistakes stay in the suite."""
    assert run_seed(seed, ALONE).violation == ""


def test_random_seeds_over_lbtru() -> None:
    """UM-111, UX-11: the same worlds with a copy for each receiver, which connects and may be dropped for silence."""
    first = random.SystemRandom().randrange(2**48)
    print(f"first seed: {first}")
    results = list(run_seeds(first, LBTRU_SEEDS, Setup(transport=Transport.LBTRU)))
    failed = [result for result in results if result.violation]
    assert not failed, "\n".join(f"{result.violation}\n  {result.replay}" for result in failed)
    assert sum(result.retransmissions for result in results) > LBTRU_SEEDS


@pytest.mark.parametrize("seed", LBTRU_REGRESSIONS)
def test_seeds_over_lbtru_that_once_failed(seed: int) -> None:
    """Seeds that found mistakes stay in the suite."""
    assert run_seed(seed, Setup(transport=Transport.LBTRU, recovers=False)).violation == ""


@pytest.mark.parametrize("seed", FILTERED_REGRESSIONS)
def test_seeds_with_filtering_that_once_failed(seed: int) -> None:
    """UX-27: seeds that found mistakes stay in the suite."""
    assert run_seed(seed, Setup(transport=Transport.LBTRU)).violation == ""


def test_random_seeds_with_an_adversary_over_lbtru() -> None:
    """UX-11, UX-22: who does not see client ids makes, ends and keeps no client, and is answered with little.

    Forged requests, acknowledgements, resets and answers, own clients that fill the table, and what LBT-RM's has.
    """
    first = random.SystemRandom().randrange(2**48)
    print(f"first seed: {first}")
    results = list(run_seeds(first, ATTACKED_LBTRU_SEEDS, ATTACKED_LBTRU))
    failed = [result for result in results if result.violation]
    assert not failed, "\n".join(f"{result.violation}\n  {result.replay}" for result in failed)
    assert sum(result.datagrams_forged for result in results) > 100 * ATTACKED_LBTRU_SEEDS


@pytest.mark.parametrize("seed", ATTACKED_LBTRU_REGRESSIONS)
def test_seeds_with_an_adversary_over_lbtru_that_once_failed(seed: int) -> None:
    """UX-11: attacked seeds over LBT-RU that found mistakes stay in the suite, too."""
    assert run_seed(seed, ATTACKED_LBTRU).violation == ""


def test_the_checkers_see_a_forger_that_knows_the_key() -> None:
    """UX-11: with the key of client ids, a forger gets the stream sent to addresses that did not request it."""
    planted = Setup(Canary.KNOWN_KEY, Adversary.FORGES_CONTROL, Transport.LBTRU)
    violations = [result.violation for result in run_seeds(1, 20, planted)]
    assert sum("which did not request it" in violation for violation in violations) > 5


@pytest.mark.parametrize("canary", PLAIN_CANARIES)
def test_the_checkers_see_over_lbtru(canary: Canary) -> None:
    """Design 7.2: with a mistake planted, runs over LBT-RU fail, too."""
    assert any(result.violation for result in run_seeds(1, 40, Setup(canary, transport=Transport.LBTRU)))


def test_random_seeds_with_an_adversary() -> None:
    """UX-22, UM-101: whatever is forged but data, honest receivers have every message, or a loss event for it."""
    first = random.SystemRandom().randrange(2**48)
    print(f"first seed: {first}")
    results = list(run_seeds(first, ATTACKED_SEEDS, Setup(adversary=Adversary.FORGES_CONTROL)))
    failed = [result for result in results if result.violation]
    assert not failed, "\n".join(f"{result.violation}\n  {result.replay}" for result in failed)
    assert sum(result.datagrams_forged for result in results) > 100 * ATTACKED_SEEDS


@pytest.mark.parametrize("seed", ATTACKED_REGRESSIONS)
def test_seeds_with_an_adversary_that_once_failed(seed: int) -> None:
    """UX-22: attacked seeds that found mistakes stay in the suite, too."""
    assert run_seed(seed, Setup(adversary=Adversary.FORGES_CONTROL)).violation == ""


def test_forged_data_is_found() -> None:
    """The checkers see what only keys could prevent: data in the name of a source."""
    seeds = range(1, 21)
    found = [seed for seed in seeds if run_seed(seed, Setup(adversary=Adversary.FORGES_DATA)).violation]
    assert len(found) > len(seeds) / 4


@pytest.mark.parametrize("canary", [*PLAIN_CANARIES, Canary.STALE_ANSWER])
def test_a_planted_mistake_is_found(canary: Canary) -> None:
    """The checkers see: a network that changes payloads, rows lost or doubled, a receiver left behind."""
    seeds = range(1, 21)
    found = [seed for seed in seeds if run_seed(seed, Setup(canary)).violation]
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


def test_the_command_replays_an_attack() -> None:
    """A seed that failed under attack is named with the adversary, and fails again in the same way."""
    options = ["--seeds", "20", "--first-seed", "1", "--adversary=forges-data", "--json"]
    report = json.loads(CliRunner().invoke(command, options).stdout)
    assert report["adversary"] == "forges_data"
    assert report["totals"]["datagrams_forged"] > 0
    failure = report["failed"][0]
    assert failure["replay"] == f"umstack sim --seed {failure['seed']} --trace --adversary=forges-data"
    again = CliRunner().invoke(command, failure["replay"].split()[2:])
    assert failure["violation"] in again.output


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
