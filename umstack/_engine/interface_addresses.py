"""Resolves options that name an interface to one of its addresses: a name, an IPv4 address or a network."""

from __future__ import annotations

import ipaddress

from umstack.config import UNSET_INTERFACE
from umstack.errors import InterfaceError, OptionError
from umstack_xdp.errors import NoSuchInterfaceError
from umstack_xdp.interface import Interface, find_interface


def interface_address(option: str, value: str) -> str | None:
    """Return the address that an option's value identifies, None for 0.0.0.0. Raises OptionError naming the option."""
    if value == UNSET_INTERFACE:
        return None
    try:
        interface = find_interface(value)
    except NoSuchInterfaceError as error:
        raise OptionError(f"{option}: {error.message}", hint=error.hint) from error
    if value == interface.name:
        if interface.address is None:
            raise OptionError(
                f"{option}: {value} has no IPv4 address", hint="choose an interface that has one"
            )
        return interface.address
    network = ipaddress.IPv4Network(value, strict=False)
    return next(str(address.ip) for address in interface.addresses if address.ip in network)


def context_interface(wanted: str | None) -> Interface:
    """Return the interface of a context, None for the first that supports multicast. Raises InterfaceError."""
    try:
        found = find_interface(None if wanted == "0.0.0.0" else wanted)
    except NoSuchInterfaceError as error:
        raise InterfaceError(str(error)) from error
    if found.address is None:
        raise InterfaceError(
            f"interface {found.name} has no IPv4 address", hint=f"ip address add ADDRESS/24 dev {found.name}"
        )
    if not found.is_up:
        raise InterfaceError(f"interface {found.name} is down", hint=f"ip link set {found.name} up")
    return found


def check_multicast(interface: Interface, group: str) -> None:
    """Raise InterfaceError if the interface does not do multicast. Routes do not matter: sockets name the interface."""
    if not (interface.is_multicast or interface.is_loopback):
        raise InterfaceError(
            f"interface {interface.name} does not do multicast ({group})",
            hint=f"ip link set {interface.name} multicast on",
        )
