"""Response: a receiver's response to a request."""

from __future__ import annotations

from typing import NamedTuple


class Response(NamedTuple):
    """One response to a request. Each responder may send several.

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
