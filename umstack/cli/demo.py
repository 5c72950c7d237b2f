"""`umstack demo`: the main job, shown."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn
from rich.table import Table

from umstack.cli.interruption import INTERRUPTED_STATUS, terminable
from umstack.cli.meter import amount
from umstack.cli.stack_options import JSON_OPTION
from umstack.demo import DemoProgress, DemoResult, DemoSettings, SubscriberResult, default_tree, run_demo
from umstack.demo.children import Child

_LOG_INTERVAL_SECONDS = 2.0
_PLAIN_WIDTH = 100
_PROBLEMS_SHOWN_MAX = 5
_COLUMNS = ("#", "MB/s", "dropped", "missing", "NAKs", "repairs", "p50 ms", "p99 ms", "lost", "verified")
_LEGEND = (
    "dropped by the switch, found missing, NAKs sent, repairs (retransmissions) received, recovery time, "
    "lost for good, files verified by SHA-256"
)
_EXAMPLES = """\b
Examples:
  umstack demo
  umstack demo --tree /usr/share/doc --loss 0.05 --subscribers 5 --seed 7
  umstack demo --json | jq .ok
"""


@click.command(epilog=_EXAMPLES)
@click.option(
    "--tree",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory to send; otherwise the standard library of this Python.",
)
@click.option(
    "--loss",
    type=click.FloatRange(0, 0.5),
    default=0.02,
    show_default=True,
    help="Fraction of the datagrams the switch loses at each subscriber's port.",
)
@click.option("--subscribers", type=click.IntRange(1, 16), default=3, show_default=True, help="How many.")
@click.option("--seed", type=int, help="Repeats the losses of an earlier run.")
@click.option(
    "--loopback", is_flag=True, help="Do without network namespaces: over lo, where nothing is lost."
)
@JSON_OPTION
def command(
    tree: Path | None, loss: float, subscribers: int, seed: int | None, loopback: bool, as_json: bool
) -> None:
    """Multicast a file tree to several subscribers across a switch that loses datagrams.

    Status 0 only if every file of the tree lies at every subscriber with the SHA-256 it was sent with.
    """
    chosen: dict[str, Any] = {"loss": loss, "subscribers": subscribers, "loopback": loopback}
    chosen |= {"seed": seed} if seed is not None else {}
    settings = DemoSettings(tree or default_tree(), **chosen)
    try:
        with terminable(once=True), _Display() as display:
            result = run_demo(settings, display.show)
    except KeyboardInterrupt:
        click.echo("umstack: interrupted; everything has been taken down", err=True)
        raise SystemExit(INTERRUPTED_STATUS) from None
    if as_json:
        click.echo(json.dumps(_described(result)))
    else:
        _print(result)
    if not result.ok:
        raise SystemExit(1)


class _Display:
    """Progress on stderr: bars on a terminal, a line every other second elsewhere."""

    def __init__(self) -> None:
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
        self._phase = ""
        self._next_line = 0.0

    def show(self, progress: DemoProgress) -> None:
        """Show how far it is."""
        if progress.phase != self._phase:
            self._phase = progress.phase
            self._next_line = time.monotonic() + _LOG_INTERVAL_SECONDS
            size = f"{progress.files:,} files, {amount(progress.bytes)}"
            self._console.print(f"{self._phase}: {size}", highlight=False)
        elif not self._console.is_terminal and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LOG_INTERVAL_SECONDS
            said = ", ".join(f"{child.name} {_far(child)}" for child in progress.children)
            self._console.print(f"  {said}", highlight=False, soft_wrap=True)
        for child in progress.children:
            task = self._tasks.get(child.name)
            if task is None:
                task = self._tasks[child.name] = self._bars.add_task(
                    child.name, total=progress.bytes, state=""
                )
            self._bars.update(task, completed=child.progress.get("bytes", 0), state=_state(child))

    def __enter__(self) -> Self:
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
    return {"ready": "", "connected": ""}.get(child.state, child.state)


def _described(result: DemoResult) -> dict[str, Any]:
    fields = asdict(result)
    for described, subscriber in zip(fields["subscribers"], result.subscribers, strict=True):
        described["verified"] = result.is_verified(subscriber)
        described["megabytes_per_second"] = subscriber.megabytes_per_second
    return {"ok": result.ok, **fields}


def _print(result: DemoResult) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, _PLAIN_WIDTH)
    where = "a lab of network namespaces" if result.network == "lab" else "the loopback interface"
    if result.why is not None:
        where += f" ({result.why})"
    console.print(
        f"\n{result.tree}: {result.files:,} files, {amount(result.bytes)}, over {where}", highlight=False
    )
    console.print(_table(result))
    console.print(_LEGEND, style="dim", highlight=False)
    publisher = result.publisher
    if publisher:
        console.print(
            f"publisher: {publisher['msgs_sent']:,} datagrams and {publisher['rxs_sent']:,} retransmissions in "
            f"{publisher['seconds']:.1f} s, {publisher['naks_rcved']:,} NAKs; with set-up and verification "
            f"{result.seconds:.1f} s",
            highlight=False,
        )
    for item in result.skipped:
        console.print(f"left out {item}", highlight=False, markup=False)
    for problem in _problems(result):
        console.print(problem, style="red", highlight=False, markup=False)
    verdict = "every file verified at every subscriber" if result.ok else "NOT everything arrived"
    console.print(verdict, style="bold green" if result.ok else "bold red")


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
        else "no switch: nothing is dropped on purpose"
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
