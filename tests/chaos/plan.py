"""The plan of a chaos run: who runs where with which options, and which faults happen when; a function of the seed."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field
from typing import Any, get_args

from umstack.lab import PortDirection

HOSTS = 8
SERVICE_HOST = 5
"""Host of the recorder, the resolver and the Stores: on a host with rings, frames of their groups bypass the others."""
DRIVER_HOST = 6
"""The host of the driver and of the processes that are attached to it."""
STORE_CLIENT_HOST = 7
"""The host of the persistent source and its reader."""
KEPT_TOPIC = "kept/a"
"""Topic of the persistent source."""
DIRECTIONS = get_args(PortDirection)
OTHER_ADDRESS_OFFSET = 100
_TOPICS = tuple(f"chaos/{letter}" for letter in "abcdef")
_TRANSPORTS = ("lbtrm", "lbtrm", "lbtrm", "lbtru", "tcp")
_KEPT_BURSTS = 9000
"""Bursts of the persistent source in a run, on average at most: a Store keeps 100 MiB of a source, these are 60."""
CALM_AT_END = 0.1
"""Part of the run without new faults, at its end."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process with one context."""

    name: str
    host: int
    context: dict[str, Any]
    publish: tuple[dict[str, Any], ...] = ()
    receive: tuple[dict[str, Any], ...] = ()
    keep: tuple[dict[str, Any], ...] = ()
    """Persistent sources."""
    replay: tuple[dict[str, Any], ...] = ()
    """Readers of Stores."""
    is_attached: bool = False
    """True: its context has no link but attaches to the driver, which has the keys and the resolver."""


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """A fault that begins and ends at times in seconds after the start."""

    start: float
    end: float
    kind: str
    target: str
    """A host's number or the name of a process or service; empty for the recorder's disk and the keys."""
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
    driver: dict[str, Any] | None
    """Context options of the driver; None: no process is attached to a driver."""
    stores: tuple[str, ...]
    """Names of the Stores."""
    durability: str
    """That of the Stores' acknowledgements."""
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
            "driver": self.driver,
            "stores": self.stores,
            "durability": self.durability,
            "processes": [asdict(process) for process in self.processes],
            "faults": [str(fault) for fault in self.faults],
        }


def make_plan(seed: int, seconds: float) -> Plan:
    """Return the plan of this seed and length; the same for the same arguments."""
    draw = random.Random(f"chaos {seed}")
    has_resolver = draw.random() < 0.4
    has_keys = not has_resolver and draw.random() < 0.5
    encryption = "aes-256-gcm" if has_keys and seed % 2 else "none"
    driver = _context_options(draw, has_keys, encryption) if draw.random() < 0.6 else None
    attached_topics = ["chaos/g", "chaos/h"] if driver else []
    processes = _processes(draw, has_keys, encryption, attached_topics)
    if driver:
        processes += _attached(draw, attached_topics)
    faults = _faults(draw, seconds, processes, driver, has_resolver, has_keys)
    # A generator of its own: the Stores leave the other faults of a seed as they are.
    draw = random.Random(f"chaos stores {seed}")
    stores = tuple(f"store{at}" for at in range(draw.choice((1, 3, 3))))
    durability = draw.choice(("disk", "written"))
    processes += _store_clients(draw, seconds, has_keys, encryption)
    faults = sorted(faults + _store_faults(draw, seconds, stores))
    return Plan(
        seed,
        seconds,
        has_resolver,
        has_keys,
        encryption,
        driver,
        stores,
        durability,
        processes,
        tuple(faults),
    )


def _processes(
    draw: random.Random, has_keys: bool, encryption: str, attached_topics: list[str]
) -> tuple[Process, ...]:
    published: dict[str, list[str]] = {name: [] for name in ("publisher0", "publisher1", "both")}
    for topic in _TOPICS:
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
            wanted = [topic for topic in draw.sample(_TOPICS, 5) if topic not in published.get(name, ())]
            wanted += attached_topics
            receivers = tuple({"topic": topic, "options": _receiver_options(draw)} for topic in wanted)
        made.append(Process(name, host, _context_options(draw, has_keys, encryption), sources, receivers))
    return tuple(made)


def _attached(draw: random.Random, topics: list[str]) -> tuple[Process, ...]:
    """Return two processes that publish a topic each, and receive each other's and some of other hosts."""
    made = []
    for name, topic in zip(("attached0", "attached1"), topics, strict=True):
        source = _source(draw, topic)
        del source["options"]["late_join"]
        receivers = []
        for wanted in [*draw.sample(_TOPICS, 3), *topics]:
            options = _receiver_options(draw)
            del options["use_late_join"]
            receivers.append({"topic": wanted, "options": options})
        # The driver is away for up to the length of a fault, and for the time that a busy machine takes to start it.
        context = {"driver_search_timeout": 60_000}
        made.append(Process(name, DRIVER_HOST, context, (source,), tuple(receivers), is_attached=True))
    return tuple(made)


def _context_options(draw: random.Random, has_keys: bool, encryption: str) -> dict[str, Any]:
    return {"link": draw.choice(("socket", "socket", "xdp")), **key_options(has_keys, encryption)}


def key_options(has_keys: bool, encryption: str) -> dict[str, Any]:
    """Return the options of a context with keys, without those that name the keys."""
    return {"authentication_scope": "all", "encryption": encryption} if has_keys else {}


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


def _store_clients(
    draw: random.Random, seconds: float, has_keys: bool, encryption: str
) -> tuple[Process, ...]:
    """Return the persistent source and its reader."""
    options = {"transport": draw.choice(_TRANSPORTS)}
    source = {
        "topic": KEPT_TOPIC,
        "options": options,
        "seed": draw.randrange(1 << 32),
        "bursts_per_second": min(5.0, _KEPT_BURSTS / seconds),
    }
    context, reading = _context_options(draw, has_keys, encryption), key_options(has_keys, encryption)
    return (
        Process("keeper", STORE_CLIENT_HOST, context, keep=(source,)),
        Process("replayer", STORE_CLIENT_HOST, reading, replay=({"topic": KEPT_TOPIC},)),
    )


def _faults(
    draw: random.Random,
    seconds: float,
    processes: tuple[Process, ...],
    driver: dict[str, Any] | None,
    has_resolver: bool,
    has_keys: bool,
) -> list[Fault]:
    """Faults at random times; no two of one kind overlap at one target, and none ends after the calm begins."""
    limit = seconds * (1 - CALM_AT_END)
    names = [process.name for process in processes]
    hosts_of = {process.name: process.host for process in processes} | {"driver": DRIVER_HOST}
    made: list[Fault] = []
    busy: dict[tuple[str, str], float] = {}
    links = {process.host: process.context["link"] for process in processes if not process.is_attached}
    if driver:
        links[DRIVER_HOST] = driver["link"]
    movable = [str(host) for host, link in links.items() if link == "socket" and not has_keys]
    hosts = [str(host) for host in links]
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
    if driver:
        kinds += [("kill", ["driver"]), ("stop", ["driver"]), ("restart", ["driver"])]
    if has_keys:
        kinds.append(("rotate", [""]))
    at = min(1.0, seconds / 20)
    while (at := at + draw.expovariate(1.2)) < limit:
        kind, targets = draw.choice(kinds)
        target = draw.choice(targets)
        end = at + min(draw.expovariate(0.5) + 0.1, 12.0)
        values = _values(draw, kind)
        held = _held(kind, target, hosts_of)
        if end < limit and all(busy.get(one, 0.0) < at for one in held):
            busy |= dict.fromkeys(held, end)
            made.append(Fault(round(at, 3), round(end, 3), kind, target, values))
    return made


def _store_faults(draw: random.Random, seconds: float, stores: tuple[str, ...]) -> list[Fault]:
    """Faults of the Stores, the persistent source and its reader, and of the ports of their hosts.

    In half of the runs with three Stores one of them is wiped in the last third. Their source is restarted only in the
    first third, because an empty Store does not know how far its numbers had come (docs/store.md).
    """
    limit = seconds * (1 - CALM_AT_END)
    hosts = [str(SERVICE_HOST), str(STORE_CLIENT_HOST)]
    kinds: list[tuple[str, list[str]]] = [
        ("lossy", hosts),
        ("lossy", hosts),
        ("block", hosts),
        ("kill", [*stores, "keeper", "replayer"]),
        ("stop", [*stores, "keeper", "replayer"]),
        ("kill", list(stores)),
        ("full", list(stores)),
        ("full", list(stores)),
        ("renew", ["keeper"]),
    ]
    has_wipes = len(stores) > 1 and draw.random() < 0.5
    if has_wipes:
        kinds.append(("wipe", [stores[0]]))
    made: list[Fault] = []
    busy: dict[tuple[str, str], float] = {}
    at = min(3.0, seconds / 10)
    while (at := at + draw.expovariate(0.6)) < limit:
        kind, targets = draw.choice(kinds)
        target = draw.choice(targets)
        end = at + min(draw.expovariate(0.5) + 0.1, 12.0)
        values = _values(draw, kind)
        is_too_late = has_wipes and target == "keeper" and kind != "stop" and at > seconds / 3
        is_too_early = kind == "wipe" and at < seconds * 2 / 3
        held = _held(kind, target, {})
        is_free = all(busy.get(one, 0.0) < at for one in held)
        if end < limit and is_free and not (is_too_late or is_too_early):
            busy |= dict.fromkeys(held, end)
            made.append(Fault(round(at, 3), round(end, 3), kind, target, values))
    return made


def _held(kind: str, target: str, hosts_of: dict[str, int]) -> list[tuple[str, str]]:
    """Return what a fault holds: no two faults that hold the same overlap.

    One interface is changed by one fault at a time, because their ends would undo each other. A process opens its
    context when its host has its own address: sessions over unicast keep the address of their time.
    """
    match kind:
        case "address":
            names = [name for name, host in hosts_of.items() if str(host) == target]
            return [("interface", target), *(("process", name) for name in names)]
        case "unplug" | "link" | "mtu" | "path_mtu":
            return [("interface", target)]
        case "kill" | "stop" | "restart" | "renew" | "full" | "wipe":
            return [("process", target)]
    return [(kind, target)]


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
        case "full":
            # A Store with 8 MiB can change its client state, but cannot begin a segment after it was killed.
            values = {"is_killed": draw.random() < 0.5, "left_bytes": draw.choice((0, 8 << 20, 8 << 20))}
        case _:
            values = {}
    return tuple(values.items())
