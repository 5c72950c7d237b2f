"""Session messages and TSNIs of idle sources (UM-62..UM-71)."""

from __future__ import annotations

import pytest

from tests.sim.conftest import DELAY, Pair
from umstack.sim import MS, SECOND, Fate, Session, Type


def seconds(datagrams) -> list[float]:
    """Return the times of datagrams in seconds, rounded to microseconds."""
    return [round(d.time_ns / 1e9, 6) for d in datagrams]


def tsnis(session: Session):
    """Return the datagrams with TSNIs that a session has sent."""
    return [d for d in session.sent(Type.DATA) if d.tsnis]


def test_session_messages_double_up_to_the_maximum(pair: Pair) -> None:
    """UM-67, UM-68: the first session message follows 0.2 s after the last traffic; each interval is twice
    the one before, up to 10 s.
    """
    session = pair.publisher.session()
    session.source(tsni_interval_ns=0).send(b"x", flush=True)
    pair.world.run_for(55 * SECOND)
    assert seconds(session.sent(Type.SM)) == [0.2, 0.6, 1.4, 3.0, 6.2, 12.6, 22.6, 32.6, 42.6, 52.6]


def test_a_session_message_carries_lead_and_trail(pair: Pair) -> None:
    """UM-71, UM-69: a session message has lead, trail and a separate counter, and uses no data sqn."""
    session = pair.publisher.session()
    source = session.source(tsni_interval_ns=0)
    for _ in range(3):
        source.send(b"x", flush=True)
    pair.world.run_for(2 * SECOND)
    source.send(b"y", flush=True)
    messages = session.sent(Type.SM)
    assert [(m.sqn, m.lead, m.trail) for m in messages] == [(0, 2, 0), (1, 2, 0), (2, 2, 0)]
    assert session.sent(Type.DATA)[-1].sqn == 3


def test_traffic_delays_session_messages(pair: Pair) -> None:
    """UM-70, C18: any other datagram of the session, including a TSNI, restarts the schedule of session
    messages.
    """
    session = pair.publisher.session()
    first, second = session.source(tsni_interval_ns=2 * SECOND), session.source(tsni_interval_ns=0)
    for number in range(10):
        (first, second)[number % 2].send(b"x", flush=True)
        pair.world.run_for(150 * MS)
    assert session.sent(Type.SM) == []
    pair.world.run_until(4 * SECOND)
    last, tsni = 1.35, 3.2
    assert seconds(tsnis(session)) == [tsni]  # two seconds after the first source's last message
    expected = [last + 0.2, last + 0.6, last + 1.4, tsni + 0.2, tsni + 0.6]
    assert seconds(session.sent(Type.SM)) == pytest.approx(expected)


def test_tsnis_of_an_idle_source(pair: Pair) -> None:
    """UM-62..UM-65: TSNIs are sent every 5 s, from 5 s to 60 s after the last message, each in a datagram
    with a transport sqn.
    """
    session = pair.publisher.session()
    source = session.source()
    for _ in range(3):
        source.send(b"x", flush=True)
    pair.world.run_for(100 * SECOND)
    assert seconds(tsnis(session)) == [5.0 * n for n in range(1, 13)]
    assert {tuple(d.tsnis) for d in tsnis(session)} == {((source.topic_index, 2),)}
    assert [d.sqn for d in tsnis(session)] == list(range(3, 15))
    assert source.counters["tsnis_sent"] == 12
    source.send(b"y", flush=True)  # UM-64: data restarts the cycle
    pair.world.run_for(11 * SECOND)
    assert seconds(tsnis(session))[12:] == [105.0, 110.0]
    assert tsnis(session)[-1].tsnis == [(source.topic_index, 3)]


def test_tsnis_forever_or_never(pair: Pair) -> None:
    """UM-64: with threshold 0 TSNIs never stop, and with interval 0 they never start; a source that never
    sent a message sends none.
    """
    forever, never = pair.publisher.session(), pair.publisher.session()
    forever.source(tsni_threshold_ns=0).send(b"x", flush=True)
    never.source(tsni_interval_ns=0).send(b"x", flush=True)
    never.source()
    pair.world.run_for(300 * SECOND)
    assert len(tsnis(forever)) == 60
    assert tsnis(never) == []


def test_tsnis_of_several_topics_share_a_datagram(pair: Pair) -> None:
    """UM-66: TSNIs due at the same time are sent together."""
    session = pair.publisher.session()
    sources = [session.source() for _ in range(3)]
    for number, source in enumerate(sources):
        for _ in range(number + 1):
            source.send(b"x")
    sources[0].flush()
    pair.world.run_for(6 * SECOND)
    assert len(tsnis(session)) == 1
    assert sorted(tsnis(session)[0].tsnis) == [(source.topic_index, n) for n, source in enumerate(sources)]


def test_many_topics_take_several_datagrams(pair: Pair) -> None:
    """UM-66: records beyond the capacity of one option are sent in additional datagrams."""
    session = pair.publisher.session()
    sources = [session.source() for _ in range(50)]
    for source in sources:
        source.send(b"x")
    sources[0].flush()
    pair.world.run_for(6 * SECOND)
    reported = [topic for d in tsnis(session) for topic, _ in d.tsnis]
    assert sorted(reported) == [source.topic_index for source in sources]


def test_a_tsni_reveals_a_loss_at_the_end_of_a_topic(pair: Pair) -> None:
    """UM-63: the controller learns the last sqn of the topic although no later message of the topic arrives."""
    session = pair.publisher.session()
    source = session.source()
    join = pair.subscriber.receiver().join(source, send_naks=False)
    source.send(b"0", flush=True)
    pair.world.run_for(10 * MS)
    pair.world.rule("drop", Type.DATA, sqns=(1, 3))
    for _ in range(3):
        source.send(b"x", flush=True)
    pair.world.run_until(5010 * MS)
    assert join.probe.gap_count == 0
    pair.world.run_until(5010 * MS + DELAY)
    assert join.probe.gap_count == 1
    assert join.counters["tsnis_rcved"] == 1


def test_tsnis_exclude_held_messages(pair: Pair) -> None:
    """UM-62, UM-35: an open group has not been sent, so the TSNI has the last sqn that was sent."""
    session = pair.publisher.session()
    source = session.source()
    source.send(b"0", flush=True)
    pair.world.run_for(1 * SECOND)
    source.send(b"1", batch="start")
    pair.world.run_for(20 * SECOND)
    assert {sqn for d in tsnis(session) for _, sqn in d.tsnis} == {0}


def test_session_messages_prevent_the_activity_timeout(pair: Pair) -> None:
    """UM-69, AE-43: session messages alone prevent the activity timeout while the session lives."""
    source = pair.publisher.session().source(tsni_interval_ns=0)
    join = pair.subscriber.receiver().join(source)
    source.send(b"0", flush=True)
    pair.world.run_for(600 * SECOND)
    assert join.probe.mapped
    assert pair.world.trace(Fate.RECEIVED, Type.SM)
