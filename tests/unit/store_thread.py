"""A Store on a thread of this process, on loopback."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.unit.loopback import open_context
from umstack.store.protocol import StoreLimits
from umstack.store.repository import RepositorySettings
from umstack.store.server import StoreServer

SETTINGS = RepositorySettings(segment_bytes=1 << 20, staging_bytes=1 << 20)


class PausedStore(StoreServer):
    """A Store whose commits can be held back, as those of a disk that stalls."""

    def __init__(self, *arguments: Any, **limits: Any) -> None:
        """As StoreServer."""
        super().__init__(*arguments, **limits)
        self._may_commit = threading.Event()
        self._may_commit.set()
        commit = self._repository.commit

        def commit_later() -> Any:
            self._may_commit.wait()
            return commit()

        vars(self._repository)["commit"] = commit_later

    def pause(self) -> None:
        """Hold commits back from now on."""
        self._may_commit.clear()

    def resume(self) -> None:
        """Commit again."""
        self._may_commit.set()


@contextlib.contextmanager
def running_store(
    directory: Path, port: int = 0, limits: StoreLimits | None = None, **options: Any
) -> Iterator[PausedStore]:
    """Run a Store until the block ends. Its context has the options, and no driver."""
    with (
        open_context(driver="none", **options) as context,
        PausedStore(context, directory, ("127.0.0.1", port), SETTINGS, limits=limits) as store,
    ):
        thread = threading.Thread(target=store.serve)
        thread.start()
        try:
            yield store
        finally:
            store.resume()
            store.stop()
            thread.join()
