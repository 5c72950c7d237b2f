"""The recorder of a chaos run: `umstack record` on a small disk of its own, and the account of what it recorded."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from tests.chaos.ledger import FINDINGS_MAX
from tests.chaos.payloads import stamp_of

_PLACE = "/mnt"
_FILL_TRIES = 10


class SmallDisk:
    """A tmpfs in a mount namespace of its own, which ends with the process that holds it, also after a crash."""

    def __init__(self, size_bytes: int) -> None:
        """Mount it."""
        script = f"mount -t tmpfs -o size={size_bytes} chaos {_PLACE} && echo mounted && exec cat"
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "mounted\n":
            raise OSError("a small disk for the recorder cannot be mounted: unshare or mount failed")

    @property
    def path(self) -> Path:
        """The disk as this process sees it."""
        return Path(f"/proc/{self._holder.pid}/root{_PLACE}")

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return a command that runs `argv` where `inner_path` is the disk."""
        return ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", "--", *argv]

    @property
    def inner_path(self) -> str:
        """The disk as the recorder sees it."""
        return _PLACE

    def fill(self, left_bytes: int = 0) -> None:
        """Use all space except `left_bytes`."""
        with (self.path / "filler").open("ab") as file:
            for _ in range(_FILL_TRIES):
                if (count := self._free_bytes() - left_bytes) <= 0:
                    return
                with contextlib.suppress(OSError):  # Something else took a part of the space.
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, count)

    def _free_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def free(self) -> None:
        """Release the space that `fill` used."""
        (self.path / "filler").unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount it."""
        assert self._holder.stdin is not None
        self._holder.stdin.close()
        self._holder.wait()
        assert self._holder.stdout is not None
        self._holder.stdout.close()


Numbers = dict[str, dict[int, int]]
"""By source, the number of the message at each topic sequence number."""


def check_recording(folder: Path, report: Callable[[str], None]) -> int:
    """Account for the recorded messages as a ledger does; return their number."""
    messages = _rows(folder / "messages", ["source", "sequence_number", "payload"])
    events = _rows(folder / "events", ["source", "first_sequence_number", "sequence_number", "lost"])
    lost: dict[str, list[tuple[int, int]]] = {}
    for event in events:
        if event["lost"]:
            lost.setdefault(event["source"], []).append(
                (event["first_sequence_number"], event["sequence_number"])
            )
    findings: list[str] = []
    numbers: Numbers = {}
    incarnations: dict[str, bytes] = {}
    everywhere: dict[bytes, set[int]] = {}
    for row in messages:
        source, sequence, stamp = row["source"], row["sequence_number"], stamp_of(row["payload"])
        if stamp is None:
            findings.append(f"altered: recorder: {source} sqn {sequence}")
            continue
        # A recorder that was started again records what late join delivers again: one sequence number, one message.
        if numbers.setdefault(source, {}).setdefault(sequence, stamp.number) != stamp.number:
            findings.append(f"mixed: recorder: {source} sqn {sequence} is message {stamp.number}, too")
        incarnations[source] = stamp.incarnation
        everywhere.setdefault(stamp.incarnation, set()).add(stamp.number)
    for source, incarnation in incarnations.items():
        findings += _gaps(source, numbers[source], lost.get(source, []), everywhere[incarnation])
    for finding in findings[:FINDINGS_MAX]:
        report(finding)
    return len(messages)


def _gaps(
    source: str, numbers: dict[int, int], lost: list[tuple[int, int]], everywhere: set[int]
) -> Iterator[str]:
    """Yield repeated messages of a source and missing ones that are not named as lost.

    `everywhere`: the messages of its object that were recorded, under any source. A session that moved to another
    address and back continues there under another name meanwhile.
    """
    for (sequence, number), (next_sequence, next_number) in pairwise(sorted(numbers.items())):
        between = range(number + 1, next_number)
        if next_number <= number:
            yield f"repeated: recorder: {source} message {next_number} at sqn {sequence}, {next_sequence}"
        is_named = any(first > sequence and last < next_sequence for first, last in lost)
        was_away = any(one in everywhere for one in between)
        if between and not is_named and not was_away:
            yield f"missing: recorder: {source} messages {between[0]}..{between[-1]}, not named as lost"


def _rows(folder: Path, columns: list[str]) -> list[dict[str, Any]]:
    parts = sorted(folder.rglob("part-*.parquet")) if folder.is_dir() else []
    tables = [pyarrow.parquet.ParquetFile(part).read(columns=columns) for part in parts]
    return [row for table in tables for row in pa.Table.to_pylist(table)]
