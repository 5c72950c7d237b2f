"""Shared by the child processes that run the stack: the context, and waiting for orders."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import umstack
from umstack.bench.children import ChildSpec, has_order, receive_order
from umstack.config import Config
from umstack.errors import ResolutionError, UmError

READY_SECONDS = 20.0
"""Seconds that two ends may take to discover each other."""

_IDLE_SECONDS = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class EndSpec(ChildSpec):
    """Arguments of a child process that runs the stack."""

    interface: str = ""
    config: str = ""
    """Options, as configuration text."""
    mode: str = "embedded"
    link: str = "socket"
    transport: str = "lbtrm"
    """Parsed `config`."""
    cpu: int | None = None
    driver: str = "none"
    """Control socket of a driver to attach to, or `none`."""

    def open_context(self) -> umstack.Context:
        """Open the context of this end."""
        config = Config.parse(self.config, "the bench's options")
        if self.driver != "none":
            return umstack.Context(self.interface, driver=self.driver, config=config)
        return umstack.Context(self.interface, link=self.link, mode=self.mode, config=config)


S = TypeVar("S", bound=EndSpec)


def await_sources(context: umstack.Context, receivers: Iterable[umstack.Receiver]) -> None:
    """Wait until every receiver has a source."""
    deadline = time.monotonic() + READY_SECONDS
    for receiver in receivers:
        while not receiver.stats()["delivery_controllers"]:
            if time.monotonic() > deadline:
                raise ResolutionError(f"topic {receiver.topic} was not resolved within {READY_SECONDS:.0f} s")
            context.idle(_IDLE_SECONDS)


def await_receivers(source: umstack.Source, count: int) -> None:
    """Wait until the source has detected its receivers, if its transport allows that."""
    if source.options.flow_control != "none":
        source.wait_connected(count, timeout=READY_SECONDS)


def await_turn(context: umstack.Context) -> dict[str, Any]:
    """Wait for an order from the parent; in sequential mode, run the protocol meanwhile."""
    while context.is_sequential and not has_order():
        context.process_events(_IDLE_SECONDS)
    return receive_order()


def run(arguments: Sequence[str], kind: type[S], roles: Mapping[str, Callable[[S], None]]) -> int:
    """Run one end of a measurement; arguments: `ROLE SPEC`."""
    role, text = arguments
    spec = kind.from_json(text)
    if spec.cpu is not None:
        os.sched_setaffinity(0, {spec.cpu})
    try:
        roles[role](spec)
    except UmError as error:
        print(error, file=sys.stderr)
        return 1
    return 0
