"""Fixtures for tests with two contexts: one with sources and another with receivers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.loopback import attaching, open_context, serving
from umstack import Context

WAYS = {
    "alone": ("none",),
    "attached": ("driver",),
    "from a driver": ("driver", "none"),
    "to a driver": ("none", "driver"),
}


@pytest.fixture(scope="module")
def driver_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A driver that the tests of a module share."""
    with serving(tmp_path_factory.mktemp("driver")) as path:
        yield path


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a test of the public API with contexts of their own links, through a driver, and between both.

    Tests name it before the fixtures of their contexts. Contexts that open_context() opens attach to a driver in turn.
    """
    kinds = WAYS[request.param]
    path = request.getfixturevalue("driver_path") if "driver" in kinds else "none"
    with attaching(*(path if kind == "driver" else "none" for kind in kinds)):
        yield request.param


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
