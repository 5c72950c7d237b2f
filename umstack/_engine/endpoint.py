"""Endpoint: an IPv4 address and a TCP port at which a context accepts connections."""

from __future__ import annotations

import ipaddress
from typing import Any, NamedTuple


class Endpoint(NamedTuple):
    """An IPv4 address and a TCP port."""

    ip: str
    port: int

    @classmethod
    def of_core(cls, address: Any) -> Endpoint:
        """Return it as a um_address of the core."""
        return cls(str(ipaddress.IPv4Address(address.ip)), address.port)


__all__ = ["Endpoint"]
