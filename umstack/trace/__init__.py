"""Traces where datagrams are lost: the kernel's drops, XDP's failures and the time of receiving, by bcc."""

from umstack.trace.tracer import (
    Drop,
    Group,
    RedirectError,
    RingReport,
    Softirq,
    Trace,
    TraceReport,
    XdpException,
)

__all__ = [
    "Drop",
    "Group",
    "RedirectError",
    "RingReport",
    "Softirq",
    "Trace",
    "TraceReport",
    "XdpException",
]
