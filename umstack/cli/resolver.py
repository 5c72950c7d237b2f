"""`umstack resolver`: a daemon that relays topic resolution between contexts without multicast."""

from __future__ import annotations

import ipaddress
import json

import click

from umstack.cli.interruption import stoppable
from umstack.cli.service_manager import ServiceManager
from umstack.cli.stack_options import JSON_OPTION
from umstack.config import RESOLVER_DAEMON_PORT
from umstack.resolution.relay import RelayPolicy, RelayServer

_EXAMPLES = f"""\\b
Examples:
  umstack resolver                                       on every address, port {RESOLVER_DAEMON_PORT}
  umstack resolver --listen 10.1.0.1 --allow 10.1.0.0/16
  umstack recv orders -o resolver_unicast_daemon=10.1.0.1,10.1.0.2
"""


@click.command(epilog=_EXAMPLES)
@click.option(
    "--listen",
    "where",
    default=f"0.0.0.0:{RESOLVER_DAEMON_PORT}",
    show_default=True,
    metavar="ADDRESS[:PORT]",
    help="Address to listen on.",
)
@click.option(
    "--allow", "networks", multiple=True, metavar="NETWORK", help="Serve only clients in this network."
)
@click.option(
    "--clients",
    "clients_max",
    type=click.IntRange(2),
    default=RelayPolicy().clients_max,
    show_default=True,
    help="Maximum number of clients.",
)
@click.option(
    "--clients-per-address",
    "address_clients_max",
    type=click.IntRange(1),
    default=RelayPolicy().address_clients_max,
    show_default=True,
    help="Maximum number of clients at one address.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0.1),
    default=RelayPolicy().client_timeout_s,
    show_default=True,
    help="Idle time in seconds after which a client is removed.",
)
@click.option(
    "--rate",
    type=click.IntRange(1),
    default=RelayPolicy().client_datagrams_per_second,
    show_default=True,
    help="Maximum datagrams per second from one client.",
)
@JSON_OPTION
def command(
    where: str,
    networks: tuple[str, ...],
    clients_max: int,
    address_clients_max: int,
    timeout_s: float,
    rate: int,
    as_json: bool,
) -> None:
    """Relay topic resolution between contexts on networks without multicast.

    Set the option resolver_unicast_daemon of each context to its address. For failover, list two daemons: contexts
    stay connected to both. Runs until Ctrl-C or SIGTERM. --json prints a summary at the end.
    """
    policy = RelayPolicy(tuple(map(_network, networks)), clients_max, address_clients_max, timeout_s, rate)
    with RelayServer(_address(where), policy) as server:
        host, port = server.address
        click.echo(f"relaying topic resolution at {host}:{port}", err=True)
        with stoppable(server.stop):
            ServiceManager().announce_readiness()
            server.serve()
        if as_json:
            click.echo(json.dumps({"address": f"{host}:{port}", **server.stats()}))


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.partition(":")
    try:
        address = str(ipaddress.IPv4Address(host))
    except ValueError:
        raise click.BadParameter(f"{host} is not an IPv4 address", param_hint="--listen") from None
    if port and not (port.isdecimal() and int(port) <= 65535):
        raise click.BadParameter(f"{port} is not a port", param_hint="--listen")
    return address, int(port) if port else RESOLVER_DAEMON_PORT


def _network(text: str) -> ipaddress.IPv4Network:
    try:
        return ipaddress.IPv4Network(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--allow") from None
