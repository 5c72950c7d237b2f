"""The plan of a chaos run: who runs where with which options, and which faults happen when; a function of the seed."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field
from typing import Any, get_args

from umstack.lab import PortDirection

HOSTS = 5
SERVICE_HOST = 5
"""The host of the recorder and the resolver: on a host with rings, frames of their groups bypass the recorder."""
DIRECTIONS = get_args(PortDirection)
OTHER_ADDRESS_OFFSET = 100
_TRANSPORTS = ("lbtrm", "lbtrm", "lbtrm", "lbtru", "tcp")
_CALM_AT_END = 0.1
"""Part of the run without new faults, at its end."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process with one context."""

    name: str
    host: int
    context: dict[str, Any]
    publish: tuple[dict[str, Any], ...] = ()
    receive: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """A fault that begins and ends at times in seconds after the start."""

    start: float
    end: float
    kind: str
    target: str
    """A host's number or a process's name; empty for the recorder's disk and the resolver."""
    values: tuple[tuple[str, Any], ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """The parameters by name."""
        return dict(self.values)

    def __str__(self) -> str:
        values = " ".join(f"{name}={value}" for name, value in self.values)
        return f"{self.start:7.2f} to {self.end:7.2f} s: {self.kind} {self.target} {values}".rstrip()


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a seed decides."""

    seed: int
    seconds: float
    has_resolver: bool
    has_keys: bool
    encryption: str
    processes: tuple[Process, ...]
    faults: tuple[Fault, ...] = field(default=())

    def described(self) -> dict[str, Any]:
        """Return the plan as JSON shows it."""
        return {
            "seed": self.seed,
            "seconds": self.seconds,
            "resolver": self.has_resolver,
            "keys": self.has_keys,
            "encryption": self.encryption,
            "processes": [asdict(process) for process in self.processes],
            "faults": [str(fault) for fault in self.faults],
        }


def make_plan(seed: int, seconds: float) -> Plan:
    """Return the plan of this seed and length; the same for the same arguments."""
    draw = random.Random(f"chaos {seed}")
    has_resolver = draw.random() < 0.4
    has_keys = not has_resolver and draw.random() < 0.5
    encryption = "aes-256-gcm" if has_keys and seed % 2 else "none"
    processes = _processes(draw, has_keys, encryption)
    faults = _faults(draw, seconds, processes, has_resolver, has_keys)
    return Plan(seed, seconds, has_resolver, has_keys, encryption, processes, tuple(faults))


def _processes(draw: random.Random, has_keys: bool, encryption: str) -> tuple[Process, ...]:
    topics = [f"chaos/{letter}" for letter in "abcdef"]
    published: dict[str, list[str]] = {name: [] for name in ("publisher0", "publisher1", "both")}
    for topic in topics:
        published[draw.choice(list(published))].append(topic)
    made = []
    for host, name in enumerate(("publisher0", "publisher1", "subscriber0", "subscriber1", "both")):
        sources = tuple(_source(draw, topic) for topic in published.get(name, ()))
        receivers: tuple[dict[str, Any], ...] = ()
        if name == "subscriber0":
            # A topic that left starts like a new receiver: it must outlast every fault that ends its sources.
            options = {**_receiver_options(draw), "resolver_no_source_linger_timeout": 600_000}
            receivers = ({"topic": "chaos/", "is_prefix": True, "options": options},)
        elif name in ("subscriber1", "both"):
            # A context over rings does not receive what it publishes itself.
            wanted = [topic for topic in draw.sample(topics, 5) if topic not in published.get(name, ())]
            receivers = tuple({"topic": topic, "options": _receiver_options(draw)} for topic in wanted)
        made.append(Process(name, host, _context_options(draw, has_keys, encryption), sources, receivers))
    return tuple(made)


def _context_options(draw: random.Random, has_keys: bool, encryption: str) -> dict[str, Any]:
    options: dict[str, Any] = {"link": draw.choice(("socket", "socket", "xdp"))}
    if has_keys:
        options |= {"authentication_scope": "all", "encryption": encryption}
    return options


def _source(draw: random.Random, topic: str) -> dict[str, Any]:
    transport = draw.choice(_TRANSPORTS)
    options: dict[str, Any] = {"transport": transport, "late_join": draw.randrange(2)}
    if transport != "tcp":
        options["flow_control"] = draw.choice(("min", "none"))
    return {
        "topic": topic,
        "options": options,
        "seed": draw.randrange(1 << 32),
        "bursts_per_second": draw.choice((2, 5, 10)),
        "longest_bytes": draw.choice((1400, 5000, 20000)),
    }


def _receiver_options(draw: random.Random) -> dict[str, Any]:
    generation_ms = draw.choice((2000, 5000, 10000))
    return {
        "transport_lbtrm_nak_generation_interval": generation_ms,
        "transport_lbtru_nak_generation_interval": generation_ms,
        "transport_lbtrm_activity_timeout": draw.choice((4000, 60000)),
        "use_otr": draw.randrange(2),
        "use_late_join": draw.randrange(2),
    }


def _faults(
    draw: random.Random,
    seconds: float,
    processes: tuple[Process, ...],
    has_resolver: bool,
    has_keys: bool,
) -> list[Fault]:
    """Faults at random times; no two of one kind overlap at one target, and none ends after the calm begins."""
    limit = seconds * (1 - _CALM_AT_END)
    names = [process.name for process in processes]
    made: list[Fault] = []
    busy: dict[tuple[str, str], float] = {}
    movable = [
        str(process.host) for process in processes if process.context["link"] == "socket" and not has_keys
    ]
    hosts = [str(host) for host in range(HOSTS)]
    kinds = [  # a kind that is listed more than once is drawn more often
        ("lossy", hosts),
        ("lossy", hosts),
        ("lossy", hosts),
        ("block", hosts),
        ("unplug", hosts),
        ("link", hosts),
        ("mtu", hosts),
        ("path_mtu", hosts),
        ("kill", names),
        ("kill", [*names, "recorder"]),
        ("stop", [*names, "recorder"]),
        ("stop", names),
        ("clock", names),
        ("renew", names),
        ("disk", [""]),
    ]
    if movable:
        kinds.append(("address", movable))
    if has_resolver:
        kinds.append(("kill", ["resolver"]))
    if has_keys:
        kinds.append(("rotate", [""]))
    at = min(1.0, seconds / 20)
    while (at := at + draw.expovariate(1.2)) < limit:
        kind, targets = draw.choice(kinds)
        target = draw.choice(targets)
        end = at + min(draw.expovariate(0.5) + 0.1, 12.0)
        values = _values(draw, kind)
        # One interface is changed by one fault at a time: their ends would undo each other.
        group = "interface" if kind in ("unplug", "link", "mtu", "path_mtu", "address") else kind
        group = "process" if kind in ("kill", "stop", "renew") else group
        if end < limit and busy.get((group, target), 0.0) < at:
            busy[group, target] = end
            made.append(Fault(round(at, 3), round(end, 3), kind, target, values))
    return made


def _values(draw: random.Random, kind: str) -> tuple[tuple[str, Any], ...]:
    match kind:
        case "lossy":
            rates = {
                name: draw.choice((0.0, 0.001, 0.01, 0.05, 0.2)) for name in ("loss", "duplicate", "reorder")
            }
            rates["corrupt"] = draw.choice((0.0, 0.001, 0.01, 0.05))
            flags = {"unicast": draw.random() < 0.5, "tcp": draw.random() < 0.3}
            values = {**rates, **flags, "seed": draw.randrange(1 << 63), "direction": draw.choice(DIRECTIONS)}
        case "block":
            values = {"direction": draw.choice(DIRECTIONS), "unicast": draw.random() < 0.5}
        case "mtu" | "path_mtu":
            values = {"mtu": draw.choice((1280, 1400, 1492))}
        case "clock":
            values = {"step_seconds": draw.choice((-300, -20, -1, 1, 20, 300))}
        case "renew":
            values = {"index": draw.randrange(8)}
        case _:
            values = {}
    return tuple(values.items())
