"""Fixtures: an empty simulated world, and a publisher with one subscriber."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from umstack.sim import MS, Host, World

DELAY = 1 * MS


@pytest.fixture
def world() -> Iterator[World]:
    """Yield an empty world, and destroy it after the test."""
    with World() as made:
        yield made


@dataclass(frozen=True)
class Pair:
    """A publishing and a subscribing host with a delay of DELAY between them."""

    world: World
    publisher: Host
    subscriber: Host


@pytest.fixture
def pair(world: World) -> Pair:
    """Return a world with two hosts."""
    made = Pair(world, world.host(), world.host())
    for host in (made.publisher, made.subscriber):
        host.set_faults(delay_ns=DELAY)
    return made
