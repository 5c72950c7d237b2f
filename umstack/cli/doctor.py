"""`umstack doctor`: shows the capabilities of this host's interfaces, the mode used and possible improvements."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from umstack.cli.doctor_serving import Serving, listening_sockets, serving
from umstack.cli.meter import amount
from umstack.cli.stack_options import JSON_OPTION
from umstack.errors import InterfaceError, PermissionNeeded
from umstack.foreign_text import displayed
from umstack.sizing import udp_payload_bytes
from umstack.store.medium import Medium, measure_medium
from umstack.telemetry.host_clock import host_clock
from umstack.telemetry.statistics_reader import read_statistics
from umstack_xdp import BrokerError, XdpError, find_interface
from umstack_xdp.broker_client import ask_broker
from umstack_xdp.broker_protocol import DEFAULT_PATH
from umstack_xdp.capabilities import missing_capabilities
from umstack_xdp.confinement import IN_FORCE
from umstack_xdp.drivers import known_drivers
from umstack_xdp.facts import AttachedXdp, Facts, Napi, Unknown
from umstack_xdp.ladder import TAGS_STRIPPED, Mode, Reason, Step, Verdict, chosen, decide
from umstack_xdp.nic_host import LinuxHost
from umstack_xdp.nic_settings import check
from umstack_xdp.probe import multicast_interfaces, probe_interface
from umstack_xdp.stacking import nic_that_sends

_Found = tuple[Facts, str | None, Sequence[Step], Sequence[Reason], Serving]

_THREADED = {0: "in soft interrupts", 1: "in threads", 2: "in threads that never sleep"}
_EXAMPLES = """\b
Examples:
  umstack doctor
  umstack doctor eth1
  umstack doctor eth1 --json
  umstack doctor eth1 --store /var/lib/umstack/store
"""


@click.command(epilog=_EXAMPLES)
@click.argument("interface", required=False)
@click.option(
    "--broker", default=DEFAULT_PATH, show_default=True, help="Socket of the broker (docs/privileges.md)."
)
@click.option(
    "--store",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Measure how fast the disk of a Store confirms writes.",
)
@JSON_OPTION
def command(interface: str | None, broker: str, store: Path | None, as_json: bool) -> None:
    """Show the capabilities of INTERFACE, the mode that will be used, and how to change it.

    The row `processes` names the way that the processes of the host use: driver, exclusive rings or sockets, and why.

    Without INTERFACE: every interface that carries multicast. The exit status is 0 if at least one of them can be
    used, even if only over sockets.
    """
    try:
        wanted = multicast_interfaces() if interface is None else [find_interface(interface)]
        probed = [_with_broker(probe_interface(one), Path(broker)) for one in wanted]
    except XdpError as error:
        raise InterfaceError(error.message, hint=error.hint) from error
    contexts, unread = _running_contexts()
    listening = listening_sockets()
    found: list[_Found] = []
    for facts, used in probed:
        steps = decide(facts)
        notes = [*_notes(facts), *_notes_on_sizes(facts, contexts), *unread]
        found.append((facts, used, steps, notes, serving(facts, chosen(steps), contexts, listening)))
    if not found:
        raise InterfaceError("no interface is up and carries multicast", hint="ip link set dev NAME up")
    reports = [_report(*one) for one in found]
    medium = None if store is None else measure_medium(store)
    if as_json:
        document: dict[str, Any] = {"interfaces": reports, "clock": host_clock().as_json()}
        if medium is not None:
            problems = [{"problem": problem, "remedy": remedy} for problem, remedy in medium.problems()]
            document["store"] = {**asdict(medium), "notes": problems}
        click.echo(json.dumps(document))
    else:
        console = Console()
        console.print(f"clock: {escape(displayed(str(host_clock())))}\n")
        for one in found:
            _print(console, *one)
        if medium is not None:
            _print_medium(console, medium)
    if not any(report["mode"] for report in reports):
        raise SystemExit(1)


def _print_medium(console: Console, medium: Medium) -> None:
    console.print(
        f"[bold]store {escape(displayed(medium.directory))}[/]: {medium.file_system}, "
        f"{amount(medium.free_bytes)} free, 4 KiB and fdatasync: median {medium.sync_p50_ns / 1e6:.2f} ms, "
        f"maximum {medium.sync_maximum_ns / 1e6:.2f} ms"
    )
    for problem, remedy in medium.problems():
        console.print(escape(displayed(f"  {problem}; {remedy}")))


def _with_broker(facts: Facts, path: Path) -> tuple[Facts, str | None]:
    """Return the facts that apply to a link, including a broker's privileges, and a description of the broker."""
    if not missing_capabilities(facts.capabilities) or not path.is_socket():
        return facts, None
    try:
        broker = ask_broker(path)
        held = [name for name, state in broker.confinement.items() if state == IN_FORCE]
        by = f"by the broker at {path}, held by {', '.join(held) or 'nothing'}"
        return broker.added_to(facts), displayed(by)
    except BrokerError as error:
        return facts, error.message


def _report(
    facts: Facts, broker: str | None, steps: Sequence[Step], notes: Sequence[Reason], processes: Serving
) -> dict[str, Any]:
    mode = chosen(steps)
    return {
        "interface": facts.interface,
        "mode": None if mode is None else mode.value,
        "steps": [
            {
                "mode": step.mode.value,
                "verdict": step.verdict.value,
                "reasons": [{"problem": item.problem, "remedy": item.remedy} for item in step.reasons],
            }
            for step in steps
        ],
        "notes": [{"problem": note.problem, "remedy": note.remedy} for note in notes],
        "broker": broker,
        "processes": processes.as_json(),
        "facts": facts.to_json(),
    }


def _print(
    console: Console,
    facts: Facts,
    broker: str | None,
    steps: Sequence[Step],
    notes: Sequence[Reason],
    processes: Serving,
) -> None:
    mode = chosen(steps)
    console.print(f"[bold]{facts.interface}[/]: " + _outcome(mode))
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in _shown_facts(facts):
        table.add_row(f"  {name}", escape(displayed(value)))
    if broker is not None:
        table.add_row("  broker", escape(broker))
    table.add_row("  processes", escape(displayed(f"{processes.way}: {processes.why}")))
    table.add_row("", escape(displayed(f"to change it: {processes.remedy}")))
    console.print(table)
    ladder = Table("mode", "verdict", "why not", "how to change it", box=SIMPLE, show_edge=False)
    for step, below in zip(steps, [*steps[1:], None], strict=True):
        _add_step(ladder, step, below)
    console.print(ladder)
    if notes:
        table = Table("note", "remedy", box=SIMPLE, show_edge=False)
        for note in notes:
            table.add_row(escape(note.problem), escape(note.remedy))
        console.print(table)
    console.print()


def _outcome(mode: Mode | None) -> str:
    if mode is None:
        return "cannot be used"
    return f"{mode} will be used" + ("" if mode is Mode.SOCKET else " with link=auto")


def _add_step(table: Table, step: Step, below: Step | None) -> None:
    """Omit reasons that also exclude the next mode: they are shown there."""
    colour = {Verdict.USE: "green", Verdict.CANNOT: "yellow"}.get(step.verdict, "")
    verdict = f"[{colour}]{step.verdict}[/]" if colour else step.verdict.value
    shared = set(below.reasons) & set(step.reasons) if below else set()
    own = [reason for reason in step.reasons if reason not in shared]
    lines = [(escape(reason.problem), escape(reason.remedy)) for reason in own]
    if shared and below:
        lines.append((f"{'and ' if own else ''}the same as {below.mode}", ""))
    for number, (problem, remedy) in enumerate(lines or [("", "")]):
        table.add_row(step.mode.value if number == 0 else "", verdict if number == 0 else "", problem, remedy)


def _shown_facts(facts: Facts) -> Iterator[tuple[str, str]]:
    yield "link", _link(facts)
    for number, device in enumerate(facts.stack):
        yield ("lies on" if number == 0 else ""), str(device)
    if facts.nics:
        yield "rings", _rings_below(facts)
    for nic in facts.nics or (facts,):
        yield from _shown_nic(nic, named=bool(facts.nics))
    yield "privileges", _names(facts.capabilities)
    limit = facts.memlock_limit_bytes
    yield "locked memory", "unlimited" if limit is None else f"at most {limit} bytes"


def _rings_below(facts: Facts) -> str:
    """Describe the NICs of the rings, the VLAN filter, and the NICs that send."""
    nics = ", ".join(nic.interface for nic in facts.nics)
    vlan = next((device.vlan for device in facts.stack if device.vlan), None)
    tagged = f", for datagrams tagged with VLAN {vlan}" if vlan else ""
    if all(device.kind != "bond" for device in facts.stack):
        return f"would be on {nics}{tagged}"
    sends = nic_that_sends(facts.stack, facts.interface)
    return f"would be on {nics}{tagged}, and send by {sends or 'none of them now: by the kernel'}"


def _shown_nic(facts: Facts, *, named: bool) -> Iterator[tuple[str, str]]:
    """Return the capabilities of the device that has the queues; if it is another device, its name and link, too."""
    if named:
        yield facts.interface, f"{_state(facts)}, MTU {facts.mtu_bytes}{_speed(facts)}"
    yield "driver", f"{facts.driver}, {facts.bus}, Linux {facts.kernel_release}"
    driver = None if isinstance(facts.driver, Unknown) else known_drivers().get(facts.driver)
    if driver is not None:
        yield "expect", driver.expect
    if isinstance(facts.queues, Unknown):
        yield "queues", str(facts.queues)
    else:
        queues = facts.queues
        yield (
            "queues",
            f"{queues.rx} receive, {queues.tx} transmit (at most {queues.rx_max} and {queues.tx_max})",
        )
    yield "XDP", _names(facts.xdp_features)
    yield "NAPI", _napi(facts.napi)
    yield "timestamps", shown_timestamps(facts)
    yield "attached", _attached(facts.attached)
    yield "NUMA node", str(facts.numa_node)


def _link(facts: Facts) -> str:
    addresses = " ".join(facts.addresses) or "no IPv4 address"
    return f"{_state(facts)}, {addresses}, MTU {facts.mtu_bytes}{_speed(facts)}"


def _state(facts: Facts) -> str:
    return "up" if facts.is_up and facts.has_carrier else "no carrier" if facts.is_up else "down"


def _speed(facts: Facts) -> str:
    return "" if isinstance(facts.speed_mbps, Unknown) else f", {facts.speed_mbps} Mbit/s"


def _names(names: frozenset[str] | Unknown) -> str:
    return str(names) if isinstance(names, Unknown) else ", ".join(sorted(names)) or "none"


def _napi(instances: tuple[Napi, ...] | Unknown) -> str:
    """Describe all NAPI instances together, because `umstack nic init` sets them alike."""
    if isinstance(instances, Unknown):
        return str(instances)
    if not instances:
        return "none now: no interrupt is deferred, no thread polls"
    threads = {_threads(one.threaded) for one in instances}
    suspension = {
        str(time_ns)
        if isinstance(time_ns := one.irq_suspend_timeout_ns, Unknown)
        else f"IRQ suspension {time_ns // 1_000_000} ms"
        if time_ns
        else "no IRQ suspension"
        for one in instances
    }
    count = f"{len(instances)} instance{'s' if len(instances) > 1 else ''}"
    return f"{count}: {' and '.join(sorted(threads))}; {' and '.join(sorted(suspension))}"


def _threads(threaded: int | Unknown) -> str:
    return f"threads: {threaded}" if isinstance(threaded, Unknown) else _THREADED.get(threaded, "otherwise")


def shown_timestamps(facts: Facts) -> str:
    """Return the clocks that can stamp datagrams: always the kernel, and the NIC if its driver supports it."""
    return f"received: by the kernel; by the NIC over rings: {_received_stamps(facts)}; sent: {_sent_stamps(facts)}"


def _received_stamps(facts: Facts) -> str:
    if isinstance(facts.rx_metadata_features, Unknown):
        return str(facts.rx_metadata_features)
    if "timestamp" not in facts.rx_metadata_features:
        return "no, its driver does not provide them"
    if isinstance(facts.timestamping, Unknown) or facts.timestamping.hardware_clock is None:
        return "its driver supports the call, but has no clock for it"
    return f"yes (link_xdp_nic_timestamps), by the clock /dev/ptp{facts.timestamping.hardware_clock}"


def _sent_stamps(facts: Facts) -> str:
    if isinstance(facts.xsk_features, Unknown):
        return str(facts.xsk_features)
    return (
        "supported by the NIC, not used yet"
        if "tx-timestamp" in facts.xsk_features
        else "no, the NIC does not support it over rings"
    )


def _attached(attached: AttachedXdp | Unknown | None) -> str:
    if isinstance(attached, AttachedXdp):
        return attached.description
    return "nothing" if attached is None else str(attached)


def _notes(facts: Facts) -> Iterator[Reason]:
    """Yield notes on the interface or its NICs that matter but exclude no mode."""
    for nic in facts.nics:
        yield from _notes_of(replace(nic, vlans_above=()))
    if not facts.nics:
        yield from _notes_of(facts)


def _notes_of(facts: Facts) -> Iterator[Reason]:
    attached = facts.attached
    if isinstance(attached, AttachedXdp) and attached.steers is not False:
        problem = (
            f"groups that sockets on {facts.interface} receive, too, leave the rings of {attached.description}"
            if attached.steers
            else f"groups that {attached.description} takes do not reach sockets on {facts.interface}"
        )
        yield Reason(problem, f"umstack driver {facts.interface} for all processes, or another interface")
    if facts.is_up and not facts.has_carrier:
        yield Reason(f"{facts.interface} has no carrier", "plug the cable in, or bring the other end up")
    if facts.vlans_above and not isinstance(facts.features, Unknown) and facts.features.get(TAGS_STRIPPED):
        yield Reason(
            f"the NIC strips the tags of {', '.join(facts.vlans_above)} before XDP programs run: rings on "
            f"{facts.interface} would also receive their datagrams if group and port are the same",
            f"ethtool -K {facts.interface} {TAGS_STRIPPED} off, if rings are used here",
        )
    defers, flush_ns = facts.napi_defer_hard_irqs, facts.gro_flush_timeout_ns
    if isinstance(defers, int) and isinstance(flush_ns, int) and defers and flush_ns:
        yield Reason(
            f"interrupts are deferred: a process that does not poll waits up to {defers * flush_ns // 1000} us"
            " for each datagram",
            "set pend_busy_poll_limit or link_xdp_busy_poll in every process that receives from it, or "
            f"umstack nic undo {facts.interface}",
        )
    with LinuxHost(facts.interface) as host:
        better = [setting.key for setting in check(host) if setting.is_to_change]
    if better:
        yield Reason(
            f"settings that can be improved: {', '.join(better)}", f"umstack nic check {facts.interface}"
        )


def _running_contexts() -> tuple[list[dict[str, Any]], list[Reason]]:
    """Return the running contexts of this network namespace, or the reason why they cannot be read."""
    try:
        return [one for one in read_statistics() if _is_in_this_network(one["pid"])], []
    except PermissionNeeded as error:
        return [], [Reason(f"running contexts are not examined: {error.message}", error.hint or "")]


def _is_in_this_network(pid: int) -> bool:
    """Return true if the process is in the network namespace of this one, so that its interfaces are these."""
    try:
        return Path(f"/proc/{pid}/ns/net").samefile("/proc/self/ns/net")
    except OSError:
        return False


def _notes_on_sizes(facts: Facts, contexts: Sequence[dict[str, Any]]) -> Iterator[Reason]:
    """Yield notes on running contexts whose datagrams do not have the size that the interface carries."""
    fits = udp_payload_bytes(facts.mtu_bytes)
    for context in contexts:
        if context["interface"] != facts.interface:
            continue
        process = f"process {context['pid']}"
        if context["datagram_bytes"] > fits:
            yield Reason(
                f"{process} sends datagrams of up to {context['datagram_bytes']} bytes, which IP fragments: MTU "
                f"{facts.mtu_bytes} carries {fits}, and the loss of one fragment loses all",
                f"set transport_lbtrm_datagram_max_size to {fits} or less, or to 0",
            )
            continue
        for session in context["source_transports"]:
            on_path = session.get("path_datagram_bytes", 0)
            if session["transport"].startswith("LBTRM:") and 0 < on_path < context["datagram_bytes"]:
                yield Reason(
                    f"{process} sends datagrams of at most {on_path} bytes on {displayed(session['transport'])}: a "
                    f"link to a receiver carries less than {facts.interface}",
                    "the same MTU everywhere; path_mtu_changed in its log names the receiver",
                )
