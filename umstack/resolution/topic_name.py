"""Checks and encodes topic names."""

from __future__ import annotations

from umstack.errors import TopicNameError

TOPIC_NAME_MAXIMUM_BYTES = 246


def encode_topic_name(topic: str) -> bytes:
    """Return the encoded topic name; raises TopicNameError if it is invalid."""
    try:
        name = topic.encode("utf-8")
    except UnicodeEncodeError:
        raise TopicNameError(f"the topic name {topic!r} is not valid Unicode text") from None
    if not name:
        raise TopicNameError("the topic name is empty")
    if len(name) > TOPIC_NAME_MAXIMUM_BYTES:
        raise TopicNameError(f"the topic name {topic[:20]!r}... is {len(name)} bytes long")
    if b"\0" in name:
        raise TopicNameError(f"the topic name {topic!r} contains NUL")
    return name
