"""Mapping of sources to transport sessions: the pool is used in turn, explicit groups and ports, and names
(UX-10).
"""

from __future__ import annotations

import pytest

from tests.unit.loopback import OWN_ADDRESSES, SHARED, connect, open_context
from tests.waiting import collect
from umstack import Source
from umstack.errors import OptionError

POOL = [
    str(OWN_ADDRESSES["transport_lbtrm_multicast_address_low"]).rsplit(".", 1)[0] + f".{last}"
    for last in range(10, 15)
]
OUTSIDE = str(SHARED["transport_lbtrm_multicast_address"])


def _group(source: Source) -> str:
    return source.transport.split(":")[4]


def test_sources_use_the_pool_in_turn() -> None:
    """UX-10: each source gets a new session until the pool is used up; after that the existing ones are used in
    turn."""
    with open_context() as context:
        sources = [context.source(f"t{number}") for number in range(12)]
        assert [_group(source) for source in sources] == [*POOL, *POOL, *POOL[:2]]
        assert len({source.transport for source in sources}) == len(POOL)


def test_a_free_place_of_the_pool_comes_before_sharing() -> None:
    """UX-10: an existing session is reused only if every place of the pool has one."""
    with open_context() as context:
        sources = [context.source(f"t{number}") for number in range(5)]
        sources[3].close()
        assert _group(context.source("new")) == POOL[3]
        assert _group(context.source("newer")) == POOL[4]


def test_an_explicit_group_outside_the_pool_does_not_join_it() -> None:
    """UX-10: sources with its group and port share its session; the pool neither counts nor uses it."""
    with open_context() as context:
        explicit = [context.source(f"e{number}", **SHARED) for number in range(2)]
        other_port = context.source("port", **SHARED, transport_lbtrm_destination_port=14402)
        pooled = [context.source(f"t{number}") for number in range(10)]
        assert explicit[0].transport == explicit[1].transport != other_port.transport
        assert [_group(source) for source in (*explicit, other_port)] == [OUTSIDE] * 3
        assert [_group(source) for source in pooled] == [*POOL, *POOL]


def test_an_explicit_group_of_the_pool_is_one_of_its_places() -> None:
    """UX-10: an explicit group of the pool is one of the pool's places."""
    with open_context() as context:
        explicit = context.source("explicit", transport_lbtrm_multicast_address=POOL[2])
        pooled = [context.source(f"t{number}") for number in range(5)]
        assert [_group(source) for source in pooled[:4]] == [POOL[0], POOL[1], POOL[3], POOL[4]]
        assert pooled[4].transport != explicit.transport
        assert (
            context.source("again", transport_lbtrm_multicast_address=POOL[2]).transport == explicit.transport
        )


def test_a_named_session_is_only_used_by_name() -> None:
    """UX-10: sources select sessions by name, even on one group and port; all of them are received."""
    with open_context() as context:
        first, receiver = connect(context, "first", **SHARED, transport_session_name="fast")
        second = context.source("second", transport_session_name="fast")
        third, other = connect(context, "third", **SHARED, transport_session_name="slow")
        unnamed = context.source("unnamed", **SHARED)
        assert first.transport == second.transport
        assert len({first.transport, third.transport, unnamed.transport}) == 3
        assert {_group(source) for source in (first, third, unnamed)} == {OUTSIDE}
        first.send(b"one", flush=True)
        third.send(b"two", flush=True)
        assert [collect(receiver, 1)[0].data, collect(other, 1)[0].data] == [b"one", b"two"]


def test_a_named_session_has_only_one_place() -> None:
    """UX-10: a named session uses only one place."""
    with open_context() as context:
        context.source("first", **SHARED, transport_session_name="fast")
        with pytest.raises(OptionError, match=f"'fast' is on {OUTSIDE}"):
            context.source("second", transport_lbtrm_multicast_address=POOL[0], transport_session_name="fast")


def test_the_options_of_a_session_are_those_of_its_first_source(caplog: pytest.LogCaptureFixture) -> None:
    """The options of later sources are ignored, with a warning that names them."""
    with open_context() as context:
        context.source("first", **SHARED, transport_lbtrm_ignore_interval=300)
        context.source("same", **SHARED, transport_lbtrm_ignore_interval=300)
        assert not caplog.records
        context.source("other", **SHARED, transport_lbtrm_ignore_interval=20, flow_control="min")
        logged = caplog.records[-1].getMessage()
        assert "transport_lbtrm_ignore_interval 20 (in force: 300)" in logged
        assert "flow_control min (in force: none)" in logged
        assert "coalesce" not in logged


def test_the_first_source_sets_the_batching_of_its_session() -> None:
    """UM-18: a source that would send every message at once is held by the minimum length of the session's first."""
    with open_context() as context:
        slow = {"implicit_batching_minimum_length": 100, "implicit_batching_interval": 60_000}
        first = context.source("first", flow_control="none", **slow, **SHARED)
        later = context.source("later", implicit_batching_minimum_length=1, **SHARED)
        assert later.transport == first.transport
        later.send(bytes(99))
        assert later.stats()["msgs_sent"] == 0
        later.send(b"x")
        assert later.stats()["msgs_sent"] == later.stats()["flushes_length"] == 1
