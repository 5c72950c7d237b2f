"""Endpoint: an IPv4 address and a TCP port at which a context accepts connections."""

from __future__ import annotations

from typing import Any, NamedTuple

from umstack._engine.core_address import ip_text


class Endpoint(NamedTuple):
    """An IPv4 address and a TCP port."""

    ip: str
    port: int

    @classmethod
    def of_core(cls, address: Any) -> Endpoint:
        """Return it as a um_address of the core."""
        return cls(ip_text(address.ip), address.port)


__all__ = ["Endpoint"]
