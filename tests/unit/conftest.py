"""Fixtures for tests with two contexts: one with sources and another with receivers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.loopback import attaching, open_context, restart_turns, serving
from tests.unit.ways import WAYS
from tests.waiting import wait_for
from umstack import Context
from umstack.driving import Driver


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give `way` its values: those of the test's mark, or else of its module, or else two."""
    chosen = [
        name.strip()
        for mark in metafunc.definition.iter_markers("parametrize")
        for name in (mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0])
    ]
    if "way" in metafunc.fixturenames and "way" not in chosen:
        usual = getattr(metafunc.module, "USUAL_WAYS", ("alone", "attached"))
        metafunc.parametrize("way", usual, indirect=True, scope="module")


@pytest.fixture(scope="module")
def shared_driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Driver, Path]]:
    """A driver that the tests of a module share, and its path."""
    path = tmp_path_factory.mktemp("driver") / "driver.sock"
    with serving(path) as one:
        yield one, path


@pytest.fixture(scope="module")
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the tests of a module with contexts of their own links, and with contexts attached to a driver.

    Modules and fixtures of contexts name it; open_context() then attaches the contexts (tests/unit/ways.py).
    """
    kinds = WAYS[request.param]
    if "driver" not in kinds:
        yield request.param
        return
    one, path = request.getfixturevalue("shared_driver")
    with attaching(*(path if kind == "driver" else "none" for kind in kinds)):
        yield request.param
    wait_for(lambda: not one._applications and not one._ending, "the end of what the tests have left behind")


@pytest.fixture(autouse=True)
def _first_turn() -> None:
    """The first context of each test has the first link of its way."""
    restart_turns()


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
