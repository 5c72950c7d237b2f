"""A VLAN tag on everything a host sends, by a program of its own: it needs no VLAN interface."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator

from tests.netns.system_libbpf import libbpf
from umstack.lab import Host
from xdp import find_interface

_SCHED_CLS, _TCX_EGRESS = 3, 47
_MOV64_IMM, _CALL, _EXIT = 0xB7, 0x85, 0x95
_SKB_VLAN_PUSH = 18
_TCX_NEXT = -1


def _instruction(code: int, register: int = 0, number: int = 0) -> bytes:
    return struct.pack("<BBhi", code, register, 0, number)


def _load(instructions: bytes) -> int:
    program = libbpf().bpf_prog_load(_SCHED_CLS, b"tag", b"GPL", instructions, len(instructions) // 8, None)
    if program < 0:
        raise OSError(-program, "loading the program that tags")
    return int(program)


@contextlib.contextmanager
def tagged(host: Host, vlan: int, ethertype: int = 0x8100) -> Iterator[None]:
    """Inside, what leaves the host has this tag, as beside a VLAN interface: the kernel keeps it next to the frame.

    Programs that are attached at tc egress later see it so.
    """
    proto = int.from_bytes(struct.pack("!H", ethertype), "little")
    program = _load(
        _instruction(_MOV64_IMM, 2, proto)
        + _instruction(_MOV64_IMM, 3, vlan)
        + _instruction(_CALL, number=_SKB_VLAN_PUSH)
        + _instruction(_MOV64_IMM, 0, _TCX_NEXT)
        + _instruction(_EXIT)
    )
    try:
        link = host.call(
            lambda: libbpf().bpf_link_create(program, find_interface(host.interface).index, _TCX_EGRESS, None)
        )
        if link < 0:
            raise OSError(-link, "attaching the program that tags")
        try:
            yield
        finally:
            os.close(link)
    finally:
        os.close(program)
