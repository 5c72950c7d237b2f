"""Receives two topics until told to stop (run in a lab host; JSON on stdout at the end)."""

from __future__ import annotations

import json
import sys

import umstack

OPTIONS = {
    "transport_lbtrm_nak_initial_backoff_interval": 1,
    "transport_lbtrm_nak_backoff_interval": 10,
    "transport_lbtrm_nak_suppress_interval": 10,
}


def subscribe(interface: str) -> None:
    """Print what came, by topic, when standard input closes."""
    with umstack.Context(interface) as context:
        counts = dict.fromkeys(("alpha", "beta"), 0)
        receivers = {
            topic: context.receiver(
                topic, on_message=lambda event, topic=topic: count(counts, topic, event), **OPTIONS
            )
            for topic in counts
        }
        print("ready", flush=True)
        sys.stdin.read()
        stats = context.stats()
        print(json.dumps({"counts": counts, "transport": stats["receiver_transports"]}), flush=True)
        assert receivers


def count(counts: dict[str, int], topic: str, event: umstack.Event) -> None:
    """Count messages, not events."""
    counts[topic] += isinstance(event, umstack.Message)


if __name__ == "__main__":
    subscribe(sys.argv[1])
