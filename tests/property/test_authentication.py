"""Tags of arbitrary datagrams equal the oracle's, are accepted once, and are never accepted after a change."""

from __future__ import annotations

import time
from contextlib import closing

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tag_oracle import HEAD, TAG_BYTES, TRAILER_BYTES, sender_tag
from umstack.key_file import Key
from umstack.resolution.counters import ResolutionCounters
from umstack.resolution.tags import ResolutionTags

LOCAL = ("10.1.2.3", 40000)
TOLERANCE_NS = 60_000_000_000

secrets = st.binary(min_size=32, max_size=32)
datagrams = st.binary(max_size=1500)


def tags(secret: bytes, identifier: int = 1, local: tuple[str, int] = LOCAL) -> closing[ResolutionTags]:
    """Create tags with one key."""
    return closing(ResolutionTags((Key(identifier, secret),), TOLERANCE_NS, local))


@given(secrets, st.integers(1, 255), datagrams)
@settings(max_examples=200)
def test_the_trailer_is_the_documented_one(secret: bytes, identifier: int, datagram: bytes) -> None:
    """Tags equal the oracle's byte for byte, with the current time."""
    with tags(secret, identifier) as sender:
        whole = sender.tagged(datagram)
    assert len(whole) == len(datagram) + TRAILER_BYTES
    assert whole[: -TRAILER_BYTES + 9] == datagram + HEAD + bytes([identifier])
    stamp = int.from_bytes(whole[-TRAILER_BYTES + 9 : -TAG_BYTES])
    assert abs((stamp >> 22) / 4 - time.time()) < 5
    assert whole[-TAG_BYTES:] == sender_tag(secret, "lbmr", LOCAL, whole[:-TAG_BYTES])


@given(secrets, st.lists(datagrams, min_size=1, max_size=8), st.randoms(use_true_random=False))
@settings(max_examples=100)
def test_each_datagram_is_accepted_once_in_any_order(
    secret: bytes, sent: list[bytes], random: object
) -> None:
    """As many datagrams as fit the window are accepted, also if reordered and repeated."""
    counters = ResolutionCounters()
    with tags(secret) as sender, tags(secret) as receiver:
        whole = [sender.tagged(one) for one in sent]
        order = list(range(len(whole))) * 2
        random.shuffle(order)  # type: ignore[attr-defined]
        seen: set[int] = set()
        for number in order:
            taken = receiver.verified(whole[number], LOCAL, counters)
            assert taken == (None if number in seen else sent[number])
            seen.add(number)
    assert counters.tr_dgrams_dropped_tag_replayed == len(sent)


@given(secrets, datagrams, st.data())
@settings(max_examples=200)
def test_a_changed_datagram_is_rejected_for_one_reason(
    secret: bytes, datagram: bytes, data: st.DataObject
) -> None:
    """A flipped bit, a truncation, another address and another key are refused; the original is accepted
    afterwards.
    """
    counters = ResolutionCounters()
    with tags(secret) as sender, tags(secret) as receiver:
        whole = sender.tagged(datagram)
        bit = data.draw(st.integers(0, 8 * len(whole) - 1))
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        cut = data.draw(st.integers(0, len(whole) - 1))
        port = data.draw(st.integers(0, 65535).filter(lambda port: port != LOCAL[1]))
        other = bytes([secret[0] ^ 1]) + secret[1:]
        assert receiver.verified(bytes(changed), LOCAL, counters) is None
        assert receiver.verified(whole[:cut], LOCAL, counters) is None
        assert receiver.verified(whole, (LOCAL[0], port), counters) is None
        with tags(other) as unknown:
            assert receiver.verified(unknown.tagged(datagram), LOCAL, counters) is None
        assert sum(counters.as_dict().values()) == 4
        assert receiver.verified(whole, LOCAL, counters) == datagram
