"""Publishes everything the stack can emit, for a capture (run in a lab host; JSON on stdout when done)."""

from __future__ import annotations

import json
import sys

import umstack

OPTIONS = {
    "transport_lbtrm_data_rate_limit": 0,
    "transport_lbtrm_retransmit_rate_limit": 1_000_000,
    "transport_lbtrm_rate_interval": 5,
    "link_gso": 0,
}
SOURCE = {
    "flow_control": "min",
    "transport_lbtrm_ignore_interval": 30,
    "transport_lbtrm_sm_minimum_interval": 20,
    "transport_topic_sequence_number_info_interval": 60,
}


def publish(interface: str) -> None:
    """Single messages, several topics in a datagram, an explicit batch, fragments, silence (SM, TSNI)."""
    with umstack.Context(interface, **OPTIONS) as context:
        first = context.source("alpha", transport_lbtrm_multicast_address="224.10.10.10", **SOURCE)
        second = context.source("beta", transport_lbtrm_multicast_address="224.10.10.10", **SOURCE)
        first.wait_connected(timeout=10)
        second.send(b"a different first fragment for each topic", flush=True)
        for number in range(200):
            first.send(b"alpha %d" % number)
            second.send(b"beta %d" % number, flush=number % 5 == 0)
        first.send(b"begins", batch="start")
        first.send(b"goes on")
        first.send(b"ends", batch="end")
        first.send(bytes(range(256)) * 40, flush=True)
        second.send(bytes(reversed(range(256))) * 30, flush=True)
        with first.claim(11, flush=True) as view:
            view[:] = b"in place..."
        # More retransmissions than the limiter takes at once, so that every NCF reason is used.
        for _ in range(400):
            first.send(bytes(1400))
        first.flush()
        first.wait_drained(20)
        context.idle(0.5)
        print(json.dumps({"session": first.transport, "stats": first.stats()}), flush=True)


if __name__ == "__main__":
    publish(sys.argv[1])
