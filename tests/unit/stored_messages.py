"""Messages in a Store's directory, written before the Store starts, and what a replay yields of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

from tests.data_messages import encode_data
from umstack.persistence.assembly import Item, RecoveredMessage
from umstack.persistence.store_replay import StoreReplay
from umstack.store.repository import Repository


def fill(
    directory: Path, sqns: Iterable[int], first_ns: int = 0, lost: range = range(0), session_id: int = 7
) -> None:
    """Write messages of a source of "orders", one per second from a time on; each holds its number."""
    payloads = [(sqn, b"%d" % sqn) for sqn in sqns]
    fill_with(directory, payloads, first_ns, lost, session_id)


def fill_with(
    directory: Path,
    payloads: Iterable[tuple[int, bytes]],
    first_ns: int = 0,
    lost: range = range(0),
    session_id: int = 7,
) -> None:
    """Write these messages by number."""
    with Repository(directory) as repository:
        source = repository.register_source("orders", session_id)
        for sqn, payload in payloads:
            repository.append(source.number, sqn, encode_data(1, sqn, payload), first_ns + sqn * 10**9)
        if lost:
            repository.mark_lost(source.number, lost[0], lost[-1])
        while repository.commit() is not None:
            pass


def items(replay: StoreReplay) -> list[Item]:
    """Everything that a replay yields."""
    return list(itertools.chain.from_iterable(replay.chunks()))


def sqns(replay: StoreReplay) -> list[int]:
    """The numbers of the messages that a replay yields."""
    return [item.sqn for item in items(replay) if isinstance(item, RecoveredMessage)]


__all__ = ["fill", "fill_with", "items", "sqns"]
