"""`umstack demo`: runs the demo and prints its results.

One file, because progress, tables and JSON show the same figures of the same runs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self, get_args

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn
from rich.table import Table

from umstack.cli.demo_tables import print_batch, print_tables
from umstack.cli.interruption import INTERRUPTED_STATUS, terminable
from umstack.cli.meter import amount
from umstack.cli.stack_options import JSON_OPTION
from umstack.demo import (
    DemoProgress,
    DemoReport,
    DemoResult,
    DemoSettings,
    SubscriberResult,
    default_tree,
    run_demo,
)
from umstack.demo.live_tables import LiveTables, TablesResult
from umstack.demo.live_tables import why_no_tables as demo_why_no_tables
from umstack.demo.processes import Child
from umstack.demo.report import prepare_report, write_report
from umstack.demo.report import why_no_report as demo_why_no_report
from umstack.demo.settings import Transport, WantedLinks
from umstack.demo.watching import Watch
from umstack.lab import Lab

_LINK_NAMES = {"xdp": "AF_XDP", "socket": "sockets"}
_TRANSPORT_NAMES = {"lbtrm": "LBT-RM", "lbtru": "LBT-RU", "tcp": "LBT-TCP"}
_LOG_INTERVAL_SECONDS = 2.0
_PLAIN_WIDTH = 100
_PROBLEMS_SHOWN_MAX = 5
_FINDINGS_SHOWN_MAX = 6
_RECOVERY_NAME = "late join and off-transport recovery"
_DRIVER_NAME = "three processes behind one driver"
_STORED_NAME = "from a Store, after the publisher has ended"
_RECOVERY_LEGEND = "messages fetched over TCP from the publisher's retention, and retransmissions received"
_COLUMNS = ("#", "MB/s", "dropped", "missing", "NAKs", "repairs", "p50 ms", "p99 ms", "lost", "verified")
_LEGEND = (
    "dropped by the switch, losses detected, NAKs sent, retransmissions received, recovery time, "
    "unrecoverably lost, files verified by SHA-256"
)
_TCP_LEGEND = "over TCP the kernel recovers losses: only the drops of the switch are counted here"
_EXAMPLES = """\b
Examples:
  umstack demo
  umstack demo --tree /usr/share/doc --loss 0.05 --subscribers 5 --seed 7
  umstack demo --link socket
  umstack demo --transport lbtru --resolver
  umstack demo --json | jq '.ok, .runs[].transfer_seconds'
"""


@click.command(epilog=_EXAMPLES)
@click.option(
    "--tree",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory to send. Default: the standard library of this Python.",
)
@click.option(
    "--loss",
    type=click.FloatRange(0, 0.5),
    default=0.02,
    show_default=True,
    help="Fraction of the datagrams that the switch drops at each subscriber's port.",
)
@click.option(
    "--subscribers", type=click.IntRange(1, 16), default=3, show_default=True, help="Number of subscribers."
)
@click.option(
    "--link",
    type=click.Choice(get_args(WantedLinks)),
    default="both",
    show_default=True,
    help="AF_XDP rings, kernel sockets, or one run over each.",
)
@click.option(
    "--transport",
    type=click.Choice(get_args(Transport)),
    default="lbtrm",
    show_default=True,
    help="Reliable multicast, reliable unicast, or TCP (without AF_XDP).",
)
@click.option(
    "--resolver",
    "has_resolver",
    is_flag=True,
    help="Use a router without multicast instead of the switch, and `umstack resolver` on an additional host.",
)
@click.option("--seed", type=int, help="Seed of the losses, to repeat a run.")
@click.option(
    "--report",
    "report_directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo-report"),
    show_default=True,
    help="Directory for the captures and the report.",
)
@click.option("--no-report", is_flag=True, help="Do not capture and report.")
@click.option(
    "--without-spark",
    is_flag=True,
    help="Do not keep tables of the captures with Spark during the transfers.",
)
@click.option(
    "--loopback", is_flag=True, help="Use lo instead of network namespaces; nothing is dropped there."
)
@click.option(
    "--recovery/--no-recovery",
    default=True,
    help="Also show late join and off-transport recovery (20 s).",
)
@click.option(
    "--store/--no-store",
    default=True,
    help="Also show a subscriber that starts after the publisher has ended.",
)
@click.option(
    "--driver/--no-driver",
    default=True,
    help="Also send to unprivileged processes that share the driver of one host.",
)
@JSON_OPTION
def command(
    tree: Path | None,
    loss: float,
    subscribers: int,
    link: WantedLinks,
    transport: Transport,
    has_resolver: bool,
    seed: int | None,
    report_directory: Path,
    no_report: bool,
    without_spark: bool,
    loopback: bool,
    recovery: bool,
    store: bool,
    driver: bool,
    as_json: bool,
) -> None:
    """Send a file tree to several subscribers across a switch that drops datagrams.

    One run uses AF_XDP and one kernel sockets; the results are shown side by side. If AF_XDP is unavailable the demo
    shows why. A third, slow run has a subscriber that starts in the middle and one whose cable is unplugged for 15 s.
    In the next one a subscriber starts after the publisher has ended, and gets every file from a Store.
    In the last run three processes without privileges share the driver of one host.
    Before each run with loss over one link the tree is sent without loss, for comparison of the rates.
    The first three runs are captured at the switch. A pipeline on Spark keeps tables of the captures during the
    transfers; its findings are shown when it has them. The demo ends with a report on the captures, which is made
    without Spark, and queries of the tables.
    Status 0 only if every subscriber has every file, with the SHA-256 of the original, and the tables equal the report.
    """
    chosen: dict[str, Any] = {"loss": loss, "subscribers": subscribers, "link": link, "loopback": loopback}
    chosen |= {
        "has_recovery": recovery,
        "has_store": store,
        "has_driver": driver,
        "transport": transport,
        "has_resolver": has_resolver,
    }
    chosen |= {"seed": seed} if seed is not None else {}
    why_no_report = "--no-report" if no_report else "there is no switch" if loopback else demo_why_no_report()
    settings = DemoSettings(
        tree or default_tree(), report=report_directory if why_no_report is None else None, **chosen
    )
    why_no_tables = (
        "--without-spark" if without_spark else why_no_report or Lab.supported() or demo_why_no_tables()
    )
    written: dict[str, Any] | None = None
    tables: TablesResult | None = None
    if settings.report is not None:
        prepare_report()
    try:
        with terminable(once=True), Watch() as watch, ExitStack() as running:
            live = None
            if settings.report is not None and why_no_tables is None:
                live = running.enter_context(LiveTables(settings.report))
            display = running.enter_context(_Display(watch, live))
            report = run_demo(settings, display.show)
            if live is not None:
                live.finish()
            if settings.report is not None and all(run.network == "lab" for run in report.runs):
                written = write_report(settings.report, settings.loss, display.show_step)
            if live is not None:
                tables = live.result(settings.loss, display.show_batch)
    except KeyboardInterrupt:
        click.echo("umstack: interrupted; the lab was removed", err=True)
        raise SystemExit(INTERRUPTED_STATUS) from None
    is_ok = report.ok and (tables is None or tables.ok)
    if as_json:
        runs = [_described(run) for run in report.runs]
        said: dict[str, Any] = {"ok": is_ok, "why_no_rings": report.why_no_rings, "runs": runs}
        said["recovery"] = _described(report.recovery) if report.recovery is not None else None
        said["why_no_recovery"] = report.why_no_recovery
        said["stored"] = _described(report.stored) if report.stored is not None else None
        said["driver"] = _described(report.driver) if report.driver is not None else None
        said["why_no_driver"] = report.why_no_driver
        watched = watch.as_json()
        said |= {"watch": watched, "report": written, "why_no_report": why_no_report}
        said |= {"tables": None if tables is None else asdict(tables), "why_no_tables": why_no_tables}
        click.echo(json.dumps(said))
    else:
        print_report(report)
        _print_scrapes(watch)
        _print_findings(written, why_no_report)
        print_tables(tables, why_no_tables)
    if not is_ok:
        raise SystemExit(1)


class _Display:
    """Progress on stderr: bars on a terminal, otherwise a line every two seconds.

    The first line shows the address of the live page. Metrics are scraped once the transfer has started.
    """

    def __init__(self, watch: Watch, tables: LiveTables | None) -> None:
        self._watch = watch
        self._live_tables = tables
        self._console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description:<14}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TextColumn("{task.fields[state]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._name = ""
        self._phase = ""
        self._next_line = 0.0

    def show(self, progress: DemoProgress) -> None:
        """Show the progress of the run."""
        name = _RECOVERY_NAME if progress.is_recovery else _LINK_NAMES[progress.link]
        name = _DRIVER_NAME if progress.is_shared else _STORED_NAME if progress.is_stored else name
        name += " without loss" if progress.is_lossless else ""
        if name != self._name:
            self._name = name
            for ended in self._tasks.values():
                self._bars.remove_task(ended)
            self._tasks.clear()
        if progress.phase != self._phase:
            self._phase = progress.phase
            self._next_line = time.monotonic() + _LOG_INTERVAL_SECONDS
            size = f"{progress.files:,} files, {amount(progress.bytes)}"
            self._console.print(f"{name}, {self._phase}: {size}", highlight=False)
        elif not self._console.is_terminal and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LOG_INTERVAL_SECONDS
            said = ", ".join(f"{child.name} {_far(child)}" for child in progress.children)
            self._console.print(f"  {said}", highlight=False, soft_wrap=True)
        if progress.phase == "transferring":
            self._watch.scrape(progress.link, len(progress.children))
        if self._live_tables is not None and (news := self._live_tables.news()) is not None:
            self.show_batch(news)
        for child in progress.children:
            task = self._tasks.get(child.name)
            if task is None:
                task = self._tasks[child.name] = self._bars.add_task(
                    child.name, total=progress.bytes, state=""
                )
            self._bars.update(task, completed=child.progress.get("bytes", 0), state=_state(child))

    def show_batch(self, news: dict[str, Any]) -> None:
        """Show a batch of the pipeline."""
        print_batch(self._console, news)

    def show_step(self, step: str, number: int, of: int) -> None:
        """Show the progress of the report."""
        if not self._console.is_terminal and time.monotonic() < self._next_line:
            return
        self._next_line = time.monotonic() + _LOG_INTERVAL_SECONDS
        self._console.print(f"report, {number} of {of}: {step.replace('_', ' ')}", highlight=False)

    def __enter__(self) -> Self:
        self._console.print(
            f"watch it at {self._watch.page_url}; metrics are at {self._watch.metrics_url}",
            highlight=False,
            soft_wrap=True,
        )
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()


def _far(child: Child) -> str:
    return f"{amount(child.progress.get('bytes', 0))} {_state(child)}".rstrip()


def _state(child: Child) -> str:
    if child.state == "received" and "verified" in child.progress:
        return f"{child.progress['verified']:,} entries hashed"
    return child.state


def _described(result: DemoResult) -> dict[str, Any]:
    fields = asdict(result)
    for described, subscriber in zip(fields["subscribers"], result.subscribers, strict=True):
        described["verified"] = result.is_verified(subscriber)
        described["megabytes_per_second"] = subscriber.megabytes_per_second
    rates = {name: getattr(result, name) for name in ("megabytes_per_second", "ratio_to_lossless")}
    return {"ok": result.ok, **rates, **fields}


def _print_scrapes(watch: Watch) -> None:
    for link, scrape in watch.scrapes.items():
        click.echo(
            f"{_LINK_NAMES[link]}: metrics were scraped at {watch.metrics_url}: {scrape.samples:,} samples of "
            f"{scrape.contexts} contexts"
        )


def print_report(report: DemoReport) -> None:
    """Print the tables of all runs, and the verdict."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, _PLAIN_WIDTH)
    for run in report.runs:
        _print(console, run)
    if len(report.runs) > 1:
        console.print("\nside by side", highlight=False)
        console.print(_side_by_side(report.runs))
    if report.recovery is not None:
        _print_recovery(console, report.recovery)
    elif report.why_no_recovery is not None:
        why = f"late join and off-transport recovery not shown: {report.why_no_recovery}"
        console.print(why, style="yellow", highlight=False, markup=False)
    if report.stored is not None:
        _print_stored(console, report.stored)
    if report.driver is not None:
        _print_driver(console, report.driver)
    elif report.why_no_driver is not None:
        why = f"{_DRIVER_NAME} not shown: {report.why_no_driver}"
        console.print(why, style="yellow", highlight=False, markup=False)
    if report.why_no_rings is not None:
        why = f"sockets only, no AF_XDP here: {report.why_no_rings}"
        console.print(why, style="yellow", highlight=False, markup=False)
    where = f" over {' and '.join(_LINK_NAMES[run.link] for run in report.runs)}"
    verdict = f"every file verified at every subscriber{where}" if report.ok else "NOT everything arrived"
    console.print(verdict, style="bold green" if report.ok else "bold red")


def _print_recovery(console: Console, result: DemoResult) -> None:
    size = f"{result.files:,} files, {amount(result.bytes)}, in {result.transfer_seconds:.1f} s"
    console.print(f"\n{_RECOVERY_NAME}: {size}, by {_TRANSPORT_NAMES[result.transport]}", highlight=False)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0, 0, 1))
    table.add_column("#", justify="right")
    table.add_column("")
    for column in ("late join", "off-transport", "repairs", "lost", "verified"):
        table.add_column(column, justify="right", no_wrap=True)
    for subscriber in result.subscribers:
        table.add_row(
            str(subscriber.number),
            subscriber.role,
            f"{subscriber.late_join_messages:,}",
            f"{subscriber.otr_messages:,}",
            f"{subscriber.retransmissions_received:,}",
            f"{subscriber.unrecoverable:,}",
            f"{subscriber.files_verified:,}/{result.files:,}",
            style="" if result.is_verified(subscriber) else "red",
        )
    console.print(table)
    console.print(_RECOVERY_LEGEND, style="dim", highlight=False)
    for problem in _problems(result):
        console.print(problem, style="red", highlight=False, markup=False)


def _print_stored(console: Console, result: DemoResult) -> None:
    size = f"{result.files:,} files, {amount(result.bytes)}, published in {result.transfer_seconds:.1f} s"
    console.print(f"\n{_STORED_NAME}: {size}", highlight=False)
    for one in result.subscribers:
        dropped = (
            "" if one.dropped_at_switch is None else f", {one.dropped_at_switch:,} datagrams to it dropped"
        )
        console.print(
            f"{one.files_verified:,} of {result.files:,} files read from the Store in {one.seconds:.1f} s{dropped}",
            style="" if result.is_verified(one) else "red",
            highlight=False,
        )
    for problem in _problems(result):
        console.print(problem, style="red", highlight=False, markup=False)


def _print_driver(console: Console, result: DemoResult) -> None:
    size = f"{result.files:,} files, {amount(result.bytes)}, in {result.transfer_seconds:.1f} s"
    rate = f"{result.megabytes_per_second:.1f} MB/s"
    console.print(
        f"\n{_DRIVER_NAME}: {size}, {rate}, {result.link_modes[0] if result.link_modes else result.link}",
        highlight=False,
    )
    for one in result.subscribers:
        style = "" if result.is_verified(one) else "red"
        text = f"process {one.number}: {one.files_verified:,} of {result.files:,} files, {one.unrecoverable} lost"
        console.print(text, style=style, highlight=False)
    for problem in _problems(result):
        console.print(problem, style="red", highlight=False, markup=False)


def _print_findings(written: dict[str, Any] | None, why_not: str | None) -> None:
    console = Console(soft_wrap=True)
    if written is None:
        if why_not is not None:
            console.print(f"no report: {why_not}", highlight=False, markup=False)
        return
    console.print(f"\nreport on the captures ({written['packets']:,} packets)", highlight=False)
    console.print(written["verdict"]["text"], highlight=False, markup=False)
    for problem in written["problems"][:_FINDINGS_SHOWN_MAX]:
        console.print(f"- {problem['cost']['text']}: {problem['text']}", highlight=False, markup=False)
    console.print(f"full report: {written['page']}", highlight=False, markup=False)


def _side_by_side(runs: Sequence[DemoResult]) -> Table:
    """Return a table with one line per figure and one column per link."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0, 0, 1))
    table.add_column("")
    for run in runs:
        table.add_column(
            f"{_LINK_NAMES[run.link]} ({'/'.join(dict.fromkeys(run.link_modes))})", justify="right"
        )
    for name, figure in _FIGURES.items():
        table.add_row(name, *(figure(run) for run in runs))
    return table


def _total(run: DemoResult, counter: str) -> str:
    return f"{sum(getattr(one, counter) for one in run.subscribers):,}"


def _worst_ms(run: DemoResult, percentile: str) -> str:
    times = [one.recovery_ms.get(percentile) for one in run.subscribers]
    return _milliseconds(max((time for time in times if time is not None), default=None))


def _nanoseconds_per_byte(seconds: float, run: DemoResult) -> str:
    return f"{seconds / run.bytes * 1e9:.2f}" if run.bytes else "-"


def _plain(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


_FIGURES: dict[str, Callable[[DemoResult], str]] = {
    "MB/s at the slowest subscriber": lambda run: f"{run.megabytes_per_second:.1f}",
    "the same without loss": lambda run: _plain(run.lossless_megabytes_per_second, ".1f"),
    "x without loss": lambda run: _plain(run.ratio_to_lossless, ".2f"),
    "seconds of the transfer": lambda run: f"{run.transfer_seconds:.1f}",
    "datagrams sent": lambda run: f"{run.publisher.get('msgs_sent', 0):,}",
    "retransmissions sent": lambda run: f"{run.publisher.get('rxs_sent', 0):,}",
    "losses detected": lambda run: _total(run, "detected_lost"),
    "NAKs sent": lambda run: _total(run, "naks_sent"),
    "dropped by a receive buffer or ring": lambda run: _total(run, "receive_drops"),
    "recovery p50 ms, worst subscriber": lambda run: _worst_ms(run, "p50"),
    "recovery p99 ms, worst subscriber": lambda run: _worst_ms(run, "p99"),
    "publisher's CPU ns per byte": lambda run: _nanoseconds_per_byte(
        run.publisher.get("cpu_seconds", 0.0), run
    ),
    "CPU ns per byte of one subscriber": lambda run: _nanoseconds_per_byte(
        sum(one.cpu_seconds for one in run.subscribers) / max(1, len(run.subscribers)), run
    ),
    "unrecoverably lost": lambda run: _total(run, "unrecoverable"),
    "subscribers with every file verified": lambda run: (
        f"{sum(map(run.is_verified, run.subscribers))}/{len(run.subscribers)}"
    ),
}


def _print(console: Console, result: DemoResult) -> None:
    console.print(
        f"\n{_LINK_NAMES[result.link]}: {result.tree}: {result.files:,} files, {amount(result.bytes)}, by "
        f"{_TRANSPORT_NAMES[result.transport]} over {_network_of(result)}",
        highlight=False,
        soft_wrap=True,
    )
    console.print(_table(result))
    console.print(_LEGEND, style="dim", highlight=False)
    if result.transport == "tcp":
        console.print(_TCP_LEGEND, style="dim", highlight=False)
    if result.lossless_megabytes_per_second is not None:
        console.print(
            f"{result.megabytes_per_second:.1f} MB/s at the slowest subscriber: {result.ratio_to_lossless:.2f} x the "
            f"{result.lossless_megabytes_per_second:.1f} MB/s of the same transfer without loss",
            highlight=False,
        )
    publisher = result.publisher
    if publisher:
        console.print(
            f"publisher: {publisher['msgs_sent']:,} datagrams and {publisher['rxs_sent']:,} retransmissions in "
            f"{publisher['seconds']:.1f} s, {publisher['naks_rcved']:,} NAKs; with set-up and verification "
            f"{result.seconds:.1f} s",
            highlight=False,
        )
    for item in result.skipped:
        console.print(f"skipped {item}", highlight=False, markup=False)
    for problem in _problems(result):
        console.print(problem, style="red", highlight=False, markup=False)


def _network_of(result: DemoResult) -> str:
    if result.network != "lab":
        where = "the loopback interface"
    elif result.daemon is not None:
        where = "a lab of network namespaces without multicast between them"
    else:
        where = "a lab of network namespaces"
    if result.daemon is not None:
        where += f", topics by `umstack resolver` at {result.daemon}"
    return where if result.why is None else f"{where} ({result.why})"


def _table(result: DemoResult) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0, 0, 1))
    for column in _COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for subscriber in result.subscribers:
        table.add_row(
            str(subscriber.number),
            f"{subscriber.megabytes_per_second:.1f}",
            "-" if subscriber.dropped_at_switch is None else f"{subscriber.dropped_at_switch:,}",
            f"{subscriber.detected_lost:,}",
            f"{subscriber.naks_sent:,}",
            f"{subscriber.retransmissions_received:,}",
            _milliseconds(subscriber.recovery_ms.get("p50")),
            _milliseconds(subscriber.recovery_ms.get("p99")),
            f"{subscriber.unrecoverable:,}",
            f"{subscriber.files_verified:,}/{result.files:,}",
            style="" if result.is_verified(subscriber) else "red",
        )
    table.caption = (
        f"{result.loss:.1%} of the datagrams dropped at each port of the switch, seed {result.seed}"
        if result.network == "lab"
        else "no switch: no datagrams are dropped on purpose"
    )
    return table


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _problems(result: DemoResult) -> list[str]:
    def of(subscriber: SubscriberResult) -> list[str]:
        texts = [f"{subscriber.entries_wrong:,} entries differ"] if subscriber.entries_wrong else []
        texts += subscriber.problems[:_PROBLEMS_SHOWN_MAX]
        if (more := len(subscriber.problems) - _PROBLEMS_SHOWN_MAX) > 0:
            texts.append(f"and {more:,} more, which --json lists")
        return [f"subscriber {subscriber.number}: {text}" for text in texts]

    return [*result.problems, *(text for subscriber in result.subscribers for text in of(subscriber))]
