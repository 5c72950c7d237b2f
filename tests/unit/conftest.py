"""Fixtures for tests with two contexts: one with sources and another with receivers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.loopback import attaching, open_context, serving
from tests.waiting import wait_for
from umstack import Context
from umstack.driving import Driver

WAYS = {
    "alone": ("none",),
    "attached": ("driver",),
    "from a driver": ("driver", "none"),
    "to a driver": ("none", "driver"),
}


@pytest.fixture(scope="module")
def shared_driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Driver, Path]]:
    """A driver that the tests of a module share, and its path."""
    path = tmp_path_factory.mktemp("driver") / "driver.sock"
    with serving(path) as one:
        yield one, path


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a test of the public API with contexts of their own links, through a driver, and between both.

    Tests name it before the fixtures of their contexts. Contexts that open_context() opens attach to a driver in turn.
    """
    kinds = WAYS[request.param]
    if "driver" not in kinds:
        yield request.param
        return
    one, path = request.getfixturevalue("shared_driver")
    with attaching(*(path if kind == "driver" else "none" for kind in kinds)):
        yield request.param
    wait_for(lambda: not one._applications and not one._ending, "the end of what the test has left behind")


@pytest.fixture(scope="module")
def both() -> dict[str, Any]:
    """Context options of both ends; tests/unit/test_keyed_tcp.py defines others."""
    return {}


@pytest.fixture(scope="module")
def sending(both: dict[str, Any]) -> Iterator[Context]:
    with open_context(**both) as context:
        yield context


@pytest.fixture(scope="module")
def receiving(both: dict[str, Any]) -> Iterator[Context]:
    with open_context(**both) as context:
        yield context
