"""Idle applications: the child process that attaches contexts to a driver and waits.

`python -m umstack.bench.driver_ends attach SPEC`, the spec being an `AttachSpec` in JSON.
"""

from __future__ import annotations

import resource
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass

from umstack.bench.children import receive_order, say
from umstack.bench.endpoint import EndSpec, run


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachSpec(EndSpec):
    """Arguments of the applications."""

    contexts: int = 1
    """Contexts of this process, each with one source and one receiver of topics of their own."""


def attach(spec: AttachSpec) -> None:
    """Attach, report how long each context took, and stay until the parent orders the end."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    seconds = []
    with ExitStack() as stack:
        for number in range(spec.contexts):
            begin = time.monotonic()
            context = stack.enter_context(spec.open_context())
            seconds.append(time.monotonic() - begin)
            context.source(f"bench.sent.{number}")
            context.receiver(f"bench.received.{number}")
        say(attached_seconds=seconds)
        receive_order()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], AttachSpec, {"attach": attach}))
