"""`umstack lab`: hosts and a lossy switch or router in network namespaces, from the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, get_args

import click
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from umstack.lab import Host, Lab, LabError, PortDirection, Segmentation, namespaces

_EXAMPLES = """\b
Examples:
  umstack lab up --hosts 4 --loss 2%
  umstack lab run 1 -- umstack recv orders
  umstack lab set --host 1 --loss 10% --reorder 1%
  umstack lab status
  umstack lab down
  umstack lab up --name cloud --routed                   a network without multicast
"""


def _rate(text: str) -> float:
    """Read a fraction or a percentage: `0.02` or `2%`."""
    try:
        rate = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        rate = -1.0
    if not 0 <= rate <= 1:
        raise click.BadParameter(f"{text} is not a rate: give a fraction like 0.02 or a percentage like 2%")
    return rate


_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
_LAB = click.option("--lab", "name", help="Name of the lab. Needed if several are up.")


@click.group(epilog=_EXAMPLES)
def command() -> None:
    """Create hosts and a lossy switch from network namespaces.

    Each host has an interface eth0 at a port of a switch that snoops IGMP; each port can lose, duplicate, reorder,
    corrupt or block the UDP datagrams that pass it. With --routed, a router that forwards only unicast replaces the
    switch. No traffic leaves the lab.
    """


@command.command(epilog="Example: umstack lab up --hosts 4 --loss 2% --seed 7")
@click.option("--name", help="Name of the lab. Default: random.")
@click.option("--hosts", default=4, show_default=True, help="Number of hosts.")
@click.option("--mtu", default=1500, show_default=True, help="MTU of every cable, in bytes.")
@click.option(
    "--loss",
    type=_rate,
    metavar="RATE",
    default="0",
    help="Rate of datagrams dropped at each port toward its host.",
)
@click.option("--duplicate", type=_rate, metavar="RATE", default="0", help="Rate of duplicated datagrams.")
@click.option(
    "--reorder", type=_rate, metavar="RATE", default="0", help="Rate of datagrams that are overtaken."
)
@click.option("--seed", type=int, help="Seed of the faults, to repeat an earlier lab.")
@click.option(
    "--segmentation",
    type=click.Choice(get_args(Segmentation)),
    default="auto",
    show_default=True,
    help="real: cut GSO super-packets where they leave a host. offload: forward them whole.",
)
@click.option(
    "--routed", is_flag=True, help="Use one subnet per host, and a router that forwards no multicast."
)
@_JSON
def up(as_json: bool, **options: Any) -> None:
    """Create a lab that persists until it is taken down."""
    lab = Lab(**options, lasting=True)
    with Console(stderr=True).status(f"making {lab.name}"):
        lab.up()
    if as_json:
        click.echo(json.dumps({"lab": _described(lab)}))
        return
    _print_table([lab])
    click.echo(f"\nNext: umstack lab run --lab {lab.name} 0 -- COMMAND, umstack lab down {lab.name}")


@command.command(epilog="Example: umstack lab down --all")
@click.argument("names", nargs=-1)
@click.option(
    "--all", "everything", is_flag=True, help="All labs without a running owner: crashed and persistent ones."
)
@click.option("--force", is_flag=True, help="Include labs of running processes.")
@_JSON
def down(names: Sequence[str], everything: bool, force: bool, as_json: bool) -> None:
    """Take labs down and end their processes. Without a name: the only persistent lab."""
    labs = Lab.all() if everything else [Lab.open(name) for name in names] or [_only_lab(None)]
    owned = [lab for lab in labs if lab.owner_pid is not None and not lab.is_stale]
    if owned and not everything and not force:
        raise LabError(
            f"{owned[0].name} belongs to the running process {owned[0].owner_pid}",
            hint="end that process, or add --force",
        )
    taken = [lab for lab in labs if force or lab not in owned]
    for lab in taken:
        lab.down()
    left = [lab.name for lab in labs if lab not in taken]
    if as_json:
        click.echo(json.dumps({"taken_down": [lab.name for lab in taken], "left": left}))
        return
    click.echo(f"taken down: {', '.join(lab.name for lab in taken) or 'none'}")
    if left:
        click.echo(f"kept, because running processes own them (use --force): {', '.join(left)}")


@command.command(epilog="Example: umstack lab status --json")
@click.argument("names", nargs=-1)
@_JSON
def status(names: Sequence[str], as_json: bool) -> None:
    """Show all labs, their hosts, and the faults and counters of their ports."""
    labs = [Lab.open(name) for name in names] or Lab.all()
    if as_json:
        click.echo(json.dumps({"labs": [_described(lab) for lab in labs]}))
    elif labs:
        _print_table(labs)
    else:
        click.echo("no lab is up; `umstack lab up` creates one")


@command.command(
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True},
    epilog="Example: umstack lab run 1 -- ip address",
)
@_LAB
@click.argument("host", type=int)
@click.argument("argv", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@_JSON
def run(name: str | None, host: int, argv: Sequence[str], as_json: bool) -> None:
    """Run a command on a host, replacing this process. With --json, report its status and output."""
    lab = _only_lab(name)
    target = _host(lab, host)
    argv = argv[1:] if argv[0] == "--" else argv
    if not argv:
        raise click.UsageError("give a command to run")
    try:
        if not as_json:
            namespaces.enter(target.namespace)
            # Python ignores SIGPIPE, and exec preserves ignored signals.
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.execvp(argv[0], list(argv))
        child = target.run(
            list(argv), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        )
    except OSError as error:
        raise LabError(
            f"cannot run {argv[0]}: {error.strerror}", hint="check the spelling and the path"
        ) from error
    said, complained = child.communicate()
    report = {
        "lab": lab.name,
        "host": host,
        "exit_status": child.returncode,
        "stdout": said,
        "stderr": complained,
    }
    click.echo(json.dumps(report))
    raise SystemExit(child.returncode if child.returncode >= 0 else 128 - child.returncode)


@command.command("set", epilog="Example: umstack lab set --host 1 --loss 5% --unicast")
@_LAB
@click.option(
    "--host", "numbers", type=int, multiple=True, help="Host whose port to change; repeatable. Default: all."
)
@click.option("--direction", type=click.Choice(get_args(PortDirection)), default="to_host", show_default=True)
@click.option("--loss", type=_rate, metavar="RATE", help="Rate of dropped datagrams.")
@click.option("--duplicate", type=_rate, metavar="RATE", help="Rate of duplicated datagrams.")
@click.option("--reorder", type=_rate, metavar="RATE", help="Rate of datagrams that are overtaken.")
@click.option("--corrupt", type=_rate, metavar="RATE", help="Rate of datagrams with one flipped bit.")
@click.option("--reorder-depth", type=int, help="Number of datagrams that overtake one.")
@click.option("--block/--no-block", default=None, help="Drop every datagram.")
@click.option("--unicast/--no-unicast", default=None, help="Also apply the faults to unicast UDP (NAKs).")
@click.option("--tcp/--no-tcp", default=None, help="Also apply the faults to TCP segments.")
@click.option("--seed", type=int, help="Restart the series of faults with this seed.")
@click.option("--mtu", type=int, help="MTU of the cable, in bytes.")
@_JSON
def set_ports(
    name: str | None,
    numbers: Sequence[int],
    direction: PortDirection,
    mtu: int | None,
    as_json: bool,
    **changes: Any,
) -> None:
    """Change the faults of ports while traffic flows."""
    lab = _only_lab(name)
    wanted = {key: value for key, value in changes.items() if value is not None}
    for host in [_host(lab, number) for number in numbers] or lab.hosts:
        if mtu is not None:
            host.set_mtu(mtu)
        lab.port(host.number, direction).set(**wanted)
    if as_json:
        click.echo(json.dumps({"lab": _described(lab)}))
    else:
        _print_table([lab])


def _only_lab(name: str | None) -> Lab:
    """Return the lab of that name or, without one, the only lab that is up."""
    if name is not None:
        return Lab.open(name)
    labs = [lab for lab in Lab.all() if not lab.is_stale]
    lasting = [lab for lab in labs if lab.owner_pid is None]
    candidates = lasting or labs
    if not candidates:
        raise LabError("no lab is up", hint="`umstack lab up` creates one")
    if len(candidates) > 1:
        raise LabError(
            f"there are several labs: {', '.join(lab.name for lab in candidates)}", hint="name one of them"
        )
    return candidates[0]


def _host(lab: Lab, number: int) -> Host:
    if not 0 <= number < len(lab.hosts):
        raise LabError(f"{lab.name} has no host {number}", hint=f"use 0 to {len(lab.hosts) - 1}")
    return lab.hosts[number]


def _state(lab: Lab) -> str:
    if lab.is_stale:
        return "stale"
    return "lasting" if lab.owner_pid is None else "owned"


def _described(lab: Lab) -> dict[str, Any]:
    """Describe a lab; hosts of a stale lab may be missing or unreadable."""
    described: dict[str, Any] = {
        "name": lab.name,
        "state": _state(lab),
        "owner_pid": lab.owner_pid,
        "seed": lab.seed,
        "segmentation": lab.segmentation,
        "is_routed": lab.is_routed,
        "switch_namespace": lab.switch_namespace,
        "hosts": [],
    }
    if lab.is_stale:
        return described
    for host in lab.hosts:
        # While a lab is being taken down, only some of its hosts can be read.
        with suppress(LabError):
            described["hosts"].append(_described_host(lab, host))
    return described


def _described_host(lab: Lab, host: Host) -> dict[str, Any]:
    interface = host.facts()
    ports = {
        direction: {"settings": asdict(port.settings()), "counters": asdict(port.counters())}
        for direction in get_args(PortDirection)
        for port in [lab.port(host.number, direction)]
    }
    return {
        "number": host.number,
        "namespace": host.namespace,
        "interface": interface.name,
        "address": host.address,
        "mtu_bytes": interface.mtu_bytes,
        "is_up": interface.is_usable,
        "ports": ports,
    }


def _print_table(labs: Sequence[Lab]) -> None:
    console = Console()
    for lab in labs:
        described = _described(lab)
        middle = "a router" if lab.is_routed else "a switch"
        console.print(
            f"{lab.name}: {described['state']}, {middle}, segmentation {lab.segmentation}, seed {lab.seed}"
        )
        table = Table("host", "address", "MTU", "link", "toward it", box=SIMPLE, show_edge=False)
        for column in ("seen", "dropped", "twice", "late", "corrupted"):
            table.add_column(column, justify="right")
        for host in described["hosts"]:
            port = host["ports"]["to_host"]
            counters = port["counters"]
            table.add_row(
                str(host["number"]),
                host["address"],
                str(host["mtu_bytes"]),
                "up" if host["is_up"] else "down",
                _fates(port["settings"]),
                str(counters["seen"]),
                str(counters["dropped"] + counters["blocked"]),
                str(counters["duplicated"]),
                str(counters["reordered"]),
                str(counters["corrupted"]),
            )
        console.print(table)


def _fates(settings: dict[str, Any]) -> str:
    """Return a short description of a port's faults."""
    if settings["block"]:
        return "blocked"
    kinds = ("loss", "duplicate", "reorder", "corrupt")
    rates = [f"{name} {settings[name]:.4g}" for name in kinds if settings[name]]
    return ", ".join(rates) or "lossless"
