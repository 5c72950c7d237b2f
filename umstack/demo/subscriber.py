"""A subscriber process of the demo: receives the tree, then hashes what lies on its disk and writes that down."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from umstack.config import Config, Scope
from umstack.context import Context
from umstack.demo.reporting import Reporter
from umstack.files import Target, TreeReceiver, TreeReport, scan
from umstack.reader import POLL_ROWS
from umstack.receiver import Receiver

_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class SubscriberTask:
    """What the parent wants of it."""

    interface: str
    topic: str
    directory: str
    manifest_file: str
    context_options: dict[str, str | int]
    receiver_options: dict[str, str | int]


def subscribe(task: SubscriberTask, reporter: Reporter) -> None:
    """Carry it out."""
    config = Config().with_options(Scope.CONTEXT, task.context_options)
    config = config.with_options(Scope.RECEIVER, task.receiver_options)
    with Context(task.interface, config=config) as context:
        receiver = context.receiver(task.topic)
        reporter.say("ready")
        cpu_start = time.process_time()
        with Target(task.directory) as target:
            report = _receive(receiver, TreeReceiver(target), reporter)
        facts = _facts(context, receiver, report, time.process_time() - cpu_start)
    reporter.say("received", bytes=report.manifest.byte_count, files=report.manifest.file_count)
    _write_manifest(task, reporter)
    reporter.say("result", **facts)


def _receive(receiver: Receiver, trees: TreeReceiver, reporter: Reporter) -> TreeReport:
    """Receive one tree to its end."""
    while True:
        with receiver.poll(POLL_ROWS, _POLL_SECONDS) as batch:
            events = batch.events()
        ended = trees.take(events)
        if ended:
            return ended[0]
        for report in trees.open_reports():
            reporter.progress(bytes=report.received_bytes, files=report.manifest.file_count)


def _facts(context: Context, receiver: Receiver, report: TreeReport, cpu_seconds: float) -> dict[str, Any]:
    transports = context.stats()["receiver_transports"]
    counted = (
        "lost",
        "naks_sent",
        "nak_pckts_sent",
        "rxs_rcved",
        "duplicate_data",
        "unrecovered_txw",
        "unrecovered_tmo",
    )
    own = receiver.stats()
    return {
        "complete": report.is_complete,
        "problems": [str(problem) for problem in report.problems],
        "seconds": report.seconds,
        "cpu_seconds": cpu_seconds,
        "link_mode": context.link_mode,
        "bytes": report.manifest.byte_count,
        "files": report.manifest.file_count,
        "manifest_sha256": report.manifest.sha256.hex(),
        "counters": {name: sum(transport[name] for transport in transports) for name in counted},
        "unrecoverable": sum(own[name] or 0 for name in ("unrecoverable_loss_events", "burst_loss_events")),
        "late_join_messages": own["late_join_messages"],
        "otr_messages": own["otr_messages"],
        "receive_drops": context.stats()["link_counters"]["receive_drops"],
        "recovery_ms": _recovery(context, transports),
    }


def _recovery(context: Context, transports: list[dict[str, Any]]) -> dict[str, float | None]:
    times = context.recovery_times()
    return {
        "p50": times.percentile_ms(50),
        "p99": times.percentile_ms(99),
        "max": max((transport["nak_stm_max"] for transport in transports), default=None),
    }


def _write_manifest(task: SubscriberTask, reporter: Reporter) -> None:
    """Hash every file as it lies on disk now, whatever was said while it was received."""
    with Path(task.manifest_file).open("w") as file:
        for count, entry in enumerate(scan(Path(task.directory)), start=1):
            file.write(entry.to_json() + "\n")
            reporter.progress(verified=count)
