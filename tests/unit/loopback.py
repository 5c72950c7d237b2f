"""Contexts over loopback that receive from the tests of this process alone."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.waiting import SECONDS, wait_for
from umstack import Context, Message, Receiver, Source
from umstack.driving import Driver, DriverLimits, driver
from umstack.driving.topics import DriverContext
from umstack.events import Event
from umstack_xdp.broker_policy import Policy
from umstack_xdp.listening import listen_at

DATAGRAM = 1472
"""Loopback would carry 65507 bytes; with these, fragmentation and batching are those of an Ethernet."""

_PROCESS = os.getpid()
_BLOCK = f"239.{_PROCESS >> 8 & 0x3F | 0x80}.{_PROCESS & 0xFF}"

OWN_ADDRESSES: dict[str, Any] = {
    "resolver_multicast_address": f"{_BLOCK}.1",
    "resolver_multicast_port": 20000 + _PROCESS % 10000,
    "transport_lbtrm_multicast_address_low": f"{_BLOCK}.10",
    "transport_lbtrm_multicast_address_high": f"{_BLOCK}.14",
    "transport_lbtrm_source_port_low": 30000,
    "transport_lbtrm_source_port_high": 39999,
    "transport_lbtru_port_low": 40000,
    "transport_lbtru_port_high": 49999,
    "transport_lbtru_data_rate_limit": 0,
    "transport_lbtru_retransmit_rate_limit": 0,
    "transport_tcp_port_low": 20000,
    "transport_tcp_port_high": 29999,
    "transport_lbtrm_data_rate_limit": 0,
    "transport_lbtrm_retransmit_rate_limit": 0,
}

FIXED_PORT = 10_000 + _PROCESS % 4000
"""A port for a test that names one: no range above has it, and the kernel gives it to no other socket by itself."""

_AT_THE_DRIVER = ("authentication_", "encryption", "resolver_", "transport_")
"""Context options of the network begin like this; through a driver they are the driver's."""

PORTS = {"request_tcp_port_low": 24391, "request_tcp_port_high": 25391}
"""Request ports for more contexts side by side than the default range has."""


def open_context(mode: str = "embedded", **options: Any) -> Context:
    """A context on loopback with addresses of this process."""
    chosen = {**OWN_ADDRESSES, "transport_lbtrm_datagram_max_size": DATAGRAM, **options}
    if "driver" not in options:
        chosen["driver"] = _turns[0](options)
    return Context("lo", mode=mode, **chosen)


_served: dict[Path, Driver] = {}


def network_context(context: Context) -> Context:
    """Return the context that has the sessions on the network: the driver's, or this one if it has none."""
    return context if context._driver is None else _served[context._driver.path]._context


@contextmanager
def serving(path: Path, **chosen: Any) -> Iterator[Driver]:
    """Serve a driver on loopback in this process, at a path. It gives up soon what its applications left behind."""
    driver._LOOK_SECONDS, driver._UNANSWERED_SECONDS, driver._DRAIN_SECONDS = 0.01, 0.1, 0.3
    options = {**OWN_ADDRESSES, "transport_lbtrm_datagram_max_size": DATAGRAM, **chosen}
    with DriverContext("lo", **options) as context, listen_at(path) as listener:
        one = Driver(context, listener, Policy(), DriverLimits(), lambda _event: None)
        thread = threading.Thread(target=one.serve)
        thread.start()
        _served[path] = one
        try:
            yield one
        finally:
            del _served[path]
            one.stop()
            thread.join(SECONDS)
            one.close()


class Drivers:
    """Drivers of this process. Contexts with the same options of the network attach to the same one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = itertools.count()
        self._running: dict[str, tuple[Driver, Path, ExitStack]] = {}

    def path_for(self, options: dict[str, Any]) -> Path:
        """Return the path of the driver for a context with these options."""
        of_network = {name: value for name, value in options.items() if name.startswith(_AT_THE_DRIVER)}
        key = repr(sorted(of_network.items()))
        if key not in self._running:
            stack, path = ExitStack(), self._folder / f"driver{next(self._made)}.sock"
            self._running[key] = stack.enter_context(serving(path, **of_network)), path, stack
        return self._running[key][1]

    @property
    def are_idle(self) -> bool:
        """True if they have no application, and nothing left to publish."""
        return all(_is_idle(one) for one, _, _ in self._running.values())

    def end_idle(self) -> None:
        """End those that no context uses any more, except the one without options."""
        for key, (one, _, stack) in [*self._running.items()]:
            if key != "[]" and _is_idle(one):
                stack.close()
                del self._running[key]

    def close(self) -> None:
        """End them."""
        for _, _, stack in self._running.values():
            stack.close()
        self._running.clear()


def _is_idle(one: Driver) -> bool:
    return not one._applications and not one._ending


def _alone(_options: dict[str, Any]) -> str:
    return "none"


_turns: list[Callable[[dict[str, Any]], str | Path]] = [_alone]


def take_turns(kinds: Sequence[str], drivers: Drivers | None) -> None:
    """Let the contexts that open_context() opens next be of these kinds in turn, "driver" or "none"."""
    turns = itertools.cycle(kinds)

    def of_next(options: dict[str, Any]) -> str | Path:
        return "none" if drivers is None or next(turns) == "none" else drivers.path_for(options)

    _turns[0] = of_next


def write_counters(context: Context) -> None:
    """Write the counter file of a context now, instead of within half a second."""
    assert context._counter_file is not None
    context._counter_file.write()


def configuration_file(folder: Path) -> Path:
    """A configuration in the folder for the commands a test starts: the addresses of this process."""
    options = {**OWN_ADDRESSES, "transport_lbtrm_datagram_max_size": DATAGRAM}
    file = folder / "um.cfg"
    file.write_text("".join(f"context {name} {value}\n" for name, value in options.items()))
    return file


def connect(context: Context, topic: str, **options: Any) -> tuple[Source, Receiver]:
    """A source and a receiver that know of each other, in one context. Options go to the one that has them."""
    to_receiver = {name: value for name, value in options.items() if name in _RECEIVER_OPTIONS}
    to_source = {name: value for name, value in options.items() if name not in to_receiver}
    receiver = context.receiver(topic, **to_receiver)
    source = context.source(topic, **{"flow_control": "min", **to_source})
    wait_for(lambda: receiver.stats()["delivery_controllers"], "topic resolution")
    if source.options.flow_control != "none":
        source.wait_connected(timeout=SECONDS)
    return source, receiver


def connect_contexts(
    sending: Context, receiving: Context, topic: str, **options: Any
) -> tuple[Source, Receiver]:
    """A source, and a receiver of another context that is connected. Options go to the one that has them."""
    to_receiver = {name: options.pop(name) for name in _RECEIVER_OPTIONS & options.keys()}
    receiver = receiving.receiver(topic, **to_receiver)
    source = sending.source(topic, **options)
    source.wait_connected(timeout=SECONDS)
    return source, receiver


SHARED = {"transport_lbtrm_multicast_address": f"{_BLOCK}.20"}
"""Sources with these options share one transport session; the others go round the pool (UX-10)."""

SMALL_QUEUE: dict[str, Any] = {
    "flow_control_receiver_window": 1 << 16,
    "receiver_queue_block_length": 1 << 14,
    "receiver_queue_block_count": 4,
}
"""A receiver that is soon full."""

_RECEIVER_OPTIONS = {
    "ordered_delivery",
    "receiver_queue_block_length",
    "receiver_queue_block_count",
    "receiver_maximum_message_length",
    "flow_control_receiver_window",
    "transport_lbtrm_activity_timeout",
    "delivery_control_maximum_burst_loss",
    "use_otr",
}


def collect_events(receiver: Receiver, count: int, seconds: float = SECONDS) -> list[Event]:
    """The next rows of any kind, this many of them."""
    rows: list[Event] = []
    deadline = time.monotonic() + seconds
    while len(rows) < count:
        rows += receiver.poll(count - len(rows), 0.1).events()
        assert time.monotonic() < deadline, f"{len(rows)} of {count} rows came in {seconds} s: {rows}"
    return rows


def payloads(messages: list[Message]) -> list[bytes]:
    """Return the payloads of the messages."""
    return [message.data for message in messages]


def recovery_server(context: Context) -> Any:
    """The request port of a context that has sources with late join or off-transport recovery."""
    assert context._recovery._server is not None
    return context._recovery._server
