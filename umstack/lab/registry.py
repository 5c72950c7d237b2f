"""The registry of labs: a small file per lab under /run, written before the first namespace is created.

A lab belongs to the process that created it, and is stale once that process has ended. A lasting lab (`umstack lab up`)
has no owner. A namespace with a lab's name but without a record remains after a crash, and is stale as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from umstack.lab import namespaces
from umstack.lab.errors import LabError

PREFIX = "umlab-"
_DIRECTORY = Path("/run/umstack/lab")
_NAMESPACE = re.compile(rf"({PREFIX}[a-z0-9][a-z0-9_-]*)\.(switch|router|host(\d+))")
_NAME = re.compile(rf"{PREFIX}[a-z0-9][a-z0-9_-]{{0,31}}")


@dataclass(frozen=True, slots=True)
class LabRecord:
    """The record of a lab: enough to open it, or to remove it after its owner crashed."""

    name: str
    host_count: int
    mtu_bytes: int
    seed: int
    segmentation: str
    owner_pid: int | None
    owner_started_ticks: int | None
    is_routed: bool = False

    @property
    def namespaces(self) -> list[str]:
        """Its namespaces, that of the switch or router first."""
        middle = "router" if self.is_routed else "switch"
        return [f"{self.name}.{middle}", *(f"{self.name}.host{number}" for number in range(self.host_count))]

    @property
    def is_lasting(self) -> bool:
        """True if it outlives the process that created it."""
        return self.owner_pid is None

    @property
    def is_stale(self) -> bool:
        """True if its owner has ended."""
        return self.owner_pid is not None and started_ticks(self.owner_pid) != self.owner_started_ticks


def check_name(name: str) -> str:
    """Return the full name of a lab (the prefix is optional); raise for an invalid name."""
    full = name if name.startswith(PREFIX) else PREFIX + name
    if not _NAME.fullmatch(full):
        raise LabError(
            f"{name} is not a name for a lab",
            hint="use up to 32 of a-z, 0-9, - and _, a letter or digit first",
        )
    return full


def started_ticks(pid: int) -> int | None:
    """Return the start time of the process in clock ticks since boot: with the id, it identifies a process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, started = fields[0], int(fields[19])
    return None if state in "ZX" else started


def write(record: LabRecord) -> None:
    """Write the record of a lab; raise if there is one of the same name."""
    unfinished = _unfinished(record)
    try:
        os.link(unfinished, _file(record.name))
    except FileExistsError as error:
        raise LabError(
            f"a lab named {record.name} already exists",
            hint=f"use it, choose another name, or `umstack lab down {record.name}`",
        ) from error
    finally:
        unfinished.unlink()


def rewrite(record: LabRecord) -> None:
    """Replace the record of a lab."""
    _unfinished(record).replace(_file(record.name))


def erase(name: str) -> None:
    """Remove the record of a lab."""
    _file(name).unlink(missing_ok=True)


def read(name: str) -> LabRecord:
    """Return the lab of that name."""
    records = {record.name: record for record in read_all()}
    full_name = check_name(name)
    if full_name not in records:
        known = ", ".join(records) or "none"
        raise LabError(f"there is no lab {name} (existing: {known})", hint="`umstack lab up` creates one")
    return records[full_name]


def read_all() -> list[LabRecord]:
    """Return all labs: those with a record, and those of which only namespaces remain."""
    records = {}
    for file in sorted(_DIRECTORY.glob(f"{PREFIX}*.json")):
        # A vanishing record is being removed; a lab with an unreadable one is found by its namespaces.
        with contextlib.suppress(FileNotFoundError, ValueError, TypeError):
            record = LabRecord(**json.loads(file.read_text()))
            records[record.name] = record
    return [*records.values(), *_without_record(set(records))]


def _without_record(known: set[str]) -> list[LabRecord]:
    host_counts: dict[str, int] = {}
    routed: set[str] = set()
    for match in filter(None, map(_NAMESPACE.fullmatch, namespaces.names())):
        name, host_count = match[1], int(match[3]) + 1 if match[3] else 0
        if name not in known:
            host_counts[name] = max(host_counts.get(name, 0), host_count)
        if match[2] == "router":
            routed.add(name)
    return [
        LabRecord(name, count, 0, 0, "unknown", 0, 0, name in routed) for name, count in host_counts.items()
    ]


def _unfinished(record: LabRecord) -> Path:
    """Write the record to a temporary file, which is then renamed, so that it appears at once."""
    try:
        _DIRECTORY.mkdir(parents=True, exist_ok=True)
        file = _DIRECTORY / f".{record.name}.{os.getpid()}"
        file.write_text(json.dumps(asdict(record)))
    except OSError as error:
        raise LabError(
            f"cannot write the lab's record to {_DIRECTORY}: {error}", hint="run as root"
        ) from error
    return file


def _file(name: str) -> Path:
    return _DIRECTORY / f"{name}.json"
