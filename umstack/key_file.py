"""Reads, checks and writes the key file, which assigns keys to topics (docs/authentication.md).

    # purpose    pattern    id  key
    topic        orders.*   1   3f0c...   (64 hexadecimal digits)
    topic        *          1   91aa...
    resolution              4   07d2...

The first pattern that matches a topic decides. A pattern may have two keys: tags are made with the first, both are
accepted. `#` starts a comment.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from umstack._core import lib
from umstack.errors import ConfigError, OptionError, naming_path

KEY_BYTES: int = lib.UM_KEY_BYTES
KEYS_PER_SET: int = lib.UM_KEYS_PER_SET
SETS_MAXIMUM: int = lib.UM_KEY_SETS_MAX
_ID_MAXIMUM = 255
_FILE_MAXIMUM_BYTES = 1 << 20
_ACCESS_OF_OTHERS = 0o077


@dataclass(frozen=True, slots=True)
class Key:
    """One key and its identifier in trailers, 1 to 255."""

    id: int
    secret: bytes
    encrypts: bool = False
    """True: payloads are encrypted, too (option encryption)."""

    def __repr__(self) -> str:
        return f"Key(id={self.id})"


@dataclass(frozen=True, slots=True)
class KeyFile:
    """The keys of a file. `topics` is in the order of the file: each pattern with its keys, the first makes tags."""

    topics: tuple[tuple[str, tuple[Key, ...]], ...]
    resolution: tuple[Key, ...]

    def pattern_of(self, topic: str) -> str | None:
        """The first pattern that matches a topic; None: the topic has no key."""
        return next((pattern for pattern, _ in self.topics if fnmatchcase(topic, pattern)), None)

    def keys_of(self, topic: str) -> tuple[Key, ...]:
        """Return the keys of a topic. The first makes tags. Empty if the topic's datagrams have no tags."""
        return next((keys for pattern, keys in self.topics if fnmatchcase(topic, pattern)), ())

    def has(self, key: Key) -> bool:
        """Return true if any topic uses this key."""
        return any(key in keys for _, keys in self.topics)

    def find(self, is_meant: Callable[[Key], bool]) -> Key | None:
        """Return the first key of any topic for which `is_meant` returns true, or None."""
        return next((key for _, keys in self.topics for key in keys if is_meant(key)), None)


NO_KEYS = KeyFile((), ())
"""The keys of a process without a key file: no topic has any."""


def read_key_file(path: Path) -> KeyFile:
    """Read a key file that its owner alone can read.

    Raises OptionError if others can read it, ConfigError for a wrong line, or the error of the path.
    """
    with naming_path(f"key file {path}"), path.open("rb") as file:
        _check_access(path, os.fstat(file.fileno()))
        text = file.read(_FILE_MAXIMUM_BYTES + 1)
    if len(text) > _FILE_MAXIMUM_BYTES:
        raise OptionError(
            f"key file {path} has more than {_FILE_MAXIMUM_BYTES} bytes", hint="name a key file"
        )
    return _parse(text.decode(errors="replace"), str(path))


def _check_access(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OptionError(f"key file {path} is not a regular file", hint="name a regular file")
    if found.st_uid not in (os.geteuid(), 0):
        raise OptionError(
            f"key file {path} belongs to user {found.st_uid}, who could exchange it",
            hint=f"chown it to the user that runs this process ({os.geteuid()}), or to root",
        )
    if found.st_mode & _ACCESS_OF_OTHERS:
        raise OptionError(
            f"key file {path} can be used by others (mode {stat.S_IMODE(found.st_mode):04o})",
            hint=f"chmod 600 {path}; if others could read it until now, make new keys",
        )


def _parse(text: str, name: str) -> KeyFile:
    topics: dict[str, list[Key]] = {}
    resolution: list[Key] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            match words:
                case ["topic", pattern, identifier, key]:
                    _add(topics.setdefault(pattern, []), identifier, key)
                case ["resolution", identifier, key]:
                    _add(resolution, identifier, key)
                case _:
                    raise ValueError("is neither `topic PATTERN ID KEY` nor `resolution ID KEY`")
        except ValueError as error:
            raise ConfigError(
                f"the line {error}", file=name, line=number, hint="`umstack key new FILE` makes a key file"
            ) from None
    if len(topics) > SETS_MAXIMUM:
        raise OptionError(f"key file {name} has {len(topics)} patterns", hint=f"give at most {SETS_MAXIMUM}")
    if not topics and not resolution:
        raise OptionError(f"key file {name} has no key", hint="`umstack key new FILE` makes one")
    return KeyFile(tuple((pattern, tuple(keys)) for pattern, keys in topics.items()), tuple(resolution))


def _add(keys: list[Key], identifier: str, key: str) -> None:
    if not identifier.isascii() or not identifier.isdecimal() or not 1 <= int(identifier) <= _ID_MAXIMUM:
        raise ValueError(f"has a key identifier that is not 1 to {_ID_MAXIMUM}")
    try:
        secret = bytes.fromhex(key)
    except ValueError:
        secret = b""
    if len(secret) != KEY_BYTES:
        raise ValueError(f"has a key that is not {2 * KEY_BYTES} hexadecimal digits")
    if any(int(identifier) == known.id for known in keys):
        raise ValueError(f"has the identifier {identifier} of another key of the same pattern")
    if len(keys) == KEYS_PER_SET:
        raise ValueError(f"is a key more than the {KEYS_PER_SET} that a pattern may have: remove the oldest")
    keys.append(Key(int(identifier), secret))


def write_new_key_file(path: Path, patterns: Sequence[str]) -> None:
    """Write a new key file, readable by this user only: a key per pattern, and one for topic resolution.

    Raises the error of the path; never overwrites a file.
    """
    lines = ["# umstack keys: `topic PATTERN ID KEY` and `resolution ID KEY`, see docs/authentication.md"]
    import secrets  # only writing keys needs it, and every context loads this module

    lines += [f"topic {pattern} 1 {secrets.token_hex(KEY_BYTES)}" for pattern in patterns]
    lines.append(f"resolution 1 {secrets.token_hex(KEY_BYTES)}")
    text = "\n".join(lines) + "\n"
    _parse(text, str(path))
    with naming_path(f"key file {path}"):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
