"""Datagrams of topic resolution wait in turns by sender."""

from __future__ import annotations

from umstack.resolution.fair_intake import SENDER_BYTES_MAX, SENDER_DATAGRAMS_MAX, SENDERS_MAX, FairIntake


def test_a_flood_delays_another_sender_by_one_datagram() -> None:
    """Whatever has arrived from one host, the first datagram of another is handled next but one."""
    intake = FairIntake()
    for number in range(1000):
        intake.put(b"%d" % number, ("10.0.0.9", number))
    intake.put(b"honest", ("10.0.0.1", 1))
    assert [intake.take()[0] for _ in range(3)] == [b"0", b"honest", b"1"]
    assert [intake.take()[0] for _ in range(998)] == [b"%d" % number for number in range(2, 1000)]
    assert not intake
    assert intake.dropped == 0


def test_the_oldest_datagrams_of_a_sender_with_too_many_are_dropped() -> None:
    """One host's share is limited in bytes; nobody else's datagrams are dropped for it."""
    intake = FairIntake()
    intake.put(b"honest", ("10.0.0.1", 1))
    size = SENDER_BYTES_MAX // 10
    for number in range(15):
        intake.put(bytes([number]) * size, ("10.0.0.9", 1))
    taken = []
    while intake:
        taken.append(intake.take()[0][:6])
    assert taken == [b"honest", *(bytes([number]) * 6 for number in range(5, 15))]
    assert intake.dropped == 5


def test_empty_datagrams_are_limited_by_their_number() -> None:
    """They have no bytes to count, but each takes memory."""
    intake = FairIntake()
    for _ in range(SENDER_DATAGRAMS_MAX + 5):
        intake.put(b"", ("10.0.0.9", 1))
    assert intake.dropped == 5


def test_the_number_of_senders_is_limited() -> None:
    """With forged addresses, those that wait already keep their turn."""
    intake = FairIntake()
    for number in range(SENDERS_MAX + 5):
        intake.put(b"x", (f"10.0.{number // 256}.{number % 256}", 1))
    assert intake.dropped == 5
    taken = 0
    while intake:
        intake.take()
        taken += 1
    assert taken == SENDERS_MAX
