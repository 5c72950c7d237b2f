"""Counters that span all sessions of a context, ended ones included (AE-10, AE-35)."""

from __future__ import annotations

import pytest

from tests.unit.loopback import connect, open_context
from tests.waiting import collect, wait_for
from umstack import BackPressured, Closed, Context, Source


def _of_context(context: Context, counter: str) -> int:
    return int(context.stats()["context"][counter])


def _send_without_end(source: Source) -> None:
    for _ in range(100_000):
        source.send(bytes(1000), flush=True, timeout=0)


def _await_stop(source: Source) -> None:
    wait_for(lambda: source.stats()["snd_bpe"] >= 1, "the stop at the sender limit")


def test_stops_at_the_sender_limit_are_counted_for_the_whole_context() -> None:
    """AE-10: two senders stop once each, because their receivers read nothing. After both sources and their sessions
    ended, the context still counts both stops.
    """
    with open_context() as context:
        for expected, topic in enumerate(("first", "second"), start=1):
            source, receiver = connect(
                context, topic, receiver_queue_block_length=4096, receiver_queue_block_count=4
            )
            with pytest.raises(BackPressured):
                _send_without_end(source)
            _await_stop(source)
            assert _of_context(context, "sender_flow_control_limits") >= expected
            assert source.stats()["snd_bpe"] <= _of_context(context, "sender_flow_control_limits")
            receiver.close()
            source.close()
        assert context.stats()["source_transports"] == []
        assert _of_context(context, "sender_flow_control_limits") >= 2


def test_unblocked_publications_are_counted_for_the_whole_context() -> None:
    """AE-35: a claim that expires counts at the context as at its session, also after the session ended."""
    with open_context() as context:
        source, receiver = connect(context, "stuck", publication_unblock_timeout=200)

        def dawdle() -> None:
            with source.claim(10) as view:
                view[:] = b"abandoned!"
                source.send(b"behind", flush=True)
                collect(receiver, 1)

        with pytest.raises(Closed):
            dawdle()
        assert _of_context(context, "unblocked_publications") == 1
        source.close()
        assert context.stats()["source_transports"] == []
        assert _of_context(context, "unblocked_publications") == 1
