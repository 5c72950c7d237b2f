"""Options that name an interface accept a name, an address or a network, and anything else is refused by its name."""

from __future__ import annotations

import pytest

from tests.unit.loopback import open_context
from tests.waiting import SECONDS
from umstack import Request
from umstack.config import OPTIONS, Config, Kind, Scope
from umstack.errors import ConfigError, OptionError

INTERFACE_OPTIONS = [
    (scope, name)
    for scope, options in OPTIONS.items()
    for name, option in options.items()
    if option.spec.kind in (Kind.INTERFACE, Kind.IPV4_INTERFACE)
]


def test_every_option_that_names_an_interface_is_one() -> None:
    """W10: none of them is unchecked text."""
    named = [
        (scope, name) for scope, options in OPTIONS.items() for name in options if name.endswith("_interface")
    ]
    assert named == INTERFACE_OPTIONS
    assert len(named) == 6


@pytest.mark.parametrize(
    "value", ["'\"eth0\"'", "10.29.0.0/40", "10.29.300.1", "eth0/24", "name-that-is-too-long", "fd00::1/129"]
)
@pytest.mark.parametrize(("scope", "name"), INTERFACE_OPTIONS)
def test_an_impossible_value_is_refused_when_it_is_read(scope: Scope, name: str, value: str) -> None:
    """W10: `umstack config check` reports it with the option's name."""
    with pytest.raises(ConfigError, match=name):
        Config.parse(f"{scope} {name} {value}")


@pytest.mark.parametrize("value", ["127.0.0.1", "127.0.0.0/8", "lo"])
def test_each_form_works_where_it_is_used(value: str) -> None:
    """W10: the request port, connections to requesters and LBT-RU use the interface that the value identifies."""

    def respond(event: object) -> None:
        if isinstance(event, Request):
            event.respond(b"r")

    both = {"request_tcp_interface": value, "response_tcp_interface": value}
    with open_context(**both) as context, open_context(**both) as other:
        context.receiver("requests", respond)
        source = other.source("requests", flow_control="min")
        source.wait_connected(timeout=SECONDS)
        assert source.request(b"?").first(timeout=SECONDS).data == b"r"
        receiver = context.receiver("unicast", transport_lbtru_interface=value)
        unicast = other.source("unicast", transport="lbtru", transport_lbtru_interface=value)
        unicast.wait_connected(timeout=SECONDS)
        unicast.send(b"x", flush=True)
        assert next(iter(receiver)).data == b"x"  # type: ignore[union-attr]


@pytest.mark.parametrize("value", ["no-such-one", "10.99.0.0/16", "192.0.2.1"])
def test_an_interface_that_is_not_here_is_named_with_its_option(value: str) -> None:
    """W10: the error contains the option and the interfaces there are."""
    with (
        open_context(request_tcp_interface=value) as context,
        pytest.raises(OptionError, match=f"request_tcp_interface.*{value}"),
    ):
        context.source("requests", late_join=1)
    with open_context() as context, pytest.raises(OptionError, match=f"transport_lbtru_interface.*{value}"):
        context.source("unicast", transport="lbtru", transport_lbtru_interface=value)
