"""Programs at tc egress that change frames before they leave the host."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Iterator

from tests.netns.system_libbpf import libbpf
from umstack.lab import Host, Lab, namespaces
from umstack_xdp import find_interface

_SCHED_CLS, _TCX_EGRESS = 3, 47
_MOV64_IMM, _MOV64, _ADD64_IMM, _AND64_IMM, _CALL, _EXIT = 0xB7, 0xBF, 0x07, 0x57, 0x85, 0x95
_LOAD_PACKET_BYTE, _STORE_WORD = 0x30, 0x63
_SKB_VLAN_PUSH = 18
_SKB_QUEUE_MAPPING = 12
_LAST_ADDRESS_BYTE = 33
_TCX_NEXT = -1


def _instruction(code: int, register: int = 0, number: int = 0, *, source: int = 0, offset: int = 0) -> bytes:
    return struct.pack("<BBhi", code, register | source << 4, offset, number)


def _load(instructions: bytes) -> int:
    program = libbpf().bpf_prog_load(
        _SCHED_CLS, b"egress", b"GPL", instructions, len(instructions) // 8, None
    )
    if program < 0:
        raise OSError(-program, "loading a program for tc egress")
    return int(program)


@contextlib.contextmanager
def _attached(
    call: Callable[[Callable[[], int]], int], interface: str, instructions: bytes
) -> Iterator[None]:
    program = _load(instructions)
    try:
        link = call(
            lambda: libbpf().bpf_link_create(program, find_interface(interface).index, _TCX_EGRESS, None)
        )
        if link < 0:
            raise OSError(-link, f"attaching a program to tc egress of {interface}")
        try:
            yield
        finally:
            os.close(link)
    finally:
        os.close(program)


@contextlib.contextmanager
def tagged(host: Host, vlan: int, ethertype: int = 0x8100) -> Iterator[None]:
    """Add this VLAN tag to the frames that leave the host, next to the frame as the kernel stores it.

    It needs no VLAN interface. Programs that are attached at tc egress later see the tag.
    """
    proto = int.from_bytes(struct.pack("!H", ethertype), "little")
    push = (
        _instruction(_MOV64_IMM, 2, proto)
        + _instruction(_MOV64_IMM, 3, vlan)
        + _instruction(_CALL, number=_SKB_VLAN_PUSH)
        + _instruction(_MOV64_IMM, 0, _TCX_NEXT)
        + _instruction(_EXIT)
    )
    with _attached(host.call, host.interface, push):
        yield


@contextlib.contextmanager
def queue_by_group(lab: Lab, host_number: int) -> Iterator[None]:
    """Steer frames of an odd group to the host's queue 1 and those of an even group to queue 0, as a NIC may do.

    Otherwise the switch chooses by a hash. The kernel stores the number of a frame's queue plus one.
    """
    choose = (
        _instruction(_MOV64, 6, source=1)
        + _instruction(_LOAD_PACKET_BYTE, number=_LAST_ADDRESS_BYTE)
        + _instruction(_AND64_IMM, 0, 1)
        + _instruction(_ADD64_IMM, 0, 1)
        + _instruction(_STORE_WORD, 6, source=0, offset=_SKB_QUEUE_MAPPING)
        + _instruction(_MOV64_IMM, 0, _TCX_NEXT)
        + _instruction(_EXIT)
    )

    def at_the_switch(function: Callable[[], int]) -> int:
        return namespaces.call(lab.switch_namespace, function)

    with _attached(at_the_switch, f"port{host_number}", choose):
        yield
