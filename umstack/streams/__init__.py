"""TCP streams of LBMC messages: the thread that serves them, the request port, and the bytes in between."""

from umstack.streams.request_port import RequestPort
from umstack.streams.streams import Streams

__all__ = ["RequestPort", "Streams"]
