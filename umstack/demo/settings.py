"""Settings of the demo, and its options of the stack."""

from __future__ import annotations

import secrets
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from umstack.errors import OptionError

SUBSCRIBERS_MAX = 16
CAPTURE_SNAP_BYTES = 160
"""Bytes captured of each datagram at the switch: all headers, but not the tree. Over TCP, and in the recovery run,
datagrams are captured whole, because messages start anywhere in a stream."""
LIBRARY_EXCLUDED = frozenset({"site-packages", "dist-packages", "__pycache__"})
"""Left out of the default tree: installed packages, and caches that may change while they are sent."""

Options = Mapping[str, str | int]
Link = Literal["xdp", "socket"]
WantedLinks = Literal["both", "xdp", "socket"]
Transport = Literal["lbtrm", "lbtru", "tcp"]

_CONTEXT_OPTIONS: Options = {
    # The demo measures flow control and repair on a lossy network, not a rate limit.
    "transport_lbtrm_data_rate_limit": 0,
    "transport_lbtrm_retransmit_rate_limit": 0,
    # Twice the flow control window, because the kernel charges more than its bytes for a datagram.
    "transport_lbtrm_receiver_socket_buffer": 16 * 1024 * 1024,
    # Holds the datagrams of a whole window behind a gap.
    "delivery_hold_datagrams": 16384,
    # One window of datagrams of maximum size, and the same number of smaller ones.
    "link_xdp_receive_frames": 8192,
}

_SOURCE_OPTIONS: Options = {
    "flow_control": "min",
    "flow_control_receiver_timeout": 3000,
    "transport_lbtrm_transmission_window_size": 48 * 1024 * 1024,
    "transport_lbtrm_sm_maximum_interval": 1000,
}

_RECEIVER_OPTIONS: Options = {
    # A publisher's death is noticed soon: five of its longest intervals between session messages.
    "transport_lbtrm_activity_timeout": 5000,
    # Data in flight during a recovery: 50 ms at 160 MB/s.
    "flow_control_receiver_window": 8 * 1024 * 1024,
    "receiver_queue_block_count": 16,
}


def of_transport(transport: Transport, options: Options) -> dict[str, str | int]:
    """Rename LBT-RM options for another transport. TCP has none and ignores them."""
    if transport != "lbtru":
        return dict(options)
    return {name.replace("transport_lbtrm_", "transport_lbtru_"): value for name, value in options.items()}


def default_tree() -> Path:
    """Return the directory of the running Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """One run of the demo."""

    tree: Path = field(default_factory=default_tree)
    loss: float = 0.02
    subscribers: int = 3
    seed: int = field(default_factory=lambda: secrets.randbits(32))
    link: WantedLinks = "both"
    """Link of the data; `both` runs the transfer over each."""
    transport: Transport = "lbtrm"
    has_resolver: bool = False
    """One subnet per host, a router that forwards no multicast, and a resolution daemon on an additional host."""
    report: Path | None = None
    """Directory for the captures and the report; None: do not capture."""
    has_recovery: bool = True
    """Carry out the run with a subscriber that starts in the middle, and one whose cable is unplugged."""
    has_driver: bool = True
    """Carry out the run with unprivileged subscribers that share the driver of one host."""
    has_store: bool = True
    """Carry out the run with a subscriber that starts after the publisher has ended, and reads from a Store."""
    mtu_bytes: int = 1500
    """MTU of the lab's cables."""
    loopback: bool = False
    """Use the loopback interface, even if a lab is possible."""

    def __post_init__(self) -> None:
        """Raise an error for impossible combinations."""
        if not 1 <= self.subscribers <= SUBSCRIBERS_MAX:
            raise OptionError(f"{self.subscribers} subscribers", hint=f"use 1 to {SUBSCRIBERS_MAX}")
        if not 0 <= self.loss <= 0.5:
            raise OptionError(f"a loss of {self.loss}", hint="use a fraction from 0 to 0.5")
        if not self.tree.is_dir():
            raise OptionError(f"{self.tree} is no directory", hint="name one with --tree")
        if self.has_resolver and self.transport == "lbtrm":
            raise OptionError(
                "LBT-RM on a network without multicast",
                hint="add --transport lbtru or tcp, or leave --resolver out",
            )
        if self.transport == "tcp" and self.link == "xdp":
            raise OptionError("TCP over AF_XDP", hint="TCP is the kernel's: use --link socket")
        if self.loopback and self.link == "xdp":
            raise OptionError("AF_XDP over loopback", hint="rings need a lab: leave --loopback out")

    @property
    def context_options(self) -> dict[str, str | int]:
        """Options of every context on any network."""
        return of_transport(self.transport, _CONTEXT_OPTIONS)

    @property
    def source_options(self) -> dict[str, str | int]:
        """Options of the publisher's source."""
        return {"transport": self.transport, **of_transport(self.transport, _SOURCE_OPTIONS)}

    @property
    def receiver_options(self) -> dict[str, str | int]:
        """Options of every receiver on any network."""
        return of_transport(self.transport, _RECEIVER_OPTIONS)

    @property
    def is_default_tree(self) -> bool:
        """True if the tree is the standard library, which is sent in part."""
        return self.tree == default_tree()
