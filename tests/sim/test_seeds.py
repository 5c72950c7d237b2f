"""Random worlds with checkers: UX-22, and every requirement that the checkers of ffi/sim check."""

from __future__ import annotations

import json
import random

import pytest
from click.testing import CliRunner

from umstack.cli.sim import command
from umstack.sim import Adversary, Canary, Kind, Setup, Transport, run_seed, run_seeds, trace_seed

RANDOM_SEEDS = 1000
ATTACKED_SEEDS = 500
LBTRU_SEEDS = 400
ATTACKED_LBTRU_SEEDS = 500

ALONE = Setup(recovers=False)
"""Run without late join and off-transport recovery, as when the seeds below were found."""

ATTACKED_LBTRU = Setup(adversary=Adversary.FORGES_CONTROL, transport=Transport.LBTRU)

PLAIN_CANARIES = (Canary.STALE_PAYLOAD, Canary.LOSE_ROW, Canary.REPEAT_ROW, Canary.DEAF_RECEIVER)
"""Mistakes that the checkers detect without recovery and without an adversary."""

# Seeds that found a mistake once, each with the mistake.
REGRESSIONS = {
    10: "an expired slice of a limiter kept the session's timer in the past",
    29: "a controller started with a datagram from before it was mapped, so all in between looked lost",
    114: "a claim made before the path MTU shrank",
    161: "as 29, in arrival order",
    314: "a receiver whose last status message was lost holds the window until it times out",
    1798: "a filled gap was given up, and a complete message dropped without a loss event",
    3217: "fragments held while starting were not counted when the reorder buffer was full",
    3314: "a message that extended behind an abandoned gap was dropped without a loss event",
    10390: "a gap revealed by a TSNI was recorded twice when the reorder buffer was full",
    17126: "as 10390, in sequence order",
}


# Seeds over LBT-RU that found a mistake once, each with the mistake.
LBTRU_REGRESSIONS = {
    232480143222790: "a full link always refused the copies of the same client, which were never sent",
    253466503062939: "as 232480143222790, for the start of a topic",
}

# Seeds as above, with source-side filtering and recovery.
FILTERED_REGRESSIONS = {
    26961238902045: "a filter report for another session of the host was accepted, and its datagrams were lost",
    26961238902261: "acknowledgements in flight revoked an interest repeatedly",
    26961238903507: "a session that had got only filter reports accepted no retransmission",
    26961238905446: "a topic started before messages that were dropped while its interest was in flight",
    26961238932220: "a client without interest in a batch made it look sent, and another was always the last",
}

# Seeds over LBT-RU with an adversary that found a mistake once, each with the mistake.
ATTACKED_LBTRU_REGRESSIONS = {
    1: "the answer to a connection request without a client id was 20 bytes longer than the request",
    5: "a forged answer to a connection request gave a receiver another client's id",
    7: "as 5, after a forged reset: for the client activity timeout its NAKs and acknowledgements were dropped",
}

# Seeds with an adversary that found a mistake once, each with the mistake.
ATTACKED_REGRESSIONS = {
    38: "a forged session message set the base of a receiver, whose source never sent a true one",
    79: "replayed datagrams ended a session: joined again, it started with one of them, delivered before",
    107: "the trail of a forged session message gave up recoverable losses",
    270: "claims of abandoned bases stayed in the loss map",
    50003757: "the first NCF that refused a NAK let the next NAK come within 0.1 ms of it",
    50014302: "as 50003757",
    1197: "a session ended by replays a second time started with a replayed datagram",
    165968691358104: "the simulator kept a claim open while receivers counted as gone, until it was unblocked",
    710041927: "the checker reported a NAK as too early: of a repeated claim, whose first NAK the link had refused",
}


# Seeds with late join and off-transport recovery that found a mistake once, each with the mistake.
RECOVERY_REGRESSIONS = {
    3: "fetched messages were delivered before BOS",
    6: "a false range moved the position of the stream",
    59: "a bounded fetch requested its range again after a reconnect, and skipped earlier messages",
    246383494025358: "the fetch filled the oldest gap, and the next one, detected before it, had no timer",
    219672336843750: "a retransmission of messages that a fetch had given up was delivered after their loss event",
    267: "requests were limited to the outstanding maximum, although a message with more fragments needs more",
    293: "a gap whose recovery was due while the queue was full made the timer run forever",
    299: "the bytes of a fragment held before the past was known were not counted for its message",
    101044: "messages dropped for a slow reader waited forever after their fetch was given up",
    1251: "a buffer that was full before the range was known began delivery, and the range had it begin again",
    6926: "an abandoned long run left the byte counts of its messages in the order map",
    101588: "a range that a resumed session cannot have was requested forever",
    105498: "a queue that was full when the session began stopped a late join permanently",
    93431161113071: "messages of a range were lost before data showed them, and then the transport delivered them",
    103532379194210: "fetched messages were delivered again by the transport, as if the stream restarted",
    103532379179507: "a session that ended without a datagram was joined again, and its lost messages were delivered",
    222899044222382: "a range beyond the stream, given up before the first datagram, was accepted permanently",
    101045151163383: "a range beyond what a TSNI had shown was accepted permanently",
    222899044223343: "the checker reported the NAK of an abandoned and confirmed claim as too early",
    107676406361157: "as 222899044223343, for a claim from before the first data",
    76802757020968: "a restarted fetch mistook losses before another topic's message for its own, and waited",
    46395930522412: "the checker expected messages before the first one, because of a false range",
    66111114476768: "the checker reported the NAK of a replaced lead as too early",
    130107617087509: "a TSNI listed a gap while a slow reader was cut loose, which listed it again when it ended",
    210038030: "the checker expected fragments whose message began in a false range, declared lost unpublished",
    210053607: "the checker reported a loss declared again after a false range, as delivery had restarted before it",
    103532379186767: "requests were repeated while their answers were on a slow path, and answered again",
    620084969: "the checker reported a NAK as too early: of a claimed lead that another had replaced, after an NCF",
    100025674876147: "the checker reported a NAK as too early: of a claim that an NCF confirmed before the first data",
}


def test_random_seeds() -> None:
    """UM-136..UM-142: worlds have late joins and recoveries from peers that stall, lie, repeat and
    disconnect.

    For any seed, payloads are correct, nothing is delivered twice or out of order, every loss is reported,
    and the world is idle at the end (UX-22).
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


def test_recovery_does_not_change_the_run_without_it() -> None:
    """Draws for recovery come from separate random numbers."""
    result = run_seed(10, ALONE)
    assert (result.fetches, result.messages_recovered) == (0, 0)
    assert result.replay == "umstack sim --seed 10 --trace --transport-only"


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_seeds_that_once_failed(seed: int) -> None:
    """Seeds that found mistakes stay in the suite."""
    assert run_seed(seed, ALONE).violation == ""


def test_random_seeds_over_lbtru() -> None:
    """UM-111, UX-11: the same worlds run with a copy for each receiver, which connects and may be dropped
    when idle.
    """
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
    """UX-11, UX-22: without client ids, an attacker cannot create, end or keep clients, and answers to the
    attacker are small.

    The attacker sends forged requests, acknowledgements, resets and answers, fills the table with its own
    clients, and uses the attacks on LBT-RM.
    """
    first = random.SystemRandom().randrange(2**48)
    print(f"first seed: {first}")
    results = list(run_seeds(first, ATTACKED_LBTRU_SEEDS, ATTACKED_LBTRU))
    failed = [result for result in results if result.violation]
    assert not failed, "\n".join(f"{result.violation}\n  {result.replay}" for result in failed)
    assert sum(result.datagrams_forged for result in results) > 100 * ATTACKED_LBTRU_SEEDS


@pytest.mark.parametrize("seed", ATTACKED_LBTRU_REGRESSIONS)
def test_seeds_with_an_adversary_over_lbtru_that_once_failed(seed: int) -> None:
    """UX-11: attacked seeds over LBT-RU that found mistakes also stay in the suite."""
    assert run_seed(seed, ATTACKED_LBTRU).violation == ""


def test_the_checkers_detect_a_forger_with_the_key() -> None:
    """UX-11: with the key of client ids, a forger can have the stream sent to addresses that did not request
    it.
    """
    planted = Setup(Canary.KNOWN_KEY, Adversary.FORGES_CONTROL, Transport.LBTRU)
    violations = [result.violation for result in run_seeds(1, 20, planted)]
    assert sum("which did not request it" in violation for violation in violations) > 5


@pytest.mark.parametrize("canary", PLAIN_CANARIES)
def test_a_planted_mistake_over_lbtru_is_detected(canary: Canary) -> None:
    """With a planted mistake, runs over LBT-RU also fail."""
    assert any(result.violation for result in run_seeds(1, 40, Setup(canary, transport=Transport.LBTRU)))


def test_random_seeds_with_an_adversary() -> None:
    """UX-22, UM-101: in spite of all forgeries except forged data, honest receivers get every message or a
    loss event for it.
    """
    first = random.SystemRandom().randrange(2**48)
    print(f"first seed: {first}")
    results = list(run_seeds(first, ATTACKED_SEEDS, Setup(adversary=Adversary.FORGES_CONTROL)))
    failed = [result for result in results if result.violation]
    assert not failed, "\n".join(f"{result.violation}\n  {result.replay}" for result in failed)
    assert sum(result.datagrams_forged for result in results) > 100 * ATTACKED_SEEDS


@pytest.mark.parametrize("seed", ATTACKED_REGRESSIONS)
def test_seeds_with_an_adversary_that_once_failed(seed: int) -> None:
    """UX-22: attacked seeds that found mistakes also stay in the suite."""
    assert run_seed(seed, Setup(adversary=Adversary.FORGES_CONTROL)).violation == ""


def test_forged_data_is_detected() -> None:
    """The checkers detect forged data with the address of a source, which only keys could prevent."""
    seeds = range(1, 21)
    found = [seed for seed in seeds if run_seed(seed, Setup(adversary=Adversary.FORGES_DATA)).violation]
    assert len(found) > len(seeds) / 4


@pytest.mark.parametrize("canary", [*PLAIN_CANARIES, Canary.STALE_ANSWER])
def test_a_planted_mistake_is_detected(canary: Canary) -> None:
    """The checkers detect changed payloads, lost and duplicated rows, and a receiver without data."""
    seeds = range(1, 21)
    found = [seed for seed in seeds if run_seed(seed, Setup(canary)).violation]
    assert len(found) > len(seeds) / 4


def test_runs_are_deterministic() -> None:
    """The same seed gives the same run, to the nanosecond; another seed gives another run."""
    digests = [run_seed(seed).digest for seed in (1, 2, 3)]
    assert digests == [run_seed(seed).digest for seed in (1, 2, 3)]
    assert len(set(digests)) == 3
    result, world = trace_seed(2)
    with world:
        assert result.digest == digests[1]
        assert len(world.trace()) > result.datagrams_sent
        assert sum(row.kind == 0 for row in world.rows()) == result.messages_delivered


def test_the_rows_of_a_receiver_that_is_cut_loose_can_be_read() -> None:
    """A trace names the event. Slow readers are drawn often enough that a few hundred seeds have one."""
    for seed in range(1, 500):
        _, world = trace_seed(seed)
        with world:
            if any(row.kind is Kind.CUT_LOOSE for row in world.rows()):
                return
    pytest.fail("no receiver was cut loose")


def test_the_command_reports_seeds_as_json() -> None:
    """`umstack sim --json` prints one object and exits with 0 on success."""
    done = CliRunner().invoke(command, ["--seeds", "20", "--first-seed", "1", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["seeds"], report["first_seed"], report["failed"]) == (20, 1, [])
    assert report["totals"]["messages_delivered"] > 0


def test_the_command_replays_an_attack() -> None:
    """The replay command of a seed that failed under attack includes the adversary and fails in the same way."""
    options = ["--seeds", "20", "--first-seed", "1", "--adversary=forges-data", "--json"]
    report = json.loads(CliRunner().invoke(command, options).stdout)
    assert report["adversary"] == "forges_data"
    assert report["totals"]["datagrams_forged"] > 0
    failure = report["failed"][0]
    assert failure["replay"] == f"umstack sim --seed {failure['seed']} --trace --adversary=forges-data"
    again = CliRunner().invoke(command, failure["replay"].split()[2:])
    assert failure["violation"] in again.output


def test_the_command_shows_the_failed_seed() -> None:
    """A failure exits with 1 and prints the replay command, which fails in the same way."""
    done = CliRunner().invoke(
        command, ["--seeds", "20", "--first-seed", "1", "--canary", "lose-row", "--json"]
    )
    assert done.exit_code == 1
    failure = json.loads(done.stdout)["failed"][0]
    assert failure["replay"] == f"umstack sim --seed {failure['seed']} --trace --canary=lose-row"
    again = CliRunner().invoke(command, failure["replay"].split()[2:])
    assert again.exit_code == 1
    assert failure["violation"] in again.output
