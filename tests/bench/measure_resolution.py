"""Measure topic resolution at scale: many topics of many contexts, through daemons, without multicast."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from tests.bench.resolution_ends import ResolutionSpec
from umstack.bench import environment
from umstack.bench.children import CHILD_SLACK_SECONDS, BenchError, Child, running
from umstack.bench.result import Result, result
from umstack.bench.throughput import Progress
from umstack.cli.stack_options import JSON_OPTION
from umstack.config import RESOLVER_DAEMON_PORT
from umstack.lab import Host, Lab

_ENDS = "tests.bench.resolution_ends"
_OPEN_SECONDS = 60.0
# One small session per context: only resolution is measured, and a hundred contexts share the machine's memory.
_SMALL = """
context transport_lbtrm_multicast_address_low 239.192.15.1
context transport_lbtrm_multicast_address_high 239.192.15.1
context resolver_unicast_port_high 15379
source transport_lbtrm_transmission_window_size 65536
receiver receiver_queue_block_count 4
receiver receiver_queue_block_length 65536
"""


@dataclass(frozen=True, slots=True)
class ResolutionPlan:
    """Number of topics, contexts, hosts and daemons."""

    topics: int = 10_000
    contexts: int = 100
    hosts: int = 10
    daemons: int = 1
    seconds: float = 60.0
    """Time limit in seconds."""
    config: str = ""


@contextmanager
def _daemon(host: Host) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "umstack", "resolver", "--listen", host.address, "--json"]
    process = host.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        assert process.stderr is not None
        if not process.stderr.readline():
            raise BenchError(f"`{' '.join(command)}` failed")
        try:
            yield process
        finally:
            process.kill()


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(plan: ResolutionPlan, progress: Progress) -> Result:
    """Run once in a routed lab: one process per host with its share of the contexts, and daemons on separate hosts.

    Each context has sources for its share of the topics, receivers for another context's share, and must learn all
    topics.
    """
    share = plan.contexts // plan.hosts
    with Lab(hosts=plan.hosts + plan.daemons, routed=True) as lab, ExitStack() as stack:
        daemon_hosts, hosts = lab.hosts[: plan.daemons], lab.hosts[plan.daemons :]
        daemons = [stack.enter_context(_daemon(host)) for host in daemon_hosts]
        addresses = ",".join(f"{host.address}:{RESOLVER_DAEMON_PORT}" for host in daemon_hosts)
        config = f"{_SMALL}context resolver_unicast_daemon {addresses}\n{plan.config}"
        children: list[Child] = []
        for number, host in enumerate(hosts):
            spec = ResolutionSpec(
                interface=host.interface,
                config=config,
                first=number * share,
                context_count=share,
                context_total=share * plan.hosts,
                topics=plan.topics // (share * plan.hosts),
                seconds=plan.seconds,
            )
            children.append(stack.enter_context(running(host, _ENDS, spec.as_arguments("resolve"))))
        progress(f"opening {share * plan.hosts} contexts on {plan.hosts} hosts")
        for child in children:
            child.receive(_OPEN_SECONDS)
        progress(f"{plan.topics:,} topics")
        cpu = sum(_cpu_seconds(daemon.pid) for daemon in daemons)
        for child in children:
            child.order(go=True)
        found = [child.receive(plan.seconds + CHILD_SLACK_SECONDS) for child in children]
        cpu = sum(_cpu_seconds(daemon.pid) for daemon in daemons) - cpu
        for child in children:
            child.order(go=False)
        served = [_served(daemon) for daemon in daemons]
    return _summed(plan, found, served, cpu)


def _served(daemon: subprocess.Popen[str]) -> dict[str, Any]:
    daemon.send_signal(signal.SIGTERM)
    output, _ = daemon.communicate(timeout=CHILD_SLACK_SECONDS)
    return dict(json.loads(output))


def _summed(
    plan: ResolutionPlan, found: list[dict[str, Any]], served: list[dict[str, Any]], daemon_cpu: float
) -> Result:
    times = [one["resolved_seconds"] for one in found]
    return result(
        what="resolution",
        link="socket",
        cpu_seconds={
            "daemons": daemon_cpu,
            "contexts": sum(one["cpu_seconds"] for one in found),
            "making": sum(one["making_cpu_seconds"] for one in found),
        },
        detail={
            "topics": plan.topics,
            "contexts": plan.contexts,
            "hosts": plan.hosts,
            "daemons": served,
            "resolved_seconds": None if None in times else max(times),
            "made_seconds": max(one["made_seconds"] for one in found),
            "least_known": min(min(one["known"]) for one in found),
            "unresolved": sum(sum(one["unresolved"]) for one in found),
            "counters": {name: sum(one["sums"][name] for one in found) for name in found[0]["sums"]},
        },
    )


_PLAN = ResolutionPlan()


@click.command(
    epilog="Example: python -m tests.bench.measure_resolution --topics 1000 --contexts 20 --daemons 2"
)
@click.option(
    "--topics", type=click.IntRange(1), default=_PLAN.topics, show_default=True, help="Of all contexts."
)
@click.option(
    "--contexts", type=click.IntRange(2), default=_PLAN.contexts, show_default=True, help="How many."
)
@click.option(
    "--hosts", type=click.IntRange(1, 100), default=_PLAN.hosts, show_default=True, help="They are on."
)
@click.option(
    "--daemons", type=click.IntRange(1, 4), default=_PLAN.daemons, show_default=True, help="How many."
)
@click.option(
    "--seconds", type=click.FloatRange(1), default=_PLAN.seconds, show_default=True, help="When to give up."
)
@JSON_OPTION
def command(as_json: bool, **asked: float) -> None:
    """Measure how long it takes until every context knows every topic, through daemons, on hosts without multicast.

    Each context has sources for its share of the topics and receivers for another context's share, with default
    schedules and rate limits. Fails if the time limit passes first.
    """
    plan = replace(_PLAN, **asked)  # type: ignore[arg-type]
    console = Console(stderr=True)
    found = measure(plan, lambda text: console.print(f"resolution: {text}", highlight=False))
    if as_json:
        described = environment.describe(mtu=1500, segmentation="auto", pinned=False, options=[])
        click.echo(json.dumps({"environment": described, "results": [found]}))
    else:
        _print(found)
    if found["detail"]["resolved_seconds"] is None:
        raise SystemExit(1)


def _print(found: Result) -> None:
    detail, counters = found["detail"], found["detail"]["counters"]
    seconds = detail["resolved_seconds"]
    click.echo(f"{detail['topics']:,} topics of {detail['contexts']} contexts on {detail['hosts']} hosts:")
    if seconds is None:
        click.echo(
            f"  not resolved: {detail['unresolved']:,} receivers, {detail['least_known']:,} topics known at least"
        )
    else:
        click.echo(f"  resolved after {seconds:.1f} s")
    cpu = found["cpu_seconds"]
    click.echo(f"  processor time: daemons {cpu['daemons']:.1f} s, contexts {cpu['contexts']:.1f} s")
    click.echo(
        f"  contexts sent {counters['tr_dgrams_sent']:,} datagrams and received {counters['tr_dgrams_rcved']:,}, "
        f"{counters['tr_advertisements_rcved'] + counters['tr_queries_rcved']:,} records"
    )
    for daemon in detail["daemons"]:
        click.echo(
            f"  daemon {daemon['address']}: received {daemon['datagrams_received']:,}, "
            f"relayed {daemon['datagrams_relayed']:,}, not sent {daemon['send_failed']:,}"
        )


if __name__ == "__main__":
    command()
