"""Response: what a receiver sent to the sender of a request."""

from __future__ import annotations

from typing import NamedTuple


class Response(NamedTuple):
    """One response to a request; one responder or several may send more than one.

    Example:
        ```python
        response = prices.request(b"price?").first(timeout=5)
        print(response.data, response.responder)
        ```
    """

    data: bytes
    responder: str
    """Address and port of the responder's connection: "ip:port"."""
    received_ns: int
    """Wall-clock time of arrival, nanoseconds since 1970."""


__all__ = ["Response"]
