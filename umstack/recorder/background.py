"""Background recorder: `umstack record` as a separate process, started for the reader of its journal.

It outlives its starter, so messages published while a query restarts are recorded, too. It ends on its own when there
was no reader for a while: readers touch a file in the journal's directory.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from umstack.errors import error_from_os
from umstack.recorder.errors import RecorderError
from umstack.recorder.journal import LOCK_NAME

READER_NAME = "reader.alive"
LOG_NAME = "recorder.log"
_START_SECONDS = 30.0
_END_SECONDS = 10.0
_LOOK_SECONDS = 0.05
_LOG_BYTES_SHOWN = 2000


@dataclass(frozen=True, slots=True)
class BackgroundRecorder:
    """The topics to record and the place for the journal."""

    journal: Path
    topics: tuple[str, ...]
    regex: bool = False
    groups: tuple[str, ...] = ()
    interface: str | None = None
    config_file: str | None = None
    journal_mebibytes: int = 1024
    unread_seconds: float = 600.0
    """End after this many seconds without a reader."""

    def ensure(self) -> bool:
        """Start a recorder unless one writes the journal already; returns true if it was started."""
        note_reader(self.journal)
        if is_recording(self.journal):
            return False
        try:
            with (self.journal / LOG_NAME).open("ab") as log:
                process = subprocess.Popen(
                    self._command(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            raise error_from_os(error, f"starting a recorder for {self.journal}") from error
        deadline = time.monotonic() + _START_SECONDS
        while not is_recording(self.journal):
            if process.poll() is not None or time.monotonic() > deadline:
                output = (
                    (self.journal / LOG_NAME)
                    .read_bytes()[-_LOG_BYTES_SHOWN:]
                    .decode(errors="replace")
                    .strip()
                )
                raise RecorderError(
                    f"the recorder for {self.journal} did not start: {output or 'no output'}",
                    hint=f"run it manually: {' '.join(self._command())}",
                )
            time.sleep(_LOOK_SECONDS)
        return True

    def _command(self) -> Sequence[str]:
        command = [sys.executable, "-m", "umstack", "record", *self.topics, "--journal", str(self.journal)]
        command += ["--journal-size", str(self.journal_mebibytes), "--hold", "--json"]
        command += ["--until-unread", str(self.unread_seconds)]
        command += ["--regex"] if self.regex else []
        command += [word for group in self.groups for word in ("--group", group)]
        command += ["--interface", self.interface] if self.interface else []
        command += ["--config", self.config_file] if self.config_file else []
        return command


def is_recording(journal: Path) -> bool:
    """True if a process writes the journal of messages."""
    try:
        with _lock_path(journal).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def writer_of(journal: Path) -> int:
    """Process id of the current or last writer of the journal of messages."""
    return int(_lock_path(journal).read_text())


def end_recorder(journal: Path) -> None:
    """End the recorder of a journal, if one runs; returns when it has ended."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not is_recording(journal):
            return
        with suppress(ProcessLookupError):
            os.kill(writer_of(journal), number)
        deadline = time.monotonic() + _END_SECONDS
        while is_recording(journal) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)


def _lock_path(journal: Path) -> Path:
    return journal / "messages" / LOCK_NAME


def note_reader(journal: Path) -> None:
    """Record that a reader is using the journal."""
    try:
        journal.mkdir(parents=True, exist_ok=True)
        (journal / READER_NAME).touch()
    except OSError as error:
        raise error_from_os(error, f"reading {journal}") from error


class Readers:
    """Measures how long no reader has used a journal. A step of the wall clock does not count."""

    def __init__(self, journal: Path) -> None:
        """Begin with a reader that is there now."""
        self._file = journal / READER_NAME
        self._noted_ns = self._look()
        self._since = time.monotonic()

    def _look(self) -> int | None:
        try:
            return self._file.stat().st_mtime_ns
        except FileNotFoundError:
            return None

    def away_seconds(self) -> float:
        """Return the seconds since a reader last noted itself, or since this object was made."""
        noted_ns, now = self._look(), time.monotonic()
        if noted_ns != self._noted_ns:
            self._noted_ns, self._since = noted_ns, now
        return now - self._since
