"""Keyring: loads the keys of a context from its key file into the core, and again whenever the file changes.

FileKeys are the keys of a file without a context.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from umstack._core import ffi, lib
from umstack._engine.core_context import CoreContext
from umstack.config import ContextOptions
from umstack.errors import OptionError, UmError
from umstack.key_file import NO_KEYS, SETS_MAXIMUM, Key, KeyFile, read_key_file
from umstack.repeated_records import RepeatedRecords

_LOOK_SECONDS = 1.0

_logger = logging.getLogger("umstack.authentication")
_records = RepeatedRecords(_logger)


def load_keys(options: ContextOptions) -> KeyFile | None:
    """Return the keys that the options request, or None. Raises OptionError, or the error of the key file."""
    name = options.authentication_key_file
    if options.authentication_scope == "none":
        return None
    if name == "none":
        raise OptionError(
            f"authentication_scope {options.authentication_scope} needs keys",
            hint="`umstack key new FILE` makes a file of them: name it in authentication_key_file",
        )
    return _keys_in(Path(name), options)


def _keys_in(file: Path, options: ContextOptions) -> KeyFile:
    """Return the keys of the file, which encrypt if the options request it."""
    read = read_key_file(file)
    if options.encryption == "none":
        return read
    topics = tuple(
        (pattern, tuple(replace(key, encrypts=True) for key in keys)) for pattern, keys in read.topics
    )
    return KeyFile(topics, read.resolution)


def core_key_set(keys: tuple[Key, ...]) -> Any:
    """Return a key set in the core's form."""
    made = ffi.new("um_key_set *")
    made.count = len(keys)
    for place, key in zip(made.keys, keys, strict=False):
        place.id, place.encrypts = key.id, key.encrypts
        ffi.memmove(place.secret, key.secret, len(key.secret))
    return made


class _LoadedKeys:
    """The keys of a key file. Any thread may look up."""

    __slots__ = ("_file", "_loaded", "_options", "_seen")

    def __init__(self, options: ContextOptions) -> None:
        """Load the key file of the options, if they name one. Raises OptionError, or the error of the key file."""
        self._options = options
        self._file = Path(options.authentication_key_file)
        self._seen = self._identity()
        self._loaded = load_keys(options)
        if self._loaded is not None:
            self._install(self._loaded)

    @property
    def is_loaded(self) -> bool:
        """True if the options request keys."""
        return self._loaded is not None

    @property
    def resolution(self) -> tuple[Key, ...]:
        """The keys of topic resolution. Empty if its datagrams have no tags."""
        return self._loaded.resolution if self._loaded is not None else ()

    def keys_of(self, topic: str) -> tuple[Key, ...]:
        """Return the keys of a topic. The first makes tags. Empty if the topic's datagrams have no tags."""
        return (self._loaded or NO_KEYS).keys_of(topic)

    def has(self, key: Key) -> bool:
        """Return true if any topic uses this key now."""
        return (self._loaded or NO_KEYS).has(key)

    def find(self, is_meant: Callable[[Key], bool]) -> Key | None:
        """Return the first key of any topic for which `is_meant` returns true, or None."""
        return (self._loaded or NO_KEYS).find(is_meant)

    def _reload(self) -> bool:
        """Load the file again if it has changed. Returns true if there are new keys. One thread at a time.

        A file with bad keys is logged, and the old keys stay in use.
        """
        identity = self._identity()
        if self._loaded is None or identity == self._seen:
            return False
        try:
            loaded = _keys_in(self._file, self._options)
            self._install(loaded)
        except UmError as error:
            _records.write("bad", logging.ERROR, "the keys in use stay, the changed file has none: %s", error)
            return False
        self._seen = identity
        self._loaded = loaded
        _logger.info("the keys of %s are in use", self._file)
        return True

    def _identity(self) -> tuple[int, ...]:
        """Return the state of the file. It differs after every change of the file."""
        try:
            found = self._file.stat()
        except OSError:
            return ()
        return (found.st_ino, found.st_dev, found.st_mtime_ns, found.st_size, found.st_mode, found.st_uid)

    def _install(self, loaded: KeyFile) -> None:
        """Use these keys. Raises UmError: the earlier ones stay."""


class FileKeys(_LoadedKeys):
    """The keys of a key file for a client without a context. Used by one thread."""

    __slots__ = ()

    def keys_of(self, topic: str) -> tuple[Key, ...]:
        """Return the keys of a topic as the file contains them now. The first makes tags."""
        self._reload()
        return super().keys_of(topic)


class Keyring(_LoadedKeys):
    """The key sets of a context, under the core's numbers. Any thread may look up; one at a time may refresh."""

    __slots__ = ("_core", "_next_look", "_numbers")

    def __init__(self, core: CoreContext) -> None:
        """Load the key file of the core's options, if it has one."""
        self._core = core
        self._numbers: dict[str, int] = {}
        super().__init__(core.options)
        self._next_look = time.monotonic() + _LOOK_SECONDS

    def refresh(self) -> bool:
        """Load the file again if it has changed, at most once a second. Returns true if there are new keys.

        Sessions of a pattern that was removed from the file keep their keys.
        """
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + _LOOK_SECONDS
        return self._reload()

    def number_of(self, topic: str) -> int:
        """Return the core's number of a topic's key set, or 0 if its datagrams have no tags."""
        pattern = self._loaded.pattern_of(topic) if self._loaded is not None else None
        return self._numbers[pattern] if pattern is not None else 0

    def _install(self, loaded: KeyFile) -> None:
        for pattern, keys in loaded.topics:
            number = self._numbers.get(pattern, len(self._numbers) + 1)
            if number > SETS_MAXIMUM:
                raise OptionError(
                    f"the key files of this context had more than {SETS_MAXIMUM} patterns",
                    hint="restart the process to forget those that are gone",
                )
            result = lib.um_context_set_keys(self._core.handle, number, core_key_set(keys))
            self._core.check(result, f"key set of {pattern}")
            self._numbers[pattern] = number
