"""XDP attachments: a program on an interface, held by a bpf_link, and the programs that are already attached.

The link's descriptor is the attachment: when it is closed or its process ends in any way, the kernel detaches the
program. Works on the network namespace of the calling thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from umstack_xdp.closing import Closing
from umstack_xdp.errors import AttachError, BpfError, NoSuchInterfaceError, NotBuiltError, OccupiedError
from umstack_xdp.interface import Interface, find_interface, off_the_event_loop
from umstack_xdp.loader import AttachedProgram, BpfProgram, checked, libbpf

_LIBXDP_DISPATCHER = "xdp_dispatcher"
_STEERING = "steering"
"""Prefix of the program names in bpf/steering.bpf.c."""
_REMOVAL_WORDS = {"native": "xdpdrv", "generic": "xdpgeneric", "offload": "xdpoffload"}
_PROGRAM_IDS = {
    "native": "IFLA_XDP_DRV_PROG_ID",
    "generic": "IFLA_XDP_SKB_PROG_ID",
    "offload": "IFLA_XDP_HW_PROG_ID",
}
_HINTS = {
    errno.EOPNOTSUPP: "its driver has no XDP of its own: use mode generic",
    errno.EINVAL: "turn off what the driver cannot combine with XDP (LRO, rings of unequal number), or use generic",
    errno.ERANGE: "the MTU, or a veth's peer, is too large for a program without multi-buffer: lower the MTU, "
    "use a kernel from 5.18 on, or mode generic",
    errno.ENOSPC: "the driver needs a free queue for each CPU: ethtool -L IFACE combined N",
    errno.ENOMEM: "free some memory: the driver sets up its rings again",
    errno.ENODEV: "the interface is gone: name another",
    errno.EBUSY: "another program was there a moment ago: try again",
    errno.EEXIST: "another program was there a moment ago: try again",
}


class AttachMode(StrEnum):
    """Where an attached program runs.

    Example:
        ```python
        xdp.Steering.attach("eth0", xdp.AttachMode.GENERIC).close()
        ```
    """

    NATIVE = "native"
    """In the driver, before the kernel processes the frame."""
    GENERIC = "generic"
    """In the kernel's receive path: works on any interface, but is no faster than the kernel."""


@dataclass(frozen=True, slots=True)
class Occupant:
    """An XDP program on an interface.

    Example:
        ```python
        for occupant in xdp.occupants("eth0"):
            print(occupant, occupant.removal("eth0"))
        ```
    """

    program_id: int
    name: str
    mode: str
    """`native`, `generic` or `offload`."""
    link_id: int | None
    """The bpf_link that holds it; None if it was attached without one: it then outlives its process."""
    owner_uid: int | None
    """The user who loaded it."""
    holders: tuple[str, ...]
    """Processes that have it open, as `name (pid)`, if /proc shows them."""
    is_known: bool = True
    """False if the kernel hides its name and holder because CAP_SYS_ADMIN is missing."""

    @property
    def steers(self) -> bool | None:
        """True if it is a steering program of this package, which redirects groups to rings; None: unknown."""
        return self.name.startswith(_STEERING) if self.is_known else None

    def removal(self, interface: str) -> str:
        """Return how to free the interface, never a command that detaches a program in use.

        A program that a process holds ends with its process, which its owner must stop. A command is returned
        only if
        the program outlives its process, together with the condition that nothing needs it.

        Args:
            interface: Name of the interface, which the commands contain.

        Returns:
            A phrase in English, for a message.

        Example:
            ```python
            print([occupant.removal("eth0") for occupant in xdp.occupants("eth0")])
            ```
        """
        if not self.is_known:
            return f"bpftool net show dev {interface} (as root) shows what it is"
        if self.name == _LIBXDP_DISPATCHER:
            return (
                f"xdp-loader status {interface} lists its programs; if none is needed any more: "
                f"xdp-loader unload {interface} --all"
            )
        holders = ", ".join(self.holders)
        if self.link_id is not None:
            if holders:
                return f"stop {holders}, if it is no longer needed"
            return f"bpftool link show id {self.link_id} (as root) shows which process holds it"
        condition = f"once {holders} no longer needs it" if holders else "if nothing needs it any more"
        return f"{condition}: ip link set dev {interface} {_REMOVAL_WORDS[self.mode]} off"

    def __str__(self) -> str:
        """Return the description used in messages."""
        who = f"held by {', '.join(self.holders)}" if self.holders else "held by no process that can be seen"
        if self.owner_uid is not None:
            who += f", loaded by user {self.owner_uid}"
        kind = ", libxdp's dispatcher of several programs" if self.name == _LIBXDP_DISPATCHER else ""
        nameless = "a program without a name" if self.is_known else "a program whose name only root may know"
        return f"{self.name or nameless} (id {self.program_id}, {self.mode} mode{kind}; {who})"


def occupants(interface: Interface | str) -> tuple[Occupant, ...]:
    """Return the XDP programs on an interface, including our own.

    Args:
        interface: The interface, or its name, address or network.

    Returns:
        The programs, at most one for each mode.

    Raises:
        NoSuchInterfaceError: There is no such interface.
        NotBuiltError: This build has no libbpf.

    Example:
        ```python
        print(*xdp.occupants("eth0"))
        ```
    """
    there = _known(interface)
    return tuple(_occupant(there, number, mode) for mode, number in _program_ids(there.index).items())


def program_ids(interface: Interface) -> tuple[int, ...]:
    """Return the ids of the XDP programs on an interface, or an empty tuple; takes microseconds."""
    ids = libbpf().ffi.new("struct xdp_bpf_program_ids *")
    result = libbpf().lib.xdp_bpf_program_ids(interface.index, ids)
    checked(result, f"reading the XDP programs on {interface.name}")
    return tuple(number for number in (ids.native_id, ids.generic_id, ids.offload_id) if number)


def has_program(interface: Interface) -> bool:
    """Return true if any XDP program is on the interface; takes microseconds if libbpf was built in."""
    try:
        return bool(program_ids(interface))
    except NotBuiltError:
        return bool(_program_ids(interface.index))


class Attachment(Closing):
    """One program attached to one interface.

    Context manager. The program is detached when the attachment closes or its process ends.

    Example:
        ```python
        with xdp.BpfObject("steering") as steering:
            with xdp.Attachment(steering.program("steering"), "eth0", xdp.AttachMode.NATIVE) as attachment:
                print(attachment.link_id)
        ```
    """

    __slots__ = ("_fd", "interface", "link_id", "mode")

    def __init__(self, program: BpfProgram, interface: Interface | str, mode: AttachMode) -> None:
        """Attach the program.

        Args:
            program: A loaded XDP program.
            interface: The interface, or its name, address or network.
            mode: Where the program runs. No other mode is tried.

        Raises:
            OccupiedError: The interface has an XDP program already; the error names it.
            AttachError: The kernel or the driver refuses.
            NoSuchInterfaceError: There is no such interface.
        """
        self._fd = -1
        self.interface, self.mode = _known(interface), mode
        refuse_if_occupied(self.interface)
        lib = libbpf().lib
        number = {AttachMode.NATIVE: lib.XDP_BPF_NATIVE, AttachMode.GENERIC: lib.XDP_BPF_GENERIC}[mode]
        result = lib.xdp_bpf_attach(program.fd, self.interface.index, number)
        if result in (-errno.EBUSY, -errno.EEXIST):
            refuse_if_occupied(self.interface)
        if result < 0:
            what = f"attaching {program.name} to {self.interface.name} in {mode} mode"
            raise AttachError(what, -result, hint=_HINTS.get(-result))
        self._fd = int(result)
        try:
            self.link_id = int(self._facts().link_id)
        except BpfError:
            self.close()
            raise

    @property
    def is_held(self) -> bool:
        """True if the program is still attached: others may detach it, or remove the interface."""
        return self._fd >= 0 and self._facts().interface_index == self.interface.index

    def close(self) -> None:
        """Detach the program; a second call does nothing.

        Example:
            ```python
            with xdp.BpfObject("steering") as steering:
                attachment = xdp.Attachment(steering.program("steering"), "eth0", xdp.AttachMode.GENERIC)
                attachment.close()
            ```
        """
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _facts(self) -> Any:
        facts = libbpf().ffi.new("struct xdp_bpf_link_facts *")
        checked(libbpf().lib.xdp_bpf_link_describe(self._fd, facts), f"the link to {self.interface.name}")
        return facts


def refuse_if_occupied(interface: Interface) -> None:
    """Raise an error that names the programs on the interface and how to free it, if there are any."""
    there = occupants(interface)
    if not there:
        return
    ways = "; ".join(occupant.removal(interface.name) for occupant in there)
    raise OccupiedError(
        f"{interface.name} has an XDP program already: {'; '.join(map(str, there))}",
        hint=f"use another interface, or the socket link; or {ways}",
        occupants=there,
    )


@off_the_event_loop
def _program_ids(index: int) -> dict[str, int]:
    """Return the ids of the XDP programs on an interface by mode: native, generic, offload."""
    # Contexts on sockets get here only in builds without libbpf; they start faster without netlink.
    from pyroute2 import IPRoute
    from pyroute2.netlink.exceptions import NetlinkError

    with IPRoute() as route:
        try:
            (link,) = route.get_links(index)
        except NetlinkError as error:
            if error.code != errno.ENODEV:
                raise
            raise NoSuchInterfaceError(
                f"no interface has the index {index} any more", hint="name another, or bring it back"
            ) from error
    attributes = link.get_attr("IFLA_XDP")
    ids = {mode: attributes and attributes.get_attr(name) for mode, name in _PROGRAM_IDS.items()}
    return {mode: int(number) for mode, number in ids.items() if number}


def _known(interface: Interface | str) -> Interface:
    return interface if isinstance(interface, Interface) else find_interface(interface)


def _occupant(interface: Interface, program_id: int, mode: str) -> Occupant:
    name, owner_uid, link_id = "", None, None
    # Unknown or just ended programs are omitted: a failure here would not improve the message.
    with contextlib.suppress(BpfError), AttachedProgram(program_id) as attached:
        facts = attached.program.facts()
        name, owner_uid = facts.name, facts.owner_uid
    found = libbpf().ffi.new("struct xdp_bpf_link_facts *")
    result = libbpf().lib.xdp_bpf_link_find(interface.index, program_id, found)
    if result == 0:
        link_id = int(found.link_id)
    holders = tuple(sorted(set(_holders(program_id, link_id))))
    return Occupant(program_id, name, mode, link_id, owner_uid, holders, is_known=result != -errno.EPERM)


def _holders(program_id: int, link_id: int | None) -> Iterator[str]:
    """Yield the processes that have the program or its link open."""
    ours = (
        rf"^prog_id:\s*{program_id}$"
        if link_id is None
        else rf"^(?:link_id:\s*{link_id}|prog_id:\s*{program_id})$"
    )
    pattern = re.compile(ours, re.MULTILINE)
    for process in Path("/proc").glob("[0-9]*"):
        # Processes may end meanwhile, and those of other users are not readable.
        with contextlib.suppress(OSError):
            if any(pattern.search(text) for text in _bpf_descriptors(process)):
                yield f"{(process / 'comm').read_text().strip()} ({process.name})"


def _bpf_descriptors(process: Path) -> Iterator[str]:
    """Return the kernel's facts about each BPF program and link that the process has open."""
    for descriptor in (process / "fd").iterdir():
        with contextlib.suppress(OSError):
            if str(descriptor.readlink()).startswith("anon_inode:bpf"):
                yield (process / "fdinfo" / descriptor.name).read_text()
