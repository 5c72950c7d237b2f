"""Tables in an object store: their settings, the files of one table, and the part that a report needs.

The objects that a report needs are fetched into a folder: the silver tables, and the facts of no session and of those
sessions that were active in several periods. Objects may change meanwhile. Fetching is repeated for changed objects
until a listing has only those that were fetched, and no object `_umstack/unfinished`.
"""

from __future__ import annotations

import posixpath
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from umstack.capture.reading.remote import Version, filesystem_of, shown
from umstack.facts.packed import NO_SESSION
from umstack.pipeline.derive import periods
from umstack.pipeline.layout import (
    BRONZE,
    FACTS,
    SILVER,
    STATE,
    UNFINISHED,
    Layout,
    Settings,
    TablesError,
    parsed_settings,
    session_name,
)

_THREADS = 8
_ROUNDS = 60
_ROUND_SECONDS = 1.0
_LAYOUT = f"{STATE}/layout.json"
_STATE_FILES = (_LAYOUT, f"{STATE}/captures.json")
_UNFINISHED = f"{STATE}/{UNFINISHED}"
_HINT = "run it again; if a pipeline was killed while it uploaded the tables, run that first"


@dataclass(frozen=True, slots=True)
class Fetched(Layout):
    """A folder with the fetched objects. It knows the partitions of all facts, also of those that were not fetched."""

    url: str = ""
    facts: list[str] = field(default_factory=list)
    """The names of all objects that a batch wrote: those with facts or messages."""

    def __str__(self) -> str:
        return shown(self.url)

    def folders(self, name: str) -> list[Path]:
        """Return the folders of a bronze table that have files of batches."""
        prefix = f"{BRONZE}/{name}/"
        return sorted({(self.root / one).parent for one in self.facts if one.startswith(prefix)})


def stored_settings(url: str) -> Settings | None:
    """Return the settings of the tables below a URL; None if there are none. TablesError for a newer version."""
    filesystem, path = filesystem_of(url)
    name = f"{path.rstrip('/')}/{_LAYOUT}"
    try:
        if not filesystem.get_file_info(name).is_file:
            return None
        with filesystem.open_input_stream(name, compression=None) as stream:
            return parsed_settings(stream.read().decode(), shown(url))
    except OSError as error:
        raise _failed(url, error) from error


def stored_rows(url: str, layer: str, name: str) -> list[tuple[str, date, str]]:
    """Return the files of a silver or gold table below a URL, in its file system, with their day and session."""
    _, path = filesystem_of(url)
    root = path.rstrip("/")
    found = [one for one in _listed(url, f"{layer}/{name}") if one.endswith("/rows.parquet")]
    return [(f"{root}/{one}", *_partition(one)) for one in sorted(found)]


@contextmanager
def fetched(url: str) -> Iterator[tuple[Fetched, Settings]]:
    """Fetch the objects that a report needs into a folder, which is removed at the end.

    Raises:
        TablesError: The store cannot be reached, has no tables or those of a newer version, or its objects change all
            the time.
    """
    with tempfile.TemporaryDirectory(prefix="umstack-tables-") as folder:
        layout = Fetched(Path(folder), url)
        _fetch(layout)
        settings = layout.settings()
        if settings is None:
            raise TablesError(
                f"{layout} has no tables", hint="make them: umstack pipeline captures/ --tables URL"
            )
        yield layout, settings


def _fetch(layout: Fetched) -> None:
    """Fetch the objects that were never fetched or have changed, until there are none."""
    known: dict[str, Version] = {}
    for _ in range(_ROUNDS):
        listed: dict[str, Version] = {}
        for tree in (STATE, BRONZE, SILVER):
            listed |= _listed(layout.url, tree)
        layout.facts[:] = [one for one in listed if one.startswith(f"{BRONZE}/") and "/part-" in one]
        wanted = {name: listed[name] for name in _wanted(layout, listed)}
        if _UNFINISHED in listed:
            time.sleep(_ROUND_SECONDS)
            continue
        if wanted == known:
            return
        _update(layout, known, wanted)
        known = wanted
    raise TablesError(f"the objects of {layout} have changed for a minute", hint=_HINT)


def _update(layout: Fetched, known: dict[str, Version], wanted: dict[str, Version]) -> None:
    filesystem, path = filesystem_of(layout.url)

    def fetch(name: str) -> None:
        file = layout.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with filesystem.open_input_stream(f"{path.rstrip('/')}/{name}", compression=None) as stream:
                file.write_bytes(stream.read())
        except FileNotFoundError:
            # The next listing does not have it either.
            file.unlink(missing_ok=True)

    changed = [name for name, version in wanted.items() if known.get(name) != version]
    try:
        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(fetch, changed))
    except OSError as error:
        raise _failed(layout.url, error) from error
    for name in known.keys() - wanted.keys():
        (layout.root / name).unlink(missing_ok=True)


def _wanted(layout: Fetched, listed: dict[str, Version]) -> Iterator[str]:
    """Yield the names of the objects that a report needs."""
    none = session_name(*NO_SESSION)
    with_facts = {one for one, days in layout.sessions().items() if one == none or len(periods(days)) > 1}
    facts = f"{BRONZE}/{FACTS}/"
    for name in listed:
        is_needed = (
            _partition(name)[1] in with_facts if name.startswith(facts) else name.startswith(f"{SILVER}/")
        )
        if is_needed or name in _STATE_FILES:
            yield name


def _partition(name: str) -> tuple[date, str]:
    """Return day and session of an object by its name."""
    day, session = posixpath.dirname(name).split("/")[-2:]
    return date.fromisoformat(day.removeprefix("date=")), unquote(session.removeprefix("session="))


def _listed(url: str, tree: str) -> dict[str, Version]:
    """Return the versions of the objects in a folder below a URL, by their names below it."""
    from pyarrow.fs import FileSelector

    filesystem, path = filesystem_of(url)
    root = path.rstrip("/")
    try:
        found = filesystem.get_file_info(FileSelector(f"{root}/{tree}", recursive=True, allow_not_found=True))
    except OSError as error:
        raise _failed(url, error) from error
    return {one.path[len(root) + 1 :]: Version(one.size, one.mtime_ns or 0) for one in found if one.is_file}


def _failed(url: str, error: Any) -> TablesError:
    return TablesError(f"reading {shown(url)}: {str(error).splitlines()[0]}", hint=_HINT)
