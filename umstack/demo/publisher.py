"""The publisher process of the demo: sends the tree and writes down what it sent."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from umstack.config import Config, Scope
from umstack.context import Context
from umstack.demo.pacing import PacedPublisher
from umstack.demo.reporting import Reporter
from umstack.demo.settings import is_left_out_of_library
from umstack.files import Manifest, ManifestEntry, TreeSender
from umstack.files.path import shown
from umstack.publisher import Publisher

_CONNECT_TIMEOUT_SECONDS = 30.0
_DRAIN_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class PublisherTask:
    """What the parent wants of it."""

    interface: str
    topic: str
    tree: str
    leave_out: bool
    subscribers: int
    manifest_file: str
    context_options: dict[str, str | int]
    source_options: dict[str, str | int]
    bytes_per_second: float = 0.0
    """How fast it sends; 0: as fast as it goes."""
    stays: bool = False
    """Keep what is retained, for receivers that come late, until SIGTERM, and then report again what was counted."""


def publish(task: PublisherTask, reporter: Reporter) -> None:
    """Carry it out."""
    config = Config().with_options(Scope.CONTEXT, task.context_options)
    config = config.with_options(Scope.SOURCE, task.source_options)
    with (
        Path(task.manifest_file).open("w") as manifest_file,
        Context(task.interface, config=config) as context,
        context.source(task.topic) as source,
    ):
        if task.subscribers:
            source.wait_connected(task.subscribers, _CONNECT_TIMEOUT_SECONDS)
        reporter.say("connected")

        def on_entry(entry: ManifestEntry) -> None:
            manifest_file.write(entry.to_json() + "\n")

        def on_progress(manifest: Manifest, bytes_of_file: int) -> None:
            reporter.progress(bytes=manifest.byte_count + bytes_of_file, files=manifest.file_count)

        start, cpu_start = time.monotonic(), time.process_time()
        publisher = (
            PacedPublisher(source, task.bytes_per_second) if task.bytes_per_second else Publisher(source)
        )
        sender = TreeSender(publisher, on_entry=on_entry, on_progress=on_progress)
        report = sender.send([task.tree + "/"], exclude=is_left_out_of_library if task.leave_out else None)
        manifest = report.manifest
        reporter.say("sent", bytes=manifest.byte_count, files=manifest.file_count)
        is_drained = task.stays or source.wait_drained(_DRAIN_TIMEOUT_SECONDS)
        facts: dict[str, Any] = {
            "seconds": time.monotonic() - start,
            "cpu_seconds": time.process_time() - cpu_start,
            "link_mode": context.link_mode,
            "drained": is_drained,
            "files": manifest.file_count,
            "directories": manifest.directory_count,
            "links": manifest.link_count,
            "bytes": manifest.byte_count,
            "manifest_sha256": manifest.sha256.hex(),
            "skipped": [f"{shown(item.path)}: {item.reason}" for item in report.skipped],
            "failed": [f"{shown(item.path)}: {item.reason}" for item in report.failed],
            "datagram_bytes": context.datagram_bytes,
            "counters": source.stats(),
        }
        manifest_file.flush()
        if task.stays:
            source.flush()
            reporter.say("result", **facts)
            with contextlib.suppress(SystemExit):
                threading.Event().wait()
            facts["counters"] = source.stats()
    reporter.say("result", **facts)
