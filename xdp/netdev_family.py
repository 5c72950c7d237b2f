"""The `netdev` generic netlink family (Linux 6.3; Documentation/netlink/specs/netdev.yaml): the kernel's XDP features
of an interface, and the settings of its NAPI instances."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyroute2.netlink import NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, genlmsg
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.generic import GenericNetlinkSocket

from umstack_xdp.errors import SettingError
from umstack_xdp.facts import Napi, Unknown

_FAMILY = "netdev"
_DEV_GET, _NAPI_GET, _NAPI_SET = 1, 11, 14
_XDP_FEATURES = {
    0x01: "basic",
    0x02: "redirect",
    0x04: "ndo-xmit",
    0x08: "xsk-zerocopy",
    0x10: "hw-offload",
    0x20: "rx-sg",
    0x40: "ndo-xmit-sg",
}
THREADED_ON, THREADED_BUSY_POLL = 1, 2
"""Values of `threaded`: polled by a kernel thread; by one that never sleeps (Linux 6.19)."""
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


class _NapiMessage(genlmsg):  # type: ignore[misc]
    """NETDEV_CMD_NAPI_GET and NETDEV_CMD_NAPI_SET."""

    nla_map = (
        ("NETDEV_A_NAPI_UNSPEC", "none"),
        ("NETDEV_A_NAPI_IFINDEX", "uint32"),
        ("NETDEV_A_NAPI_ID", "uint32"),
        ("NETDEV_A_NAPI_IRQ", "uint32"),
        ("NETDEV_A_NAPI_PID", "uint32"),
        ("NETDEV_A_NAPI_DEFER_HARD_IRQS", "uint32"),
        ("NETDEV_A_NAPI_GRO_FLUSH_TIMEOUT", "uint32"),
        ("NETDEV_A_NAPI_IRQ_SUSPEND_TIMEOUT", "uint32"),
        ("NETDEV_A_NAPI_THREADED", "uint32"),
    )


@dataclass(frozen=True, slots=True)
class DeviceFeatures:
    """The driver's declarations; each unknown if this kernel does not report it."""

    xdp: frozenset[str] | Unknown
    rx_metadata: frozenset[str] | Unknown
    """Metadata of a frame that an XDP program bound to the device can read from the driver."""
    xsk: frozenset[str] | Unknown
    zero_copy_max_segments: int | Unknown


def device_features(interface_index: int) -> DeviceFeatures:
    """Return the kernel's facts about one interface of the calling thread's namespace."""
    try:
        attributes = _ask(interface_index)
    except NetlinkError as error:
        reason = (
            "this kernel does not report XDP features, Linux 6.3 and later do"
            if error.code == errno.ENOENT
            else f"the kernel refuses to report XDP features: {error}"
        )
        unknown = Unknown(reason)
        return DeviceFeatures(unknown, unknown, unknown, unknown)
    segments = attributes.get("NETDEV_A_DEV_XDP_ZC_MAX_SEGS")
    return DeviceFeatures(
        _names(attributes.get("NETDEV_A_DEV_XDP_FEATURES"), _XDP_FEATURES, "6.3"),
        _names(attributes.get("NETDEV_A_DEV_XDP_RX_METADATA_FEATURES"), _RX_METADATA, "6.7"),
        _names(attributes.get("NETDEV_A_DEV_XSK_FEATURES"), _XSK_FEATURES, "6.8"),
        Unknown("only drivers with zero-copy report it, on Linux 6.6 and later")
        if segments is None
        else segments,
    )


def napi_instances(interface_index: int) -> tuple[Napi, ...] | Unknown:
    """Return the NAPI instances of an interface of the calling thread's namespace, in creation order."""
    try:
        answers = _request(
            _NapiMessage, _NAPI_GET, [("NETDEV_A_NAPI_IFINDEX", interface_index)], NLM_F_REQUEST | NLM_F_DUMP
        )
    except NetlinkError as error:
        if error.code in (errno.ENOENT, errno.EOPNOTSUPP):
            return Unknown("this kernel does not report NAPI instances, Linux 6.8 and later do")
        return Unknown(f"the kernel refuses to report NAPI instances: {error}")
    return tuple(sorted(map(_napi, answers), key=lambda one: one.id))


def _napi(attributes: Mapping[str, Any]) -> Napi:
    return Napi(
        id=attributes["NETDEV_A_NAPI_ID"],
        threaded=attributes.get("NETDEV_A_NAPI_THREADED", Unknown("Linux 6.17 and later report it")),
        irq_suspend_timeout_ns=attributes.get(
            "NETDEV_A_NAPI_IRQ_SUSPEND_TIMEOUT", Unknown("Linux 6.13 and later have IRQ suspension")
        ),
    )


def set_napi(napi_id: int, name: str, value: int) -> None:
    """Change a setting of a NAPI instance, named as in the family's specification with underscores.

    `threaded`, `defer_hard_irqs`, or in nanoseconds `gro_flush_timeout`, `irq_suspend_timeout`. Raises SettingError.
    """
    attributes = [("NETDEV_A_NAPI_ID", napi_id), (f"NETDEV_A_NAPI_{name.upper()}", value)]
    what = f"setting {name} of the NAPI instance {napi_id} to {value}"
    try:
        _request(_NapiMessage, _NAPI_SET, attributes, NLM_F_REQUEST | NLM_F_ACK)
    except NetlinkError as error:
        reason = error.args[-1] if error.args else str(error)
        if name == "threaded" and value == THREADED_BUSY_POLL and error.code in (errno.ERANGE, errno.EINVAL):
            reason = "this kernel has no threaded busy polling, Linux 6.19 and later have"
        raise SettingError(what, str(reason), error.code) from error


def _ask(interface_index: int) -> Mapping[str, Any]:
    answers = _request(_DeviceMessage, _DEV_GET, [("NETDEV_A_DEV_IFINDEX", interface_index)], NLM_F_REQUEST)
    return {name: value for answer in answers for name, value in answer.items()}


def _request(
    kind: type[Any], command: int, attributes: list[tuple[str, int]], flags: int
) -> list[Mapping[str, Any]]:
    """Send a request to the family; return the attributes of each response."""
    with GenericNetlinkSocket() as netlink:
        netlink.bind(_FAMILY, kind)
        request = kind()
        request["cmd"] = command
        request["version"] = 1
        request["attrs"] = attributes
        answers = netlink.nlm_request(request, msg_type=netlink.prid, msg_flags=flags)
        return [dict(answer["attrs"]) for answer in answers if "attrs" in answer.keys()]  # noqa: SIM118


def _names(bits: int | None, known: Mapping[int, str], since: str) -> frozenset[str] | Unknown:
    if bits is None:
        return Unknown(f"this kernel does not report it, Linux {since} and later do")
    return frozenset(name for bit, name in known.items() if bits & bit)
