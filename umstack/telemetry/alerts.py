"""Alert rules for Prometheus, made from the counter schema: `umstack exporter --print alerts`.

A rule names counters as in the schema, and umstack.telemetry.exporter_text maps them to metric names, so a rule about
an unknown counter is an error.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from umstack.telemetry.counters import schema
from umstack.telemetry.exporter_text import metric_of


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule. `expression` contains counters as `{group.name}`."""

    name: str
    expression: str
    held: str
    severity: str
    summary: str
    remedy: str


_SESSION = "session {{ $labels.transport }} of process {{ $labels.pid }} on {{ $labels.instance }}"
_STORE = "Store {{ $labels.store }} on {{ $labels.instance }}"
_CONTEXT = "process {{ $labels.pid }} on {{ $labels.interface }} of {{ $labels.instance }}"
ALERTS = (
    Alert(
        "UmstackUnrecoverableLoss",
        "rate({receiver_transport.unrecovered_txw}[1m]) + rate({receiver_transport.unrecovered_tmo}[1m]) > 0",
        "0s",
        "critical",
        f"Messages are lost unrecoverably: {_SESSION}",
        "unrecovered_txw: enlarge the transmission window; unrecovered_tmo: check naks_shed at the source",
    ),
    Alert(
        "UmstackLoss",
        "rate({receiver_transport.lost}[1m]) > 0.01 * rate({receiver_transport.msgs_rcved}[1m])",
        "1m",
        "warning",
        f"More than 1 % of datagrams are lost: {_SESSION}",
        "compare receive_drops (loss on this host) with the loss of other receivers (loss in the network)",
    ),
    Alert(
        "UmstackNakStorm",
        "rate({source_transport.naks_rcved}[1m]) > 100 and "
        "rate({source_transport.naks_rcved}[1m]) > 0.1 * rate({source_transport.msgs_sent}[1m])",
        "30s",
        "critical",
        f"Receivers NAK more than a tenth of the datagrams sent: {_SESSION}",
        "umstack stat PID names the receiver that NAKs most; Source.nak_cutoff() cuts it off",
    ),
    Alert(
        "UmstackRetransmitLimit",
        "rate({source_transport.naks_shed}[1m]) > 0",
        "1m",
        "warning",
        f"NAKs are refused because of the retransmit rate limit: {_SESSION}",
        "raise transport_lbtrm_retransmit_rate_limit, or remove the cause of the loss",
    ),
    Alert(
        "UmstackSlowReceiver",
        "rate({receiver.queue_full_pauses}[1m]) > 0",
        "1m",
        "warning",
        "The application reads too slowly: topic {{ $labels.topic }}, process {{ $labels.pid }}",
        "poll() more messages per batch, give the queue more blocks, or read on another thread",
    ),
    Alert(
        "UmstackBackPressure",
        "rate({source_transport.back_pressured}[1m]) > 1",
        "1m",
        "warning",
        f"Publishers are blocked or refused at the publication limit: {_SESSION}",
        "a slow receiver holds the window, or the rate limit is too low: check snd_lmt and rctlr_data_msgs",
    ),
    Alert(
        "UmstackWindowUsed",
        "({source_transport.pub_pos} - {source_transport.snd_pos}) > "
        "0.9 * ({source_transport.pub_lmt} - {source_transport.snd_pos}) > 0",
        "30s",
        "warning",
        f"More than nine tenths of the publication window are in use: {_SESSION}",
        "the sender or its receivers are too slow: check snd_lmt and receivers_known",
    ),
    Alert(
        "UmstackRingStarvation",
        "rate({link.xdp_rx_fill_ring_empty_descs}[1m]) > 0 or rate({link.xdp_rx_ring_full}[1m]) > 0",
        "1m",
        "warning",
        f"The kernel has no ring frame for arriving datagrams: {_CONTEXT}",
        "raise link_xdp_receive_frames, or read sooner in the application",
    ),
    Alert(
        "UmstackReceiveDrops",
        "rate({link.receive_drops}[1m]) > 0",
        "1m",
        "warning",
        f"The receive buffer overflows: {_CONTEXT}",
        "run sysctl -w net.core.rmem_max=8388608 and raise transport_lbtrm_receiver_socket_buffer",
    ),
    Alert(
        "UmstackStoreDiskFull",
        "rate({store.disk_full}[1m]) > 0",
        "0s",
        "critical",
        f"The disk is full, so messages are not acknowledged: {_STORE}",
        "free space on the volume, or give the Store a larger one",
    ),
    Alert(
        "UmstackStoreDamaged",
        "increase({store.damaged_reads}[5m]) > 0 or increase({store.disk_errors}[5m]) > 0",
        "0s",
        "critical",
        f"The disk fails or has damaged messages: {_STORE}",
        "umstack store verify DIR names the segments; replace the disk",
    ),
)


class _Names(dict[str, str]):
    """Maps `group.name` to the metric's name; KeyError for an unknown counter."""

    def __missing__(self, key: str) -> str:
        group, _, name = key.partition(".")
        return metric_of(schema().group(group).counter(name)).name


def in_promql(expression: str) -> str:
    """Replace `{group.name}` in an expression by the metric's name."""
    names, pieces = _Names(), expression.split("{")
    filled = [pieces[0]]
    for piece in pieces[1:]:
        counter, _, rest = piece.partition("}")
        filled += [names[counter], rest]
    return "".join(filled)


def render_alerts() -> str:
    """Return the text of a rule file."""
    lines = [
        "# Made from the counter schema by `umstack exporter --print alerts`.",
        "groups:",
        "  - name: umstack",
        "    rules:",
    ]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(in_promql(alert.expression))}",
            f"        for: {alert.held}",
            "        labels:",
            f"          severity: {alert.severity}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
            f"          remedy: {json.dumps(alert.remedy)}",
        ]
    return "\n".join(lines) + "\n"
