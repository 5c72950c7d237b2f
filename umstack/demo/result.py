"""Results of the demo."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class SubscriberResult:
    """Result of one subscriber: received bytes, losses and recovery."""

    number: int
    role: str = ""
    """The subscriber's part in the recovery run; empty in the other runs."""
    bytes: int = 0
    seconds: float = 0.0
    dropped_at_switch: int | None = None
    """None without a switch."""
    detected_lost: int = 0
    naks_sent: int = 0
    retransmissions_received: int = 0
    recovery_ms: dict[str, float | None] = field(default_factory=dict)
    late_join_messages: int = 0
    otr_messages: int = 0
    """Messages fetched from the publisher's retained data: sent before it started, or lost by the transport."""
    unrecoverable: int = 0
    receive_drops: int = 0
    cpu_seconds: float = 0.0
    """CPU time while receiving."""
    files_verified: int = 0
    entries_wrong: int = 0
    """Entries of the manifest that are missing or differ on this subscriber's disk, or do not belong there."""
    problems: list[str] = field(default_factory=list)

    @property
    def megabytes_per_second(self) -> float:
        """Return the rate at which files arrived."""
        return self.bytes / self.seconds / 1e6 if self.seconds else 0.0


@dataclass(slots=True)
class DemoResult:
    """The whole run."""

    network: str
    why: str | None
    link: str
    tree: str
    loss: float
    seed: int
    transport: str = "lbtrm"
    daemon: str | None = None
    """Address at which `umstack resolver` ran, if the hosts had no multicast between them."""
    files: int = 0
    directories: int = 0
    links: int = 0
    bytes: int = 0
    skipped: list[str] = field(default_factory=list)
    publisher: dict[str, Any] = field(default_factory=dict)
    subscribers: list[SubscriberResult] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    link_modes: list[str] = field(default_factory=list)
    """Link of each end, the publisher's first."""
    setup_seconds: float = 0.0
    transfer_seconds: float = 0.0
    seconds: float = 0.0
    lossless_megabytes_per_second: float | None = None
    """Rate at the slowest subscriber in a transfer of the same tree without loss in the same lab; None if there was no
    such transfer."""

    @property
    def megabytes_per_second(self) -> float:
        """Return the rate at the slowest subscriber."""
        return min((one.megabytes_per_second for one in self.subscribers), default=0.0)

    @property
    def ratio_to_lossless(self) -> float | None:
        """Return the rate relative to the transfer without loss."""
        lossless = self.lossless_megabytes_per_second
        return self.megabytes_per_second / lossless if lossless else None

    def is_verified(self, subscriber: SubscriberResult) -> bool:
        """Return true if this subscriber's disk has exactly the tree that the publisher sent."""
        whole = subscriber.files_verified == self.files and subscriber.entries_wrong == 0
        return whole and subscriber.unrecoverable == 0 and not subscriber.problems

    @property
    def ok(self) -> bool:
        """True if every subscriber has the complete tree."""
        all_there = bool(self.subscribers) and all(map(self.is_verified, self.subscribers))
        return all_there and self.files > 0 and not self.problems


@dataclass(slots=True)
class DemoReport:
    """Results of all runs."""

    runs: list[DemoResult] = field(default_factory=list)
    why_no_rings: str | None = None
    """The reason why a requested run over AF_XDP is missing."""
    recovery: DemoResult | None = None
    """The run in which a subscriber starts in the middle and another's cable is unplugged."""
    why_no_recovery: str | None = None
    driver: DemoResult | None = None
    """The run with unprivileged subscribers that share the driver of one host."""
    why_no_driver: str | None = None
    stored: DemoResult | None = None
    """The run whose subscriber starts after the publisher has ended, and reads from a Store."""

    @property
    def ok(self) -> bool:
        """True if every subscriber has the complete tree in every run."""
        others = self.recovery, self.stored, self.driver
        runs = [*self.runs, *(one for one in others if one is not None)]
        return bool(self.runs) and all(run.ok for run in runs)


def compare(sent: Path, found: Path) -> tuple[int, int]:
    """Compare two manifest files: how many files are the same, and how many entries are not."""
    wanted, there = set(sent.read_text().splitlines()), set(found.read_text().splitlines())
    same = wanted & there
    return sum(json.loads(line)[0] == "file" for line in same), len(wanted ^ there)
