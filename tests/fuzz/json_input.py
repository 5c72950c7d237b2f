"""JSON for fuzzers: well-formed messages that the input changes in places, because random bytes are rarely valid."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

_PLAIN: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2**31,
    2**64,
    -(2**70),
    0.5,
    1e308,
    float("nan"),
    float("inf"),
)
_TEXTS = ("", "\x1b[31m", "a\nb", 'q"\\', "\udce9", "[/red]", "x" * 300)
_EMPTY: tuple[Any, ...] = ([], {}, [{}], {"": None})


class _Bytes:
    """The input, byte by byte; 0 behind its end."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0


def changed_json(data: bytes, messages: Sequence[Any]) -> bytes:
    """Return the input as it is if its first byte is 0; else one of the messages, changed as its bytes select."""
    source = _Bytes(data)
    chosen = source.take()
    if chosen == 0:
        return data[1:]
    message = copy.deepcopy(messages[chosen % len(messages)])
    while source:
        _change(message, source, messages)
    return json.dumps(message).encode()


def _change(message: Any, source: _Bytes, messages: Sequence[Any]) -> None:
    """Walk down to a place, and replace, remove or duplicate its value."""
    at, depth = message, source.take() % 5
    while depth and isinstance(at, dict | list) and at:
        key = _key(at, source.take())
        if depth > 1 and isinstance(at[key], dict | list) and at[key]:
            at, depth = at[key], depth - 1
            continue
        _put(at, key, source, messages)
        return
    if isinstance(at, dict):
        at[_TEXTS[source.take() % len(_TEXTS)]] = _value(source, messages)
    elif isinstance(at, list):
        at.append(_value(source, messages))


def _key(at: Any, choice: int) -> Any:
    return list(at)[choice % len(at)] if isinstance(at, dict) else choice % len(at)


def _put(at: Any, key: Any, source: _Bytes, messages: Sequence[Any]) -> None:
    how = source.take() % 8
    if how == 0:
        del at[key]
    elif how == 1 and isinstance(at, list):
        at.append(copy.deepcopy(at[key]))
    elif how == 2 and isinstance(at, dict):
        at[_key(at, source.take())] = copy.deepcopy(at[key])
    else:
        at[key] = _value(source, messages)


def _value(source: _Bytes, messages: Sequence[Any]) -> Any:
    kind, choice = source.take() % 6, source.take()
    match kind:
        case 0:
            return _PLAIN[choice % len(_PLAIN)]
        case 1:
            return _TEXTS[choice % len(_TEXTS)]
        case 2:
            return copy.deepcopy(_EMPTY[choice % len(_EMPTY)])
        case 3:
            return choice << source.take() % 64
        case 4:
            return copy.deepcopy(messages[choice % len(messages)])
        case _:
            return [choice] * (source.take() % 70)
