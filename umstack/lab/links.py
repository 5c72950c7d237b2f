"""Helpers for the links of the calling thread's namespace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from pyroute2 import IPRoute
from pyroute2.ethtool.ioctl import IoctlEthtool
from pyroute2.netlink.exceptions import NetlinkError

from umstack.lab.errors import LabError


@contextlib.contextmanager
def netlink(what: str) -> Iterator[IPRoute]:
    """Open a netlink socket; turn a kernel error into a LabError that starts with `what`."""
    try:
        with IPRoute() as route:
            yield route
    except NetlinkError as error:
        raise LabError(
            f"{what}: {error}", hint="run as root on a kernel with veth, bridge and clsact"
        ) from error


def index_of(route: IPRoute, name: str) -> int:
    """Return the index of the link of that name."""
    found = route.link_lookup(ifname=name)
    if not found:
        raise LabError(
            f"there is no interface {name} in this namespace", hint="take the lab down and up again"
        )
    return int(found[0])


def set_sysctl(key: str, value: int) -> None:
    """Set a network sysctl of this namespace, if the kernel has it."""
    with contextlib.suppress(FileNotFoundError):
        Path("/proc/sys/net", key).write_text(str(value))


def set_feature(interface: str, feature: str, is_on: bool) -> None:
    """Turn an offload of the interface on or off, like `ethtool -K`."""
    ethtool = IoctlEthtool(interface)
    try:
        features = ethtool.get_features()
        if feature not in features:
            raise LabError(f"{interface} has no feature {feature}", hint="use segmentation=offload")
        features[feature] = is_on
        ethtool.set_features(features)
    finally:
        ethtool.close()
