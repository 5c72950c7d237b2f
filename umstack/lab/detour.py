"""The detour of a port: a veth loop in the switch's namespace in which datagrams to be reordered circulate.

Its token bucket paces them, one datagram at a time. Without it, a held datagram would return within the interrupt that
received it, before any other could overtake it.

The loop also holds the port's BPF programs from their first use on: `lossy_detour` runs at the far end, `lossy_port` is
parked at the near end, where no packet arrives. So the settings and counters in their maps outlive the process that
created them, without a pin, and are removed with the loop.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import Self

from umstack.lab.errors import LabError
from umstack.lab.host import MTU_MAX_BYTES
from umstack.lab.links import index_of, netlink
from umstack_xdp import AttachedProgram, BpfObject, traffic_control

# Each datagram counts as the largest possible and empties the bucket, so a round takes this long for any size.
_ROUND_NS = 50_000
_ROUND_BYTES = MTU_MAX_BYTES + 14
_RATE_BITS_PER_SECOND = _ROUND_BYTES * 8 * 1_000_000_000 // _ROUND_NS
# Slightly larger than _ROUND_BYTES, because the kernel rounds the value down.
_BURST_BYTES = _ROUND_BYTES + 1024
# More than lossy_port admits to the detour, so that the bucket never drops datagrams.
_LIMIT_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Detour:
    """A loop, by the indexes of its ends: datagrams enter at `near` and leave at `far`."""

    near: int
    far: int

    @classmethod
    def find(cls, name: str) -> Self | None:
        """Return the loop of that name, if there is one."""
        with netlink(f"looking for {name}") as route:
            ends = [route.link_lookup(ifname=end) for end in (name, _far_name(name))]
        return cls(int(ends[0][0]), int(ends[1][0])) if all(ends) else None

    @classmethod
    def build(cls, name: str) -> Self:
        """Create the loop of that name and load the programs into it."""
        with netlink(f"making {name}") as route, BpfObject("lossy_port") as programs:
            peer = {"ifname": _far_name(name), "mtu": MTU_MAX_BYTES}
            route.link("add", ifname=name, kind="veth", mtu=MTU_MAX_BYTES, peer=peer)
            detour = cls(index_of(route, name), index_of(route, _far_name(name)))
            _pace(name)
            traffic_control.attach(detour.near, "ingress", programs.program("lossy_port"))
            traffic_control.attach(detour.far, "ingress", programs.program("lossy_detour"))
            for index in (detour.far, detour.near):
                route.link("set", index=index, state="up")
        return detour

    def open_port_program(self) -> AttachedProgram:
        """Open the program for the port, and with it the maps; the caller closes it."""
        return AttachedProgram(traffic_control.attached_program_ids(self.near, "ingress")[0])


def _far_name(name: str) -> str:
    return f"{name}r"


def _pace(interface: str) -> None:
    """Add the token bucket; by `tc`, because pyroute2 cannot set the minimum size of a datagram (mpu)."""
    bucket = f"rate {_RATE_BITS_PER_SECOND}bit burst {_BURST_BYTES} mpu {_ROUND_BYTES} limit {_LIMIT_BYTES}"
    command = ["tc", "qdisc", "add", "dev", interface, "root", "tbf", *bucket.split()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise LabError("the command `tc` is missing", hint="apt-get install iproute2") from error
    if done.returncode != 0:
        raise LabError(
            f"{' '.join(command)}: {done.stderr.strip()}",
            hint="the kernel needs CONFIG_NET_SCH_TBF (sch_tbf)",
        )
