"""`umstack sim`: whole stacks under virtual time, by seed."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from umstack.errors import naming_path
from umstack.sim import (
    Adversary,
    Canary,
    Datagram,
    Fate,
    Kind,
    Result,
    Row,
    Setup,
    Transport,
    Type,
    World,
    run_seeds,
    trace_seed,
    truth_of,
    write_capture,
)
from umstack.sim.recovery_table import RecoveryResult, measure_recovery, recovery_cases
from umstack.sim.resolution import ResolutionResult, run_resolution_seeds
from umstack.sim.seeds import option_name

_EXAMPLES = """\b
Examples:
  umstack sim --seeds 10000
  umstack sim --minutes 5 --first-seed 1
  umstack sim --seeds 10000 --adversary
  umstack sim --seeds 10000 --transport lbtru --adversary
  umstack sim --seeds 1000 --resolution
  umstack sim --recovery-table
  umstack sim --seed 4711 --trace
  umstack sim --seed 4711 --capture run.pcapng && umstack report run.pcapng --out report
  umstack sim --canary && echo "the checkers are blind"
"""
_SEEDS = 1000
_FAILURES_KEPT = 10
_SUMMED = (
    "virtual_ns",
    "event_count",
    "datagrams_sent",
    "datagrams_dropped",
    "messages_sent",
    "messages_delivered",
    "losses_declared",
    "naks_sent",
    "retransmissions",
    "fetches",
    "messages_recovered",
    "datagrams_forged",
)
_CANARIES = {option_name(canary): canary for canary in Canary if canary is not Canary.NONE}
_ADVERSARIES = {
    option_name(adversary): adversary for adversary in Adversary if adversary is not Adversary.NONE
}


@dataclass(slots=True)
class _Tally:
    """Totals of a run of seeds."""

    first_seed: int
    seeds: int = 0
    seconds: float = 0.0
    failed: list[Result] = field(default_factory=list)
    totals: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_SUMMED, 0))

    def add(self, result: Result) -> None:
        """Count one seed."""
        self.seeds += 1
        for name in _SUMMED:
            self.totals[name] += getattr(result, name)
        if result.violation:
            self.failed.append(result)

    def report(self, setup: Setup) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        failed = [
            {
                "seed": result.seed,
                "violation": result.violation,
                "scenario": result.scenario,
                "replay": result.replay,
            }
            for result in self.failed
        ]
        return {
            "first_seed": self.first_seed,
            "seeds": self.seeds,
            "canary": setup.canary.name.lower(),
            "adversary": setup.adversary.name.lower(),
            "transport": setup.transport.name.lower(),
            "transport_only": not setup.recovers,
            "failed": failed,
            "seconds": round(self.seconds, 3),
            "seeds_per_second": round(self.seeds / self.seconds, 1) if self.seconds else 0,
            "totals": self.totals,
        }


def _run(tally: _Tally, count: int | None, deadline: float | None, setup: Setup) -> None:
    began = time.monotonic()
    columns = (
        SpinnerColumn(),
        TextColumn("seed {task.fields[seed]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[failures]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=count, seed=tally.first_seed, failures="")
        for result in run_seeds(tally.first_seed, count, setup):
            tally.add(result)
            failures = f"[red]{len(tally.failed)} failed" if tally.failed else ""
            progress.update(task, advance=1, seed=result.seed, failures=failures)
            if len(tally.failed) == _FAILURES_KEPT or (deadline is not None and time.monotonic() >= deadline):
                break
    tally.seconds = time.monotonic() - began


def _print_tally(tally: _Tally, setup: Setup) -> None:
    totals = tally.totals
    for result in tally.failed:
        click.echo(f"seed {result.seed}: {result.violation}\n  {result.scenario}\n  {result.replay}")
    click.echo(
        f"{tally.seeds} seeds from {tally.first_seed}: {len(tally.failed)} failed; "
        f"{tally.seconds:.1f} s, {tally.seeds / tally.seconds:.0f} seeds/s"
    )
    click.echo(
        f"{totals['virtual_ns'] / 1e9:.0f} s of virtual time, {totals['datagrams_sent']} datagrams sent, "
        f"{totals['datagrams_dropped']} dropped, {totals['naks_sent']} NAKs, "
        f"{totals['retransmissions']} retransmissions, {totals['messages_delivered']} messages delivered, "
        f"{totals['losses_declared']} losses declared"
        + (
            f"; {totals['fetches']} late joins and off-transport recoveries fetched "
            f"{totals['messages_recovered']} of the messages"
            if totals["fetches"]
            else ""
        )
        + (f", {totals['datagrams_forged']} datagrams forged" if setup.adversary else "")
    )


def _run_resolution(first_seed: int, seeds: int | None, deadline: float | None, as_json: bool) -> bool:
    """Run seeds of topic resolution under attack. Return true if all checks passed."""
    began, ran, forged, failed = time.monotonic(), 0, 0, list[ResolutionResult]()
    for result in run_resolution_seeds(first_seed, seeds):
        ran, forged = ran + 1, forged + result.forged
        if result.violation:
            failed.append(result)
        if len(failed) == _FAILURES_KEPT or (deadline is not None and time.monotonic() >= deadline):
            break
    seconds = time.monotonic() - began
    if as_json:
        failures = [{"seed": one.seed, "violation": one.violation, "replay": one.replay} for one in failed]
        report = {"seeds": ran, "first_seed": first_seed, "datagrams_forged": forged, "failed": failures}
        click.echo(json.dumps({**report, "seconds": round(seconds, 3)}))
        return not failed
    for one in failed:
        click.echo(f"seed {one.seed}: {one.violation}\n  {one.replay}")
    click.echo(
        f"{ran} seeds of topic resolution from {first_seed}: {len(failed)} failed; {seconds:.1f} s, {forged} forged"
    )
    return not failed


def _recovery_line(result: RecoveryResult) -> str:
    return (
        f"{result.case.name:38} {result.losses:6}  {result.median:6.2f} {result.p99:7.2f}"
        f"  {result.median_of_bound:6.2f} {result.p99_of_bound:7.2f}  {result.repairs_per_need:7.2f}"
        f"  {result.naks_per_loss:4.2f}  {result.false_naks:5}  {', '.join(result.misses)}"
    ).rstrip()


def _run_recovery_table(as_json: bool) -> bool:
    """Measure the cases of the recovery table. Return true if all are within their limits."""
    results = []
    if not as_json:
        click.echo(f"{'':45}  in round trips      in bounds")
        click.echo(
            f"{'delay, loss, receivers':38} losses  median     p99  median     p99  repairs  NAKs  false  over"
        )
    for case in recovery_cases():
        results.append(measure_recovery(case))
        if not as_json:
            click.echo(_recovery_line(results[-1]))
    if as_json:
        click.echo(json.dumps([{**asdict(result), "misses": result.misses} for result in results]))
    return not any(result.misses for result in results)


def _datagram_line(datagram: Datagram) -> str:
    fate = datagram.fate.name.lower()
    if datagram.fate is Fate.DROPPED:
        fate += f" ({datagram.drop_reason.name.lower()})"
    way = f"{datagram.sender}->" + ("*" if datagram.receiver < 0 else str(datagram.receiver))
    parts = [
        f"{datagram.type.name} {way} {fate}, session {datagram.session_id:08x}, {len(datagram.data)} bytes"
    ]
    if datagram.type is Type.DATA:
        parts.append(
            f"sqn {datagram.sqn} trail {datagram.trail}" + (" retransmission" * datagram.retransmission)
        )
        parts += [f"{f.topic_index}:{f.sqn}({len(f.payload)})" for f in datagram.fragments]
        parts += [f"TSNI {topic}:{sqn}" for topic, sqn in datagram.tsnis]
    elif datagram.type is Type.SM:
        parts.append(f"lead {datagram.lead} trail {datagram.trail}")
    elif datagram.type is Type.STATUS:
        parts.append(f"next sqn {datagram.sqn}")
    elif datagram.type is Type.NCF:
        parts.append(f"{datagram.ncf_reason.name.lower()} {datagram.sqns}")
    elif datagram.type is Type.NAK:
        parts.append(str(datagram.sqns))
    return ", ".join(parts)


def _row_line(row: Row) -> str:
    sqns = f"{row.first_sequence_number}..{row.sequence_number}"
    detail = f", sqns {sqns}, {len(row.payload)} bytes" if row.kind is Kind.MESSAGE else f", sqns {sqns}"
    return f"{row.kind.name} to receiver {row.receiver}, join {row.join}{detail}"


def _trace_lines(world: World) -> Iterator[tuple[int, str]]:
    """Yield all events in time order."""
    lines = [(datagram.time_ns, 0, _datagram_line(datagram)) for datagram in world.trace()]
    lines += [(row.time_ns, 1, _row_line(row)) for row in world.rows()]
    for time_ns, _, text in sorted(lines, key=lambda line: line[:2]):
        yield time_ns, text


def _capture(world: World, file: Path) -> dict[str, Any]:
    """Write the captures of the switch and of every host, and the true events next to them."""
    packets = write_capture(world, file)
    truth = file.with_suffix(".truth.json")
    with naming_path(f"writing {truth}"):
        truth.write_text(json.dumps(truth_of(world).to_dict()))
    return {"file": str(file), "packets": packets, "truth": str(truth)}


def _show(seed: int, setup: Setup, trace: bool, capture: Path | None, as_json: bool) -> Result:
    """Run one seed and keep its world, to print or write its events."""
    result, world = trace_seed(seed, setup)
    tally = _Tally(first_seed=seed)
    tally.add(result)
    with world:
        described = tally.report(setup)
        if capture is not None:
            described["capture"] = _capture(world, capture)
        if as_json:
            if trace:
                described["trace"] = [{"time_ns": at, "event": text} for at, text in _trace_lines(world)]
            click.echo(json.dumps(described))
            return result
        for time_ns, text in _trace_lines(world) if trace else ():
            click.echo(f"{time_ns / 1e6:14.6f} ms  {text}")
        click.echo(f"{result.scenario}\n{result.violation or 'everything held'}")
        if capture is not None:
            click.echo("{packets} packets in {file}, what happened in {truth}".format(**described["capture"]))
    return result


@click.command(epilog=_EXAMPLES)
@click.option("--seeds", type=click.IntRange(min=1), help=f"Number of seeds.  [default: {_SEEDS}]")
@click.option("--first-seed", type=click.IntRange(min=0), help="First seed. Default: random.")
@click.option("--seed", type=click.IntRange(min=0), help="Run this one seed.")
@click.option("--trace", is_flag=True, help="With --seed: print every datagram and row.")
@click.option(
    "--capture",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With --seed: write the traffic of the switch and each host as pcapng, and the true events beside it.",
)
@click.option(
    "--minutes", type=click.FloatRange(min=0, min_open=True), help="Run seeds for this many minutes."
)
@click.option(
    "--canary",
    type=click.Choice(list(_CANARIES)),
    is_flag=False,
    flag_value="stale-payload",
    help="Inject a bug, which the run must detect.  [default: stale-payload]",
)
@click.option(
    "--adversary",
    type=click.Choice(list(_ADVERSARIES)),
    is_flag=False,
    flag_value="forges-control",
    help="Add an attacker that replays, floods and forges control datagrams, or also data.",
)
@click.option(
    "--transport",
    type=click.Choice([option_name(one) for one in Transport]),
    default="lbtrm",
    help="Transport of the sessions.  [default: lbtrm]",
)
@click.option(
    "--resolution", is_flag=True, help="Simulate topic resolution under attack instead of transport sessions."
)
@click.option(
    "--recovery-table",
    is_flag=True,
    help="Measure recovery times on lossy paths against their lower bound; status 1 if one is over its limit.",
)
@click.option(
    "--transport-only",
    is_flag=True,
    help="Disable late join and off-transport recovery; implied by --capture.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def command(
    seeds: int | None,
    first_seed: int | None,
    seed: int | None,
    trace: bool,
    capture: Path | None,
    minutes: float | None,
    canary: str | None,
    adversary: str | None,
    transport: str,
    resolution: bool,
    recovery_table: bool,
    transport_only: bool,
    as_json: bool,
) -> None:
    """Run whole stacks under virtual time, by seed.

    Each seed creates hosts, sessions, topics and options, and sends messages while datagrams are lost, duplicated,
    delayed, reordered and corrupted, receivers start late and fetch old messages from peers that stall, disconnect
    and lie, and clocks jump. Then the network recovers. Checkers watch every step. Status 0 only if all checks held
    for every seed. A failed seed is printed with the command that repeats it.
    """
    if recovery_table:
        if (
            (seeds, first_seed, seed, minutes, canary, adversary, capture) != (None,) * 7
            or resolution
            or trace
        ):
            raise click.UsageError("--recovery-table has its own paths and seeds: it takes --json only")
        sys.exit(0 if _run_recovery_table(as_json) else 1)
    setup = Setup(
        _CANARIES[canary] if canary else Canary.NONE,
        _ADVERSARIES[adversary] if adversary else Adversary.NONE,
        Transport[transport.upper()],
        recovers=not transport_only and capture is None,
    )
    if (trace or capture is not None) and seed is None:
        raise click.UsageError("--trace and --capture need --seed")
    if seed is not None and (seeds, first_seed, minutes) != (None, None, None):
        raise click.UsageError("--seed cannot be used with --seeds, --first-seed or --minutes")
    if resolution and (trace or capture is not None or canary or adversary):
        raise click.UsageError("--resolution has its own attacker and no trace: give seeds only")
    if seed is not None and (trace or capture is not None):
        sys.exit(1 if _show(seed, setup, trace, capture, as_json).violation else 0)
    if seed is not None:
        first_seed, seeds = seed, 1
    elif first_seed is None:
        first_seed = random.SystemRandom().randrange(2**48)
        click.echo(f"first seed: {first_seed}", err=True)
    if seeds is None and minutes is None:
        seeds = _SEEDS
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    if resolution:
        sys.exit(0 if _run_resolution(first_seed, seeds, deadline, as_json) else 1)
    tally = _Tally(first_seed)
    _run(tally, seeds, deadline, setup)
    if as_json:
        click.echo(json.dumps(tally.report(setup)))
    else:
        _print_tally(tally, setup)
    sys.exit(1 if tally.failed else 0)
