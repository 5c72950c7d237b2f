"""tc attachments: a BPF program on the ingress or egress of an interface, through its clsact qdisc.

Works on the network namespace of the calling thread.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from umstack_xdp.errors import BpfError
from umstack_xdp.loader import BpfProgram

Direction = Literal["ingress", "egress"]

_TCA_BPF_ID = 11
_NO_QUEUES = {"clsact", "ingress"}
_HOOKS: dict[Direction, int] = {"ingress": 0xFFFFFFF2, "egress": 0xFFFFFFF3}


def attach(interface_index: int, direction: Direction, program: BpfProgram) -> None:
    """Attach the program to the hook; its verdict is final (direct action).

    An interface without the qdisc gets one. If it is up, the kernel meanwhile drops packets that it sends.
    """
    with _netlink(f"attaching {program.name} to the {direction} of interface {interface_index}") as route:
        try:
            add_qdisc(route, interface_index)
        except NetlinkError as error:
            if error.code != errno.EEXIST:
                raise
        route.tc(
            "add-filter",
            "bpf",
            interface_index,
            parent=_HOOKS[direction],
            fd=program.fd,
            name=program.name,
            classid=1,
            direct_action=True,
        )


def add_qdisc(route: IPRoute, interface_index: int) -> None:
    """Give the interface the qdisc of both hooks, which runs nothing until a program is attached."""
    route.tc("add", "clsact", interface_index)


def detach(interface_index: int, direction: Direction) -> None:
    """Remove all programs from the hook. The qdisc stays: removing it would drop packets that are being sent."""
    with _netlink(f"detaching from the {direction} of interface {interface_index}") as route:
        if _program_ids(route, interface_index, direction):
            route.tc("del-filter", index=interface_index, parent=_HOOKS[direction])


def attached_program_ids(interface_index: int, direction: Direction) -> list[int]:
    """Return the ids of the programs on the hook in execution order."""
    with _netlink(f"reading the programs at the {direction} of interface {interface_index}") as route:
        return _program_ids(route, interface_index, direction)


def has_filters(interface_index: int, direction: Direction) -> bool:
    """Return true if the hook has a BPF program or any other filter."""
    with _netlink(f"reading the filters at the {direction} of interface {interface_index}") as route:
        if not _has_clsact(route, interface_index):
            return False
        return bool(list(route.get_filters(index=interface_index, parent=_HOOKS[direction])))


def disciplines(interface_index: int) -> tuple[str, ...]:
    """Return the kinds of the queueing disciplines for outgoing packets."""
    with _netlink(f"reading the queueing disciplines of interface {interface_index}") as route:
        kinds = {str(qdisc.get_attr("TCA_KIND")) for qdisc in route.get_qdiscs(interface_index)}
    return tuple(sorted(kinds - _NO_QUEUES))


@contextmanager
def _netlink(what: str) -> Iterator[IPRoute]:
    """Open a netlink socket; convert kernel errors to BpfError."""
    try:
        with IPRoute() as route:
            yield route
    except NetlinkError as error:
        raise BpfError(what, error.code) from error


def _has_clsact(route: IPRoute, interface_index: int) -> bool:
    return any(qdisc.get_attr("TCA_KIND") == "clsact" for qdisc in route.get_qdiscs(interface_index))


def _program_ids(route: IPRoute, interface_index: int, direction: Direction) -> list[int]:
    if not _has_clsact(route, interface_index):
        return []
    entries = [
        entry.get_attr("TCA_OPTIONS")
        for entry in route.get_filters(index=interface_index, parent=_HOOKS[direction])
    ]
    return [number for options in entries if options for number in _program_id(options)]


def _program_id(options: Any) -> list[int]:
    """Return TCA_BPF_ID, which pyroute2 leaves undecoded because its table ends before that attribute."""
    return [
        int.from_bytes(value.data[value.offset + 4 : value.offset + 8], sys.byteorder)
        for name, value in options["attrs"]
        if name == "UNKNOWN" and value["header"]["type"] == _TCA_BPF_ID
    ]
