"""Resolves options that name an interface to one of its addresses: a name, an IPv4 address or a network."""

from __future__ import annotations

import ipaddress

from umstack.config import UNSET_INTERFACE
from umstack.errors import OptionError
from umstack_xdp.errors import NoSuchInterfaceError
from umstack_xdp.interface import find_interface


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
