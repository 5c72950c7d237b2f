"""Requests and responses between hosts of a lab, with loss in every direction, over each transport."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.netns.contexts import members
from tests.waiting import SECONDS, wait_for
from umstack import Request
from umstack.lab import Lab

MakeLab = Callable[..., Lab]
ROUNDS = 100


@pytest.mark.parametrize("transport", ["lbtrm", "lbtru", "tcp"])
def test_every_host_responds_through_loss(make_lab: MakeLab, transport: str) -> None:
    """Two responders run on two hosts; every request gets both responses, once each, and none are mixed up."""
    lab = make_lab(hosts=3, loss=0.02)
    with members(*lab.hosts[:3]) as (asking, *responding):

        def responder(number: int) -> Callable[[Any], None]:
            def on_message(message: Any) -> None:
                if isinstance(message, Request):
                    message.respond(b"%d:" % number + message.data)

            return on_message

        receivers = [
            one.host.call(lambda one=one, n=n: one.context.receiver("requests", responder(n)))
            for n, one in enumerate(responding)
        ]
        source = asking.source("requests", transport=transport)
        for receiver in receivers:
            wait_for(lambda one=receiver: one.stats()["delivery_controllers"], "topic resolution")
        source.wait_connected(2, timeout=SECONDS)
        for n in range(ROUNDS):
            data = b"%d" % n * (1 + n % 500)
            with asking.host.call(lambda data=data: source.request(data, timeout=SECONDS)) as request:
                got = []
                for response in request:
                    got.append(response.data)
                    if len(got) == 2:
                        break
            assert sorted(got) == [b"0:" + data, b"1:" + data]
        stats = asking.context.stats()["context"]
        assert stats["responses_rcved"] == 2 * ROUNDS
        assert stats["responses_late"] == stats["responses_dropped"] == 0
        assert {one.context.stats()["context"]["response_connections_opened"] for one in responding} == {1}


def test_a_responder_whose_host_is_gone_is_given_up(make_lab: MakeLab) -> None:
    """If the cable of one responder is out, the other's response arrives, and the timeout ends the wait."""
    lab = make_lab(hosts=3)
    with members(*lab.hosts[:3]) as (asking, near, far):
        receivers = [
            one.host.call(
                lambda one=one: one.context.receiver(
                    "gone", lambda m: m.respond(b"here") if isinstance(m, Request) else None
                )
            )
            for one in (near, far)
        ]
        source = asking.source("gone", flow_control_receiver_timeout=1000)
        for receiver in receivers:
            wait_for(lambda one=receiver: one.stats()["delivery_controllers"], "topic resolution")
        source.wait_connected(2, timeout=SECONDS)
        both = asking.host.call(lambda: source.request(b"x", timeout=SECONDS))
        assert [one.data for one in (both.receive(), both.receive()) if one] == [b"here", b"here"]
        both.close()
        far.host.unplug()
        alone = asking.host.call(lambda: source.request(b"x", timeout=0.5))
        assert [response.data for response in alone] == [b"here"]
        assert alone.closed
