"""Labs for tests: unique names, removed even after a failure, skipped with the reason if they cannot be created."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.netns.endpoints import Ends, EndsIn
from umstack.lab import Lab


@functools.cache
def _why_not() -> str | None:
    return Lab.supported() or Lab.loss_supported()


def _up(stack: ExitStack, **options: Any) -> Lab:
    lab = stack.enter_context(Lab(**options))
    print(f"lab {lab.name}, seed {lab.seed}")
    return lab


@pytest.fixture(scope="session", autouse=True)
def _labs_can_be_made() -> None:
    """Skip the tier, with the reason, on a machine without namespaces, veth, bridge or the BPF loader."""
    if (reason := _why_not()) is not None:
        pytest.skip(reason)


@pytest.fixture
def make_lab() -> Iterator[Callable[..., Lab]]:
    """Return a function that creates labs for this test; they are removed when it ends."""
    with ExitStack() as stack:
        yield functools.partial(_up, stack)


@pytest.fixture(scope="module")
def shared_lab() -> Iterator[Lab]:
    """Return one lossless lab of three hosts, shared by all tests of a file, which must leave it unchanged."""
    with ExitStack() as stack:
        yield _up(stack, hosts=3, name=f"shared-{os.getpid()}", segmentation="real")


@pytest.fixture
def ends_in() -> Iterator[EndsIn]:
    """Return a function that starts the ends of a stream in a lab; their processes end with the test."""
    with ExitStack() as stack:
        yield lambda lab: Ends(lab, stack)
