"""A world for a script: hosts, sessions, sources and receivers of the real C core under virtual time.

with World() as world:
    publisher, subscriber = world.host(), world.host()
    source = publisher.session().source()
    receiver = subscriber.receiver()
    receiver.join(source)
    source.send(b"hello", flush=True)
    world.run_for(1 * SECOND)
    print(receiver.rows)

Every datagram and row is recorded with its time. Handles stay valid until the world is closed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from ipaddress import IPv4Address
from typing import Any

from umstack._engine.core_address import core_address, ip_text
from umstack._sim_bench import ffi, lib
from umstack.errors import UmError, error_from_result
from umstack.sim.options import (
    ANY,
    Faults,
    HostOptions,
    ReceiverOptions,
    SessionOptions,
    SourceOptions,
    TransportOptions,
)
from umstack.sim.trace import Datagram, DropReason, Fate, Kind, NcfReason, Row, Type
from umstack.telemetry.counters import schema
from umstack_xdp.closing import Closing

_FIRST_GROUP = IPv4Address("224.10.10.10")
_GROUP_PORT = 14400
_NAK_PORT = 14390
_ACTIONS = {
    "drop": lib.UM_SIM_RULE_DROP,
    "delay": lib.UM_SIM_RULE_DELAY,
    "duplicate": lib.UM_SIM_RULE_DUPLICATE,
}
_BATCH = {
    None: 0,
    "start": lib.UM_SEND_START_BATCH,
    "end": lib.UM_SEND_END_BATCH,
    "complete": lib.UM_SEND_START_BATCH | lib.UM_SEND_END_BATCH,
}
_FLUSH = lib.UM_SEND_FLUSH
_EVERY_SQN = 0xFFFFFFFF


class SimulationFailed(UmError):
    """A simulated host violated an invariant, or a checker found a violation."""

    default_hint = "run the same seed again with --trace: the run is deterministic"


def checked(result: int, doing: str) -> int:
    """Return the result of a call of the core; raise if it is an error."""
    if result < 0:
        raise error_from_result(result, doing)
    return result


@dataclass(frozen=True, slots=True)
class Host:
    """A host: one context with any number of sessions and receivers."""

    world: World
    index: int

    def session(self, *, group: int = 0, **options: Any) -> Session:
        """Open a source session; sessions with the same `group` number share a multicast group."""
        number = len(self.world.sessions)
        chosen = SessionOptions(**options)
        if chosen.session_id == 0:
            chosen = replace(chosen, session_id=0x5E550000 + number)
        if chosen.nak_port == 0:
            chosen = replace(chosen, nak_port=_NAK_PORT + number)
        config = ffi.new("um_sim_session_config *", asdict(chosen))
        config.group = core_address((str(_FIRST_GROUP + group), _GROUP_PORT))
        index = checked(lib.um_sim_add_session(self.world.handle, self.index, config), "opening a session")
        session = Session(self.world, self, index, chosen)
        self.world.sessions.append(session)
        return session

    def receiver(self, **options: Any) -> Receiver:
        """Create a receiver without joins."""
        config = ffi.new("um_sim_receiver_config *", asdict(ReceiverOptions(**options)))
        index = checked(lib.um_sim_add_receiver(self.world.handle, self.index, config), "making a receiver")
        return Receiver(self.world, self, index)

    def set_faults(self, **faults: Any) -> None:
        """Set the faults of the path to this host from now on."""
        config = ffi.new("um_sim_faults *", asdict(Faults(**faults)))
        checked(lib.um_sim_set_faults(self.world.handle, self.index, config), "setting faults")

    def set_path(self, path_bytes: int) -> None:
        """Set the UDP payload that the path can carry from now on."""
        checked(lib.um_sim_set_path(self.world.handle, self.index, path_bytes), "setting the path")

    def kill(self) -> None:
        """Stop the host abruptly."""
        lib.um_sim_kill_host(self.world.handle, self.index)

    @property
    def counters(self) -> dict[str, int]:
        """Counters of the context."""
        return self.world.read_counters("context", lib.um_sim_context_counters, self.index)


@dataclass(frozen=True, slots=True)
class Session:
    """The source side of a transport session."""

    world: World
    host: Host
    index: int
    options: SessionOptions

    def source(self, **options: Any) -> Source:
        """Create a source; topic indices count from 1 unless `topic_index` is given."""
        chosen = SourceOptions(**options)
        if chosen.topic_index == 0:
            self.world.topic_count += 1
            chosen = replace(chosen, topic_index=self.world.topic_count)
        config = ffi.new("um_sim_source_config *", asdict(chosen))
        index = checked(lib.um_sim_add_source(self.world.handle, self.index, config), "making a source")
        return Source(self.world, self, index, chosen.topic_index)

    @property
    def counters(self) -> dict[str, int]:
        """Counters of the source transport, with current snapshots."""
        return self.world.read_counters("source_transport", lib.um_sim_session_counters, self.index)

    @property
    def probe(self) -> Any:
        """Positions, limits and sequence numbers (um_sim_session_probe)."""
        probe = ffi.new("um_sim_session_probe *")
        lib.um_sim_probe_session(self.world.handle, self.index, probe)
        return probe

    def sent(self, *types: Type) -> list[Datagram]:
        """Return the datagrams that the session has sent, of these types or all."""
        return [
            datagram
            for datagram in self.world.trace(Fate.SENT, *types)
            if datagram.session_id == self.options.session_id and datagram.sender == self.host.index
        ]


@dataclass(frozen=True, slots=True)
class Source:
    """A source of a topic."""

    world: World
    session: Session
    index: int
    topic_index: int

    def try_send(self, data: bytes, *, flush: bool = False, batch: str | None = None) -> int:
        """Publish a message. Return its topic sqn, or a negative result if refused."""
        flags = _BATCH[batch] | (_FLUSH if flush else 0)
        return int(lib.um_sim_send(self.world.handle, self.index, data, len(data), flags))

    def send(self, data: bytes, *, flush: bool = False, batch: str | None = None) -> int:
        """Publish a message. Return the topic sqn of its last fragment."""
        return checked(self.try_send(data, flush=flush, batch=batch), "sending")

    def send_many(self, messages: Sequence[bytes], *, flush: bool = False) -> int:
        """Publish messages in one call. Return the number accepted."""
        lengths = ffi.new("uint32_t[]", [len(message) for message in messages])
        data = b"".join(messages)
        flags = _FLUSH if flush else 0
        taken = lib.um_sim_send_many(self.world.handle, self.index, data, lengths, len(messages), flags)
        return checked(int(taken), "sending many")

    def flush(self) -> None:
        """Send all held messages of this source and its session (UM-27, UM-40)."""
        checked(lib.um_sim_flush(self.world.handle, self.index), "flushing")

    def claim(self, data: bytes) -> None:
        """Claim space for a message and write it; `commit` or `abort` follows."""
        checked(lib.um_sim_claim(self.world.handle, self.index, data, len(data)), "claiming")

    def commit(self, *, flush: bool = False) -> int:
        """Publish the claim. Return its topic sqn, or a negative result if the claim was aborted."""
        return int(lib.um_sim_commit(self.world.handle, self.index, _FLUSH if flush else 0))

    def abort(self) -> None:
        """Abort the claim."""
        lib.um_sim_abort(self.world.handle, self.index)

    def delete(self) -> None:
        """Delete the source; the last source of a session deletes the session (UM-90)."""
        lib.um_sim_delete_source(self.world.handle, self.index)

    @property
    def next_sqn(self) -> int:
        """The topic sqn of the next message."""
        return int(lib.um_sim_next_sqn(self.world.handle, self.index))

    @property
    def counters(self) -> dict[str, int]:
        """Counters of the source."""
        return self.world.read_counters("source", lib.um_sim_source_counters, self.index)


@dataclass(frozen=True, slots=True)
class Receiver:
    """A subscription and the application that reads it."""

    world: World
    host: Host
    index: int

    def join(self, source: Source, **options: Any) -> Join:
        """Discover a source: join its session, create a delivery controller."""
        config = ffi.new("um_sim_transport_config *", asdict(TransportOptions(**options)))
        index = lib.um_sim_join(self.world.handle, self.index, source.index, config)
        return Join(self.world, self, source, checked(index, "joining"))

    def set_reading(self, interval_ns: int, rows: int = 1024) -> None:
        """Set the read interval (0: at once) and the rows per read."""
        lib.um_sim_set_reading(self.world.handle, self.index, interval_ns, rows)

    @property
    def rows(self) -> list[Row]:
        """The rows that the application has read."""
        return [row for row in self.world.rows() if row.receiver == self.index]

    @property
    def messages(self) -> list[bytes]:
        """The payloads of the messages that it has read."""
        return [row.payload for row in self.rows if row.kind is Kind.MESSAGE]

    @property
    def counters(self) -> dict[str, int]:
        """Counters of the receiver."""
        return self.world.read_counters("receiver", lib.um_sim_receiver_counters, self.index)


@dataclass(frozen=True, slots=True)
class Join:
    """A delivery controller: a receiver's view of one source."""

    world: World
    receiver: Receiver
    source: Source
    index: int

    def leave(self) -> None:
        """Remove the controller."""
        lib.um_sim_leave(self.world.handle, self.index)

    @property
    def rows(self) -> list[Row]:
        """The rows from this source."""
        return [row for row in self.world.rows() if row.join == self.index]

    @property
    def probe(self) -> Any:
        """The state of the controller and of the transport below it (um_sim_join_probe)."""
        probe = ffi.new("um_sim_join_probe *")
        lib.um_sim_probe_join(self.world.handle, self.index, probe)
        return probe

    @property
    def counters(self) -> dict[str, int]:
        """Counters of the receiving transport session."""
        return self.world.read_counters("receiver_transport", lib.um_sim_transport_counters, self.index)


class World(Closing):
    """Hosts and a network under virtual time, which starts at 0 ns."""

    def __init__(self, seed: int = 1, *, handle: Any = None) -> None:
        """Create an empty world, or take over an existing one."""
        self.handle = handle or lib.um_sim_create(seed)
        if not self.handle:
            raise SimulationFailed("no memory for a world", hint="free memory, or raise `ulimit -v`")
        self.sessions: list[Session] = []
        self.topic_count = 0
        lib.um_sim_keep_trace(self.handle)

    def close(self) -> None:
        """Destroy the world and everything in it."""
        if self.handle:
            lib.um_sim_destroy(self.handle)
            self.handle = None

    def host(self, **options: Any) -> Host:
        """Add a host."""
        config = ffi.new("um_sim_host_config *", asdict(HostOptions(**options)))
        return Host(self, checked(lib.um_sim_add_host(self.handle, config), "adding a host"))

    @property
    def now_ns(self) -> int:
        """The current virtual time."""
        return int(lib.um_sim_now_ns(self.handle))

    @property
    def digest(self) -> int:
        """A hash of all events so far."""
        return int(lib.um_sim_hash(self.handle))

    def run_until(self, time_ns: int) -> None:
        """Run until this time."""
        lib.um_sim_run_until(self.handle, int(time_ns))
        complaint = lib.um_sim_complaint(self.handle)
        if complaint:
            raise SimulationFailed(ffi.string(complaint).decode())

    def run_for(self, span_ns: int) -> None:
        """Run for this long."""
        self.run_until(self.now_ns + int(span_ns))

    def rule(
        self,
        action: str,
        kind: Type | None = None,
        *,
        sender: Host | None = None,
        receiver: Host | None = None,
        retransmission: bool | None = None,
        sqns: tuple[int, int] | int | None = None,
        skip: int = 0,
        count: int = 0,
        delay_ns: int = 0,
    ) -> None:
        """Drop, delay or duplicate matching datagrams, for each receiving host separately.

        `sqns` is one number or an inclusive range: of DATA, of the list of a NAK or NCF, or the lead of an SM. The
        first `skip` matches pass, then `count` are affected; 0 is all of them.
        """
        first, last = sqns if isinstance(sqns, tuple) else (sqns or 0, sqns or 0)
        rule = {
            "from": ANY if sender is None else sender.index,
            "to": ANY if receiver is None else receiver.index,
            "type": ANY if kind is None else int(kind),
            "retransmission": ANY if retransmission is None else int(retransmission),
            "by_sqn": sqns is not None,
            "first_sqn": first & _EVERY_SQN,
            "last_sqn": last & _EVERY_SQN,
            "skip_count": skip,
            "match_count": count,
            "delay_ns": delay_ns,
            "action": _ACTIONS[action],
        }
        checked(lib.um_sim_add_rule(self.handle, ffi.new("um_sim_rule *", rule)), "adding a rule")

    def clear_rules(self) -> None:
        """Remove all rules."""
        lib.um_sim_clear_rules(self.handle)

    def inject(self, data: bytes, to_host: Host, to: tuple[str, int], sender: tuple[str, int]) -> None:
        """Deliver a made-up datagram to a host."""
        origin, target = (ffi.new("um_address *", core_address(one))[0] for one in (sender, to))
        checked(lib.um_sim_inject(self.handle, origin, target, to_host.index, data, len(data)), "injecting")

    def trace(self, fate: Fate | None = None, *types: Type) -> list[Datagram]:
        """Return trace entries in order of time."""
        count = ffi.new("uint64_t *")
        entries = lib.um_sim_trace(self.handle, count)
        memory = lib.um_sim_trace_bytes(self.handle)
        chosen: Iterable[Any] = (entries[i] for i in range(count[0]))
        if fate is not None:
            chosen = (entry for entry in chosen if entry.what == fate)
        if types:
            chosen = (entry for entry in chosen if entry.type in types)
        return [_datagram(entry, memory) for entry in chosen]

    def rows(self) -> list[Row]:
        """All rows that applications have read."""
        count = ffi.new("uint64_t *")
        rows = lib.um_sim_rows(self.handle, count)
        memory = lib.um_sim_payload_bytes(self.handle)
        return [_row(rows[i], memory) for i in range(count[0])]

    def read_counters(self, group: str, read: Any, index: int) -> dict[str, int]:
        """Return a structure of counters by name."""
        names = [counter.name for counter in schema().group(group).core_counters]
        values = ffi.unpack(read(self.handle, index), len(names))
        return dict(zip(names, values, strict=True))


def _datagram(entry: Any, memory: Any) -> Datagram:
    return Datagram(
        time_ns=entry.time_ns,
        fate=Fate(entry.what),
        drop_reason=DropReason(entry.drop_reason),
        type=Type(entry.type),
        sender=getattr(entry, "from"),
        receiver=entry.to,
        session_id=entry.session_id,
        sqn=entry.sqn,
        trail=entry.trail,
        lead=entry.lead,
        retransmission=bool(entry.flags & 0x20),
        ncf_reason=NcfReason(entry.ncf_reason),
        source=(ip_text(entry.from_address.ip), entry.from_address.port),
        destination=(ip_text(entry.to_address.ip), entry.to_address.port),
        serial=entry.bytes_at,
        data=bytes(ffi.buffer(memory + entry.bytes_at, entry.length)),
    )


def _row(row: Any, memory: Any) -> Row:
    payload = bytes(ffi.buffer(memory + row.payload_at, row.payload_length)) if row.payload_length else b""
    return Row(
        time_ns=row.time_ns,
        kind=Kind(row.kind),
        receiver=row.receiver,
        join=row.join,
        sequence_number=row.sequence_number,
        first_sequence_number=row.first_sequence_number,
        fragment_offset=row.fragment_offset,
        message_length=row.message_length,
        flags=row.flags,
        payload=payload,
    )
