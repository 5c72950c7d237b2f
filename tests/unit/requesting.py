"""Shared by tests of requests: pairs of a source and a receiver, counters, and responses as bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.waiting import wait_for
from umstack import Context, Receiver, Request, Source
from umstack.requests.codec import ResponseStream, encode_head

STREAM = ResponseStream(b"instance", 7)


def counter(context: Context, name: str) -> int:
    return int(context.stats()["context"][name])


def echo(message: Any) -> None:
    if isinstance(message, Request):
        message.respond(b"re:" + message.data)


def pair(context: Context, topic: str, on_message: Callable[[Any], None] = echo) -> tuple[Source, Receiver]:
    """A source, and a receiver with a callback, that know of each other."""
    receiver = context.receiver(topic, on_message)
    source = context.source(topic)
    wait_for(lambda: receiver.stats()["delivery_controllers"], "topic resolution")
    return source, receiver


def port_of(context: Context) -> int:
    return context._streams.port().endpoint.port


def whole(index: int, data: bytes, sqn: int = 0) -> bytes:
    return encode_head(index, sqn, STREAM, sqn, len(data)) + data
