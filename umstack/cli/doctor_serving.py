"""Which of driver, exclusive rings and sockets the processes of a host use on an interface, and why: for the doctor."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from umstack.driver import default_path
from umstack_xdp.facts import AttachedXdp, Facts
from umstack_xdp.ladder import Mode

_LISTENING = re.compile(r"^\S+: \S+ \S+ 00010000 \S+ \S+ +\d+ (?P<path>/.+)$", re.MULTILINE)
"""Lines of /proc/net/unix with the flag __SO_ACCEPTCON."""


class Way(StrEnum):
    """How the processes of a host use an interface."""

    DRIVER = "driver"
    RINGS = "exclusive rings"
    SOCKETS = "sockets"


@dataclass(frozen=True, slots=True)
class Serving:
    """The way in use on an interface, the reason, and how to get another one."""

    way: Way
    why: str
    remedy: str

    def as_json(self) -> dict[str, str]:
        """Return plain values."""
        return {"way": self.way.value, "why": self.why, "remedy": self.remedy}


def listening_sockets() -> frozenset[str]:
    """Return the paths at which a process of this network namespace listens, or systemd for it."""
    try:
        text = Path("/proc/net/unix").read_text(errors="replace")
    except OSError:
        return frozenset()
    return frozenset(found["path"] for found in _LISTENING.finditer(text))


def serving(
    facts: Facts,
    mode: Mode | None,
    contexts: Sequence[Mapping[str, Any]],
    listening: frozenset[str],
) -> Serving:
    """Return the way in use. `contexts` are the reports of this host's contexts, `mode` the best one available."""
    name = facts.interface
    path = default_path(name)
    start = f"systemctl enable --now umstack-driver@{name}.socket, or umstack driver {name} -o link=auto"
    here = [one for one in contexts if one["interface"] == name]
    programs = [one.attached for one in facts.nics or (facts,) if isinstance(one.attached, AttachedXdp)]
    rings = [one.description for one in programs if one.steers]
    if path in listening and os.access(path, os.R_OK | os.W_OK):
        link = (
            f"over rings ({'; '.join(rings)})"
            if rings
            else "over sockets, or it starts with the first application"
        )
        beside = sorted({str(one["pid"]) for one in here if one["driver"] == "none"})
        without = f"; without it: process {', '.join(beside)}" if beside else ""
        return Serving(
            Way.DRIVER,
            f"it listens at {path}, {link}{without}",
            "open contexts with driver='auto'; one that has left its driver has to be opened again",
        )
    if path in listening:
        return Serving(
            Way.RINGS if rings else Way.SOCKETS,
            f"this user may not attach to the driver at {path}",
            "start it with --allow-user or --allow-group, or join the group umstack",
        )
    if rings:
        return Serving(
            Way.RINGS,
            f"without a driver, {'; '.join(rings)} has them; others use sockets, and the groups that both receive pass "
            "through the kernel",
            start,
        )
    count = len({one["pid"] for one in here})
    costs = f"; {count} processes receive each datagram on their own" if count > 1 else ""
    if mode is None or mode is Mode.SOCKET:
        return Serving(Way.SOCKETS, f"no driver runs, and rings are not available, see below{costs}", start)
    return Serving(
        Way.SOCKETS,
        f"no driver runs, and rings need link=auto{costs}",
        f"{start}; for one process alone: link=auto",
    )
