"""The kernel's own word on what XDP can do on an interface: the `netdev` generic netlink family (Linux 6.3)."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyroute2.netlink import NLM_F_REQUEST, genlmsg
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.generic import GenericNetlinkSocket

from xdp.facts import Unknown

_FAMILY = "netdev"
_DEV_GET = 1
_XDP_FEATURES = {
    0x01: "basic",
    0x02: "redirect",
    0x04: "ndo-xmit",
    0x08: "xsk-zerocopy",
    0x10: "hw-offload",
    0x20: "rx-sg",
    0x40: "ndo-xmit-sg",
}
_RX_METADATA = {0x01: "timestamp", 0x02: "hash", 0x04: "vlan-tag"}
_XSK_FEATURES = {0x01: "tx-timestamp", 0x02: "tx-checksum", 0x04: "tx-launch-time-fifo"}


class _DeviceMessage(genlmsg):  # type: ignore[misc]
    """NETDEV_CMD_DEV_GET: attributes in the order of the kernel's specification."""

    nla_map = (
        ("NETDEV_A_DEV_UNSPEC", "none"),
        ("NETDEV_A_DEV_IFINDEX", "uint32"),
        ("NETDEV_A_DEV_PAD", "none"),
        ("NETDEV_A_DEV_XDP_FEATURES", "uint64"),
        ("NETDEV_A_DEV_XDP_ZC_MAX_SEGS", "uint32"),
        ("NETDEV_A_DEV_XDP_RX_METADATA_FEATURES", "uint64"),
        ("NETDEV_A_DEV_XSK_FEATURES", "uint64"),
    )


@dataclass(frozen=True, slots=True)
class DeviceFeatures:
    """What the driver declares; each unknown where this kernel does not say."""

    xdp: frozenset[str] | Unknown
    rx_metadata: frozenset[str] | Unknown
    """What an XDP program that is bound to the device can ask the driver about a frame."""
    xsk: frozenset[str] | Unknown
    zero_copy_max_segments: int | Unknown


def device_features(interface_index: int) -> DeviceFeatures:
    """Ask the kernel about one interface of the calling thread's namespace."""
    try:
        attributes = _ask(interface_index)
    except NetlinkError as error:
        reason = (
            "this kernel does not tell XDP features, Linux 6.3 and later do"
            if error.code == errno.ENOENT
            else f"the kernel refuses to tell XDP features: {error}"
        )
        unknown = Unknown(reason)
        return DeviceFeatures(unknown, unknown, unknown, unknown)
    segments = attributes.get("NETDEV_A_DEV_XDP_ZC_MAX_SEGS")
    return DeviceFeatures(
        _names(attributes.get("NETDEV_A_DEV_XDP_FEATURES"), _XDP_FEATURES, "6.3"),
        _names(attributes.get("NETDEV_A_DEV_XDP_RX_METADATA_FEATURES"), _RX_METADATA, "6.7"),
        _names(attributes.get("NETDEV_A_DEV_XSK_FEATURES"), _XSK_FEATURES, "6.8"),
        Unknown("only drivers with zero-copy tell, on Linux 6.6 and later") if segments is None else segments,
    )


def _ask(interface_index: int) -> Mapping[str, Any]:
    with GenericNetlinkSocket() as netlink:
        netlink.bind(_FAMILY, _DeviceMessage)
        request = _DeviceMessage()
        request["cmd"] = _DEV_GET
        request["version"] = 1
        request["attrs"] = [("NETDEV_A_DEV_IFINDEX", interface_index)]
        answers = netlink.nlm_request(request, msg_type=netlink.prid, msg_flags=NLM_F_REQUEST)
        return {name: value for answer in answers for name, value in answer["attrs"]}


def _names(bits: int | None, known: Mapping[int, str], since: str) -> frozenset[str] | Unknown:
    if bits is None:
        return Unknown(f"this kernel does not tell, Linux {since} and later do")
    return frozenset(name for bit, name in known.items() if bits & bit)
