"""The receivers of a source session: events about them, their NAK counts, and their NAK cutoff."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from umstack._core import ffi, lib
from umstack._engine.core_address import address_text, core_address, core_number, parse_address
from umstack._engine.interface_changes import interface_change_of
from umstack._engine.sessions import SourceSession
from umstack.errors import InvalidArgument, ResourceLimit

_log = logging.getLogger("umstack.source")
_KINDS = {
    lib.UM_SOURCE_RECEIVER_STALLED: "receiver_stalled",
    lib.UM_SOURCE_RECEIVER_RETURNED: "receiver_returned",
    lib.UM_SOURCE_RECEIVER_NOISY: "receiver_noisy",
    lib.UM_SOURCE_RECEIVER_CUT_OFF: "receiver_cut_off",
    lib.UM_SOURCE_RECEIVER_LOSES: "receiver_loses",
    lib.UM_SOURCE_RECEIVER_GAVE_UP: "receiver_gave_up",
    lib.UM_SOURCE_RECEIVER_KNOWN: "receiver_known",
    lib.UM_SOURCE_RECEIVER_GONE: "receiver_gone",
    lib.UM_SOURCE_CLIENT_CONNECTED: "connect",
    lib.UM_SOURCE_CLIENT_DISCONNECTED: "disconnect",
    lib.UM_SOURCE_CLIENT_REFUSED: "refused",
    lib.UM_SOURCE_RECEIVER_SLOW: "receiver_slow",
    lib.UM_SOURCE_RECEIVER_CUT_LOOSE: "receiver_cut_loose",
    lib.UM_SOURCE_PATH_CHANGED: "path_mtu_changed",
    lib.UM_SOURCE_CLOCK_SET_BACK: "clock_set_back",
    lib.UM_SOURCE_MESSAGE_TOO_LONG: "message_too_long",
}
_INTERFACE = "interface_"
_ORDINARY = ("receiver_known", "receiver_gone", "receiver_returned", "connect", "disconnect")


class ReceiverEvent(NamedTuple):
    """One event about a receiver or the context's interface, reported by a source.

    Example:
        ```python
        for event in src.receiver_events():
            print(event.kind, event.receiver, event.amount)
        ```
    """

    kind: str
    """The kind of the event:

    - receiver_stalled: it held the source back without advancing, so flow control now ignores it.
    - receiver_returned: flow control includes it again.
    - receiver_slow: its queue is full, so its reader holds the source back.
    - receiver_cut_loose: its queue was full for too long. It drops messages, and no longer holds the source back until
      receiver_returned.
    - receiver_noisy: it sends more NAKs than its share.
    - receiver_cut_off: the source no longer answers its NAKs.
    - receiver_loses: it NAKs messages that have left the transmission window; over TCP, source-paced: it is too slow.
    - receiver_gave_up: it lost datagrams for good (at most one event per receiver in 10 s).
    - message_too_long: it drops a message that was sent, because it is longer than
      `receiver_maximum_message_length` there (at most one event per receiver in 10 s).
    - receiver_known: flow control includes it from now on; with flow_control none: its first status message arrived.
    - receiver_gone: it left or timed out. Only flow control detects this.
    - connect, disconnect (LBT-RU, TCP, LBT-IPC): the source starts or stops sending data to it.
    - path_mtu_changed: the path to this receiver carries only smaller datagrams than the interface, so the source
      sends smaller ones. "0.0.0.0:0": every receiver gets datagrams of the interface's size again.
    - clock_set_back (with keys): this host's clock was set back, so the session began again under a new identifier;
      receivers find it again within a second. `receiver` is "0.0.0.0:0".
    - refused (TCP): its key is missing or differs from the source's, or only the receiver has a key.
    - interface_gone, interface_returned, interface_made_again, interface_renamed, interface_address_changed,
      interface_address_removed: the interface changed, as in InterfaceChanged; `receiver` is its name after the change.
    """
    receiver: str
    """Source address and UDP port of its control messages: "10.0.0.7:40211"; over LBT-IPC "process 4711"."""
    amount: int
    """A number whose meaning depends on the kind:

    - receiver_stalled: nanoseconds for which it held the source back.
    - receiver_gone: nanoseconds it was idle, 0 if it left.
    - receiver_noisy, receiver_cut_off: NAKs ignored in total.
    - receiver_loses: such NAKs in total; over TCP: messages lost in total.
    - receiver_gave_up: such datagrams in total.
    - message_too_long: bytes of the longest message that it accepts.
    - connect, disconnect: receivers that are connected after the event.
    - path_mtu_changed: bytes of the longest datagrams that the source sends from now on.
    - clock_set_back: nanoseconds by which the clock was set back.
    - refused: 1 if it has no key for the topics of the session, 2 if the source does not have its key, 3 or 5 if its
      request was changed or replayed, 6 if its option encryption differs.
    - interface_*: 1 if everything of the context uses the changed interface, otherwise 0.
    - other kinds: 0.
    """


@dataclass(frozen=True, slots=True)
class Drained:
    """Result of Source.wait_drained(); true if every receiver has received all messages.

    Example:
        ```python
        drained = src.wait_drained(timeout=1)
        if drained.is_complete and not drained:
            print("lost for good:", drained.given_up)
        ```
    """

    is_complete: bool
    """Every receiver that counts has received or given up everything; False: the timeout ended first."""
    given_up: dict[str, int]
    """Datagrams of the session that receivers have lost for good since it began, by receiver ("10.0.0.7:40211").

    They may have carried messages of other topics of the session. With the source option late_join, receivers may have
    fetched their messages off-transport since.
    """

    def __bool__(self) -> bool:
        """Return True if everything was received and nothing given up."""
        return self.is_complete and not self.given_up


def receiver_events(session: SourceSession, read_count: int) -> tuple[list[ReceiverEvent], int]:
    """Return the events after the first `read_count`, and the next `read_count`. Only the newest are kept."""
    out = ffi.new("um_source_event[]", lib.UM_SOURCE_EVENTS_MAX)
    count = ffi.new("uint64_t *")
    named = _named_process if session.options.transport == "lbtipc" else address_text
    taken = lib.um_publication_session_events(session.handle, read_count, out, count)
    return [_event(event, named) for event in out[0:taken]], count[0]


def _event(event: Any, named: Callable[[Any], str]) -> ReceiverEvent:
    if event.kind == lib.UM_SOURCE_INTERFACE_CHANGED:
        change, is_followed = interface_change_of(event.count)
        return ReceiverEvent(_INTERFACE + change, os.fsdecode(ffi.string(event.interface)), is_followed)
    return ReceiverEvent(_KINDS[event.kind], named(event.receiver), event.count)


def note_interface(session: SourceSession, interface: str, change_number: int) -> None:
    """Add an event about a change of the context's interface."""
    lib.um_publication_session_note_interface(session.handle, os.fsencode(interface), change_number)


def log_receiver_events(session: SourceSession) -> None:
    """Log every event about a receiver since the last call. The context logs changes of its interface."""
    events, session.logged_events = receiver_events(session, session.logged_events)
    for event in events:
        if event.kind.startswith(_INTERFACE):
            continue
        level = logging.INFO if event.kind in _ORDINARY else logging.WARNING
        extra = {"umstack_object": event.receiver, "umstack_count": event.amount}
        _log.log(level, "%s: %s %s (%d)", session.name, event.kind, event.receiver, event.amount, extra=extra)


def receiver_accounts(session: SourceSession) -> list[dict[str, Any]]:
    """Return the NAK counts and the state of each receiver: slow ones first, then by NAKs."""
    out = ffi.new("um_receiver_account[]", lib.UM_ACCOUNTS_MAX)
    accounts = [
        {
            "receiver": address_text(one.address),
            "naks": one.naks,
            "retransmitted_bytes": one.bytes,
            "refused": one.refused,
            "too_late": one.too_late,
            "given_up": one.given_up + one.session_unconfirmed,
            "is_member": int(one.is_member),
            "is_cut_off": int(one.is_cut_off),
            "is_slow": int(one.is_slow),
            "is_cut_loose": int(one.is_cut_loose),
        }
        for one in out[0 : lib.um_publication_session_accounts(session.handle, out)]
    ]
    return sorted(
        accounts, key=lambda one: (-int(one["is_cut_loose"]), -int(one["is_slow"]), -int(one["naks"]))
    )


def given_up(session: SourceSession) -> dict[str, int]:
    """Return the number of datagrams that receivers reported as lost for good, by receiver."""
    accounts = receiver_accounts(session)
    return {one["receiver"]: one["given_up"] for one in accounts if one["given_up"]}


def cut_off(session: SourceSession, receiver: str, is_cut_off: bool) -> None:
    """Ignore the NAKs of a receiver, or answer them again."""
    try:
        address = core_address(parse_address(receiver))
    except ValueError:
        raise InvalidArgument(
            f"{receiver!r} is not a receiver", hint="use address:port as events and `umstack stat` show it"
        ) from None
    if not lib.um_publication_session_cut_off(
        session.handle, ffi.new("um_address *", address)[0], is_cut_off
    ):
        raise ResourceLimit(
            "the table of receivers is full of members", hint="allow the NAKs of others again"
        )


def _named_process(address: Any) -> str:
    return f"process {core_number(address.ip)}"
