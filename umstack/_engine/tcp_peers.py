"""TcpPeers: which of the addresses that other hosts name this context connects to over TCP.

Advertisements name the listener of a TCP session and the request port of a source, requests the port for responses. Any
of them may be forged to make every receiver connect to a victim.
"""

from __future__ import annotations

import ipaddress
import logging
import threading
import time

from umstack._engine.transport_address import is_session_of
from umstack.config import ContextOptions
from umstack.repeated_records import RepeatedRecords
from umstack_xdp.interface import interfaces

_REFRESH_S = 1.0
_records = RepeatedRecords(logging.getLogger("umstack.link"))


class TcpPeers:
    """Any thread. The default, `domain`, admits the networks of this host's interfaces, and the address that named
    itself: that of the advertisement's datagram or of the session that the request arrived on. With resolution daemons,
    which hide those addresses and choose who may advertise, it admits all."""

    __slots__ = (
        "_allowed",
        "_checking",
        "_is_domain",
        "_is_on_loopback",
        "_local",
        "_read_s",
        "refused_count",
    )

    def __init__(self, options: ContextOptions, own_address: str | None) -> None:
        """`own_address` is that of the context's interface: loopback is admitted only on loopback."""
        self._is_on_loopback = own_address is not None and ipaddress.ip_address(own_address).is_loopback
        self._allowed = options.tcp_networks
        self._is_domain = self._allowed is None
        if self._is_domain and options.resolver_daemons:
            self._allowed, self._is_domain = (), False
        self._checking = threading.Lock()
        self._local: set[ipaddress.IPv4Network] = set()
        self._read_s = 0.0
        self.refused_count = 0
        """Number of connections that were not made."""
        if self._is_domain:
            self._read_local()

    def stats(self) -> dict[str, int]:
        """Return the counter of connections that were not made, by name."""
        return {"tcp_connections_refused": self.refused_count}

    def admits_advertised(self, ip: str, advertiser: str, what: str) -> bool:
        """Return true if connections are made to an address in an advertisement from `advertiser`; otherwise count and
        log that `what` is refused."""
        return self._admits(ip, what, is_own=ip == advertiser)

    def admits_of_session(self, ip: str, session_name: str, what: str) -> bool:
        """Return true if connections are made to an address that came with a session, for example in a request;
        otherwise count and log that `what` is refused."""
        return self._admits(ip, what, is_own=is_session_of(session_name, ip))

    def _admits(self, ip: str, what: str, *, is_own: bool) -> bool:
        with self._checking:
            if (self._is_domain and is_own) or self._is_allowed(ipaddress.ip_address(ip)):
                return True
            self.refused_count += 1
        _records.write(
            ("tcp peer", what),
            logging.WARNING,
            "%s: no connection to %s, which is in no network of this host and did not name itself: add it to "
            "tcp_connections_allowed if it is a host of yours" if self._is_domain
            else "%s: no connection to %s, which is not in tcp_connections_allowed",
            what,
            ip,
        )  # fmt: skip
        return False

    def _is_allowed(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
        if self._allowed is not None:
            return not self._allowed or any(address in network for network in self._allowed)
        if any(address in network for network in self._local):
            return True
        if time.monotonic() - self._read_s < _REFRESH_S:
            return False
        self._read_local()
        return any(address in network for network in self._local)

    def _read_local(self) -> None:
        """Add the networks of the interfaces; earlier ones stay, because the caller's namespace may be another one."""
        self._read_s = time.monotonic()
        self._local.update(
            address.network
            for one in interfaces()
            for address in one.addresses
            if self._is_on_loopback or not address.is_loopback
        )


__all__ = ["TcpPeers"]
