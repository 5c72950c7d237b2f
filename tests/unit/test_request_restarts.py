"""Restarts of requesters and requests in fabricated time: every table keeps its bound, and a live peer keeps its place.

UMSTACK_RESTARTS=1000000 in the environment: this number in each test instead of RESTARTS.
"""

from __future__ import annotations

import itertools
import os
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from umstack._engine.endpoint import Endpoint
from umstack.config import Config
from umstack.requests import responder as responder_module
from umstack.requests.intake import NEVER_NS, ResponseIntake
from umstack.requests.responder import Responder

RESTARTS = int(os.environ.get("UMSTACK_RESTARTS", "5000"))
CONNECTIONS_MAX = 16
OPEN_MAX = 64
USED_EVERY = 10
"""A live requester is responded to after this number of others, fewer than there are places."""


class _Connection:
    """A connection that sends at once."""

    ticks = itertools.count()

    def __init__(self, endpoint: Endpoint, key: object, stream: object, options: object) -> None:
        self.endpoint, self.key = endpoint, key
        self.waiting_bytes = 0
        self.error: OSError | None = None
        self.active_ns = next(self.ticks)

    def fail(self, error: OSError) -> None:
        self.error = error


def test_restarted_requesters_displace_no_live_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has another port; the connection that is idle for longest gives way."""
    monkeypatch.setattr(responder_module, "ResponseConnection", _Connection)
    loop = SimpleNamespace(submit=lambda work: None, open=lambda: None, add_work=lambda work: None)
    one = Responder(
        Config().context_options(response_connections_maximum=CONNECTIONS_MAX),
        cast("Any", SimpleNamespace(loop=loop)), lambda _topic: (), cast("Any", None), cast("Any", None),
    )  # fmt: skip
    live, _ = one._connection(Endpoint("10.0.0.1", 1), None)
    for number in range(RESTARTS):
        other = Endpoint(f"10.1.{number >> 16}.1", number % 2**16)
        assert one._connection(other, None)[1], "a requester is taken for another one"
        if number % USED_EVERY == 0:
            found, is_new = one._connection(Endpoint("10.0.0.1", 1), None)
            assert (found, is_new) == (live, False)
            found.active_ns = next(_Connection.ticks)
        assert len(one._connections) <= CONNECTIONS_MAX


def test_requests_that_nobody_closed_leave_their_places() -> None:
    """An open one keeps its number and its place; those whose time is over give way."""
    intake = ResponseIntake.__new__(ResponseIntake)
    intake._open, intake._open_max, intake._numbers = {}, OPEN_MAX, itertools.count(2**32 - RESTARTS // 2)
    live = intake.open(None, "live", NEVER_NS)
    for _ in range(RESTARTS):
        inbox = intake.open(None, "over", time.monotonic_ns())
        assert inbox.index != live.index
        assert intake._open[live.index] is live
        assert intake.open_count <= OPEN_MAX
