"""The public names of the API: new ones are added here on purpose, and existing ones are never lost."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import umstack

ROOT = Path(__file__).resolve().parents[2]

CLOSING = {"close", "closed"}
READING = CLOSING | {"arm", "events", "fileno", "has_callback", "poll", "poll_async", "receive"}
NAMES = {
    umstack.Context: CLOSING
    | {"datagram_bytes", "discover_topics", "event_queue", "hot_failover_receiver", "idle", "interface"}
    | {"is_sequential", "link"}
    | {"link_mode", "options", "process_events", "receiver", "recovery_times", "source", "stats", "tap"}
    | {"latencies", "nak_cutoff", "sources_of", "topics", "unblock", "wildcard_receiver"},
    umstack.Source: CLOSING
    | {
        "claim",
        "fileno",
        "flush",
        "is_connected",
        "known_receivers",
        "message_maximum_bytes",
        "nak_cutoff",
        "options",
    }
    | {"receiver_events", "request", "send", "send_async"}
    | {
        "send_hot_failover",
        "send_hot_failover_reset",
        "send_many",
        "send_packed",
        "stats",
        "topic",
        "topic_index",
        "transport",
        "wait_connected",
        "wait_connected_async",
    }
    | {"wait_drained", "wait_drained_async"},
    umstack.Receiver: READING
    | {
        "nak_cutoff",
        "options",
        "queue",
        "sources",
        "stats",
        "topic",
        "wait_connected",
        "wait_connected_async",
    },
    umstack.EventQueue: READING | {"options", "queue_options", "stats"},
    umstack.WildcardReceiver: READING
    | {"options", "pattern", "queue_options", "stats", "topics", "wildcard_options"},
    umstack.HotFailoverReceiver: READING | {"options", "queue_options", "stats", "topic"},
    umstack.PendingRequest: CLOSING | {"first", "first_async", "index", "receive", "receive_async", "topic"},
    umstack.Batch: {
        "event_count",
        "events",
        "flags",
        "heads",
        "messages",
        "offsets",
        "payload",
        "payload_bytes",
    }
    | {
        "payloads",
        "properties",
        "received_ns",
        "release",
        "sent_ns",
        "sequence_numbers",
        "source_of",
        "sources",
    }
    | {"to_arrow", "topic_of", "views"},
}


def public_names(kind: type) -> set[str]:
    """Return the attributes of a class without a leading underscore, slots included."""
    return {name for name in dir(kind) if not name.startswith("_")} | assigned_names(kind)


def assigned_names(kind: type) -> set[str]:
    """Return the attributes that a class without slots sets on itself."""
    if "__slots__" in vars(kind):
        return set()
    tree = ast.parse(Path(str(ROOT), *kind.__module__.split(".")).with_suffix(".py").read_text())
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
        and not node.attr.startswith("_")
    }


@pytest.mark.parametrize("kind", NAMES, ids=lambda kind: kind.__name__)
def test_public_names_are_the_listed_ones(kind: type) -> None:
    """A name that only the stack itself calls is not public (docs/design.md)."""
    assert public_names(kind) == NAMES[kind]


@pytest.mark.parametrize("kind", NAMES, ids=lambda kind: kind.__name__)
def test_every_public_method_has_a_docstring(kind: type) -> None:
    """Every public method and property has a docstring."""
    silent = []
    for name in public_names(kind):
        value = getattr(kind, name, None)
        if callable(value) or isinstance(value, property):
            silent += [] if value.__doc__ else [name]
    assert not silent


def test_dir_completes_public_names() -> None:
    """dir(umstack) contains every public name, whether or not it was imported already."""
    assert set(umstack.__all__) <= set(dir(umstack))
    assert "__version__" in dir(umstack)
