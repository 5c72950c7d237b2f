"""Fixtures for tests with two contexts: one with sources and another with receivers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.loopback import Drivers, open_context, take_turns
from tests.unit.ways import WAYS
from tests.waiting import wait_for
from umstack import Context


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give `way` its values: those of the test's mark, or else of its module, or else two."""
    chosen: set[str] = set()
    for mark in metafunc.definition.iter_markers("parametrize"):
        listed = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
        names = {name.strip() for name in listed}
        if "way" in names and mark.kwargs.get("indirect") is not True:
            raise pytest.UsageError(f"{metafunc.definition.nodeid}: `way` is a fixture; rename the parameter")
        chosen |= names
    if "way" in metafunc.fixturenames and "way" not in chosen:
        usual = getattr(metafunc.module, "USUAL_WAYS", ("alone", "attached"))
        metafunc.parametrize("way", usual, indirect=True, scope="module")


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    """The drivers that the contexts of a module attach to."""
    found = Drivers(tmp_path_factory.mktemp("drivers"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the tests of a module with contexts of their own links, and with contexts attached to a driver.

    Modules and fixtures of contexts name it; open_context() then attaches the contexts (tests/unit/ways.py).
    """
    chosen: str = request.param
    if "driver" not in WAYS[chosen]:
        yield chosen
        return
    drivers = request.getfixturevalue("drivers")
    take_turns(WAYS[chosen], drivers)
    yield chosen
    take_turns(["none"], None)
    wait_for(lambda: drivers.are_idle, "the end of what the tests have left behind")


@pytest.fixture(autouse=True)
def _first_turn(request: pytest.FixtureRequest) -> Iterator[None]:
    """The first context of each test has the first link of its way."""
    if "way" not in request.fixturenames:
        yield
        return
    way: str = request.getfixturevalue("way")
    if "driver" not in WAYS[way]:
        yield
        return
    drivers = request.getfixturevalue("drivers")
    take_turns(WAYS[way], drivers)
    yield
    drivers.end_idle()


@pytest.fixture(scope="module")
def both() -> dict[str, Any]:
    """Context options of both ends; tests/unit/test_keyed_tcp.py defines others."""
    return {}


@pytest.fixture(scope="module")
def sending(way: str, both: dict[str, Any]) -> Iterator[Context]:
    with open_context(**both) as context:
        yield context


@pytest.fixture(scope="module")
def receiving(way: str, both: dict[str, Any]) -> Iterator[Context]:
    with open_context(**both) as context:
        yield context
