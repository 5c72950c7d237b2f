"""The switch: a bridge in a separate namespace with IGMP snooping and querying, and a cable (veth) to each host.

It has no other ports, so traffic never leaves the lab.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import select
import socket
import subprocess
import time
from collections.abc import Collection, Sequence

from umstack.lab import cables, namespaces
from umstack.lab.cables import HOST_INTERFACE, CableKind, port_name
from umstack.lab.errors import LabError
from umstack.lab.links import index_of, netlink, set_sysctl

BRIDGE = "switch"

# In units of 10 ms. A querier counts as active one response interval after it was switched on, and only then are groups
# without members kept off the ports: hence the shortest interval of IGMP. The same for the two queries after a leave.
_QUERY_RESPONSE_CS = 10
_LAST_MEMBER_CS = 10
_IGMP_VERSION = 3
_ETH_P_IP = 0x0800
_PROBE_GROUP = "239.255.255.253"
_PROBE_PORT = 9
_READY_TIMEOUT_SECONDS = 15.0
_PROBE_INTERVAL_SECONDS = 0.01


def build(namespace: str, host_namespaces: Sequence[str], kind: CableKind) -> None:
    """Create the bridge and a cable to `eth0` of each host, and bring all up."""
    namespaces.call(namespace, lambda: _build(host_namespaces, kind))


def _build(host_namespaces: Sequence[str], kind: CableKind) -> None:
    for scope in ("all", "default"):
        set_sysctl(f"ipv6/conf/{scope}/disable_ipv6", 1)
    with netlink("creating the switch") as route:
        route.link("set", index=index_of(route, "lo"), state="up")
        route.link("add", ifname=BRIDGE, kind="bridge")
        # Frames bypass the firewall, which would reassemble them and cost time.
        for table in ("iptables", "ip6tables", "arptables"):
            set_sysctl(f"bridge/bridge-nf-call-{table}", 0)
        bridge = index_of(route, BRIDGE)
        route.link(
            "set",
            index=bridge,
            kind="bridge",
            br_stp_state=0,
            br_forward_delay=0,
            br_mcast_snooping=1,
            br_mcast_igmp_version=_IGMP_VERSION,
            br_mcast_query_response_intvl=_QUERY_RESPONSE_CS,
            br_mcast_last_member_intvl=_LAST_MEMBER_CS,
        )
        for number, host in enumerate(host_namespaces):
            route.link("set", index=cables.lay(route, number, host, kind), master=bridge, state="up")
        route.link("set", index=bridge, state="up")
        route.link("set", index=bridge, kind="bridge", br_mcast_querier=1)


def await_snooping(sender: str, observer: str) -> None:
    """Wait until the switch keeps groups without members off the ports, which it does once its querier is active.

    The sender sends to such a group and then to broadcast. A broadcast frame that arrives without one for the group
    before it is the proof.
    """
    probe = namespaces.call(sender, _probe_socket)
    watch = namespaces.call(observer, _watch_socket)
    deadline = time.monotonic() + _READY_TIMEOUT_SECONDS
    with probe, watch:
        for attempt in itertools.count():
            if _is_snooping(probe, watch, json.dumps([sender, attempt]).encode()):
                return
            if time.monotonic() > deadline:
                raise LabError(
                    f"the switch did not start IGMP snooping within {_READY_TIMEOUT_SECONDS:.0f} s",
                    hint="the kernel needs CONFIG_BRIDGE_IGMP_SNOOPING",
                )


def await_join(namespace: str, group: str, host_numbers: Collection[int]) -> None:
    """Wait until the switch forwards the group to these hosts: it must first receive their reports."""
    wanted = {port_name(number) for number in host_numbers}
    deadline = time.monotonic() + _READY_TIMEOUT_SECONDS
    while missing := wanted - namespaces.call(namespace, lambda: _member_ports(group)):
        if time.monotonic() > deadline:
            raise LabError(
                f"no receiver joined {group} at {', '.join(sorted(missing))} within {_READY_TIMEOUT_SECONDS:.0f} s",
                hint="start the receiver first, on the interface toward the switch",
            )
        select.select([], [], [], _PROBE_INTERVAL_SECONDS)


def _member_ports(group: str) -> set[str]:
    """Return the ports that get the group; by `bridge`, because pyroute2 cannot read that table."""
    try:
        shown = subprocess.run(["bridge", "-json", "mdb", "show"], capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        raise LabError(
            f"cannot read the groups of the switch: {error}", hint="apt-get install iproute2"
        ) from error
    tables = json.loads(shown.stdout or "[]")
    return {entry["port"] for table in tables for entry in table["mdb"] if entry["grp"] == group}


def _probe_socket() -> socket.socket:
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, HOST_INTERFACE.encode())
    probe.setblocking(False)
    return probe


def _watch_socket() -> socket.socket:
    watch = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_IP))
    watch.bind((HOST_INTERFACE, _ETH_P_IP))
    watch.setblocking(False)
    return watch


def _is_snooping(probe: socket.socket, watch: socket.socket, token: bytes) -> bool:
    """Send a pair of probes. Return true if only the broadcast one arrived."""
    # Probes cannot be sent before the cables have a carrier; the next attempt may succeed.
    with contextlib.suppress(OSError):
        probe.sendto(token + b" to an unused group", (_PROBE_GROUP, _PROBE_PORT))
        probe.sendto(token + b" to broadcast", ("255.255.255.255", _PROBE_PORT))
    flooded = False
    deadline = time.monotonic() + _PROBE_INTERVAL_SECONDS
    while (left_seconds := deadline - time.monotonic()) > 0:
        if not select.select([watch], [], [], left_seconds)[0]:
            return False
        frame = watch.recv(2048)
        flooded = flooded or frame.endswith(token + b" to an unused group")
        if frame.endswith(token + b" to broadcast"):
            select.select([], [], [], left_seconds if flooded else 0)
            return not flooded
    return False
