"""Fixtures for tests with two contexts: one with sources and another with receivers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.loopback import open_context
from umstack import Context


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
