"""Lists of addresses and networks in options."""

from __future__ import annotations

import ipaddress

from umstack.errors import OptionError

Networks = tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]


def networks_of(option: str, text: str) -> Networks:
    """Return the addresses and networks of an option's value, separated by commas. Raises OptionError."""
    try:
        return tuple(ipaddress.ip_network(part.strip()) for part in text.split(","))
    except ValueError as error:
        raise OptionError(
            f"{option}: {error}",
            hint="give addresses and networks, as in 10.1.0.0/16,10.2.0.7,fd00:1::/64",
        ) from None
