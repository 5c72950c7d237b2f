"""The application's side of the broker: rings on an interface without privileges (see `umstack_xdp.broker`).

Any thread; requests on one connection are serialized.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from umstack_xdp.attachment import AttachMode
from umstack_xdp.broker_protocol import (
    DESCRIPTORS_MAX,
    MESSAGE_MAX_BYTES,
    AskRequest,
    AttachedRequest,
    OpenRequest,
    Request,
    RuleRequest,
    decode_reply,
    encode_request,
    network_namespace,
)
from umstack_xdp.closing import Closing
from umstack_xdp.errors import BrokerError
from umstack_xdp.facts import AttachedXdp, Facts, Unknown
from umstack_xdp.ring_place import RingPlace
from umstack_xdp.steering import FrameTimes
from umstack_xdp.xsk import LentRings, RingMode, RingSet, RingSettings, RingShape

_ANSWER_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """The permissions of a broker, and its users."""

    capabilities: frozenset[str]
    memlock_limit_bytes: int | None
    lent: dict[str, str]
    """The lent interfaces, and the process that has each."""
    confinement: dict[str, str] = field(default_factory=dict)
    """Restrictions of the broker's process by measure (`umstack_xdp.confinement`)."""

    def added_to(self, facts: Facts) -> Facts:
        """Return the facts of a process whose rings the broker opens, for this interface and the NICs below it."""
        facts = replace(facts, nics=tuple(map(self.added_to, facts.nics)))
        own = facts.capabilities
        held = own if isinstance(own, Unknown) else own | self.capabilities
        attached, holder = facts.attached, self.lent.get(facts.interface)
        if isinstance(attached, AttachedXdp) and holder is not None:
            whose = f"the broker's, which lent the interface to {holder}"
            attached = replace(
                attached,
                description=whose,
                removal="use another interface, or stop that process, if it is no longer needed",
                steers=True,
            )
        return replace(
            facts, capabilities=held, memlock_limit_bytes=self.memlock_limit_bytes, attached=attached
        )


class _Connection:
    __slots__ = ("_asking", "_socket", "lost", "path")

    def __init__(self, path: Path) -> None:
        self.path, self.lost = path, ""
        self._asking = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_ANSWER_SECONDS)
        try:
            self._socket.connect(os.fspath(path))
        except OSError as error:
            self._socket.close()
            raise self._no_answer(error) from error

    def ask(self, request: Request) -> tuple[dict[str, Any], list[int]]:
        """Send a request and wait for the response; its descriptors belong to the caller."""
        with self._asking:
            if self.lost:
                raise BrokerError(self.lost, hint="start it again, and the application with it")
            try:
                # A broker that disconnects immediately has sent the reason before.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    self._socket.send(encode_request(request))
                message, descriptors = self._receive()
            except OSError as error:
                # A late response would be mistaken for the response to the next request.
                failure = self._no_answer(error)
                self.lost = failure.message
                self._socket.close()
                raise failure from error
        try:
            return decode_reply(message, self.path), descriptors
        except BaseException:
            _close_all(descriptors)
            raise

    def _receive(self) -> tuple[bytes, list[int]]:
        try:
            message, descriptors, _, _ = self._receive_once()
        except ConnectionResetError:
            # The broker closed with unread data: the kernel reports that before the data sent earlier.
            message, descriptors, _, _ = self._receive_once()
        if not message:
            raise ConnectionResetError(errno.ECONNRESET, "it disconnected")
        return message, descriptors

    def _receive_once(self) -> tuple[bytes, list[int], int, Any]:
        return socket.recv_fds(self._socket, MESSAGE_MAX_BYTES, DESCRIPTORS_MAX, socket.MSG_CMSG_CLOEXEC)

    def close(self) -> None:
        """Close the connection, and wait until the broker has closed its part of the loan."""
        with self._asking, contextlib.suppress(OSError):
            if not self.lost:
                self._socket.shutdown(socket.SHUT_WR)
                self._socket.recv(1)
        self.lost = self.lost or "the connection to the broker was closed"
        self._socket.close()

    def _no_answer(self, error: OSError) -> BrokerError:
        reason = "it does not answer in time" if isinstance(error, TimeoutError) else error.strerror
        return BrokerError(
            f"the broker at {self.path}: {reason}",
            hint="start it (`umstack broker`), or give this process the capabilities itself",
            errno=error.errno or 0,
        )


class BrokeredSteering(Closing):
    """The steering program that a broker holds for this process; like `Steering`, as far as a link needs it.

    When the broker ends, the program ends: groups steered now or later are received through the kernel.
    """

    __slots__ = ("_connection", "_vlan", "frame_times")

    def __init__(self, connection: _Connection, frame_times: FrameTimes, vlan: int) -> None:
        """Own the connection; the program notes `frame_times`; `vlan` is the one VLAN that is lent (0: no tag)."""
        self._connection, self.frame_times, self._vlan = connection, frame_times, vlan

    @property
    def lost(self) -> str:
        """The reason why the broker is no longer available; empty while it is available."""
        return self._connection.lost

    def add_rule(self, address: str, port: int, slot: int, vlan: int = 0) -> None:
        """Receive datagrams to that address and port through the rings; only slot 0 exists."""
        if slot != 0:
            raise BrokerError(f"there is no slot {slot}", hint="use slot 0")
        self._check_vlan(vlan)
        self._ask_while_there(RuleRequest(True, address, port))

    def remove_rule(self, address: str, port: int, vlan: int = 0) -> None:
        """Return these datagrams to the kernel."""
        self._check_vlan(vlan)
        self._ask_while_there(RuleRequest(False, address, port))

    def attached(self) -> bool:
        """Return true if the program is attached to its interface now."""
        return bool(self._ask_while_there(AttachedRequest()).get("attached"))

    def close(self) -> None:
        """End the loan; a second call does nothing."""
        self._connection.close()

    def _check_vlan(self, vlan: int) -> None:
        if vlan != self._vlan:
            raise BrokerError(
                f"VLAN {vlan} is not lent",
                hint=f"use {self._vlan}, or open rings on an interface of that VLAN",
            )

    def _ask_while_there(self, request: Request) -> dict[str, Any]:
        if self.lost:
            return {}
        try:
            reply, descriptors = self._connection.ask(request)
        except BrokerError:
            if self._connection.lost:
                return {}
            raise
        _close_all(descriptors)
        return reply


def ask_broker(path: Path) -> BrokerFacts:
    """Return the permissions of the broker at that path in this namespace."""
    connection = _Connection(path)
    try:
        found, descriptors = connection.ask(AskRequest())
        _close_all(descriptors)
    finally:
        connection.close()
    if found.get("namespace") != network_namespace():
        raise BrokerError(
            f"the broker at {path} is in another network namespace", hint="start one in this namespace"
        )
    limit = found.get("memlock_limit_bytes")
    return BrokerFacts(
        frozenset(found.get("capabilities") or ()),
        limit,
        dict(found.get("lent") or {}),
        dict(found.get("confinement") or {}),
    )


def open_brokered_rings(
    path: Path,
    place: RingPlace,
    attach_mode: AttachMode,
    ring_mode: RingMode,
    settings: RingSettings,
) -> tuple[BrokeredSteering, RingSet]:
    """Have the broker attach the program and open the rings in exactly this mode. The caller closes both."""
    connection = _Connection(path)
    descriptors: list[int] = []
    try:
        asked = OpenRequest(place.interface.name, place.device.name, attach_mode, ring_mode, settings)
        reply, descriptors = connection.ask(asked)
        ring_set = RingSet.adopt(place, _lent_rings(reply, descriptors, path))
    except BaseException:
        connection.close()
        raise
    finally:
        _close_all(descriptors)
    return BrokeredSteering(connection, _frame_times(reply, path), place.vlan), ring_set


def _frame_times(reply: dict[str, Any], path: Path) -> FrameTimes:
    try:
        return FrameTimes(reply["frame_times"])
    except (KeyError, ValueError) as error:
        raise BrokerError(f"the broker at {path} lent nothing", hint="use one of the same version") from error


def _lent_rings(reply: dict[str, Any], descriptors: list[int], path: Path) -> LentRings:
    try:
        shape = RingShape(**reply["shape"])
    except (KeyError, TypeError) as error:
        raise BrokerError(f"the broker at {path} lent nothing", hint="use one of the same version") from error
    if len(descriptors) != shape.queues + 1:
        raise BrokerError(
            f"the broker at {path} lent {shape.queues} queues, of which {len(descriptors) - 1} descriptors came",
            hint="raise the limit on open files (`ulimit -n`)",
        )
    return LentRings(shape, tuple(descriptors[1:]), descriptors[0])


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
