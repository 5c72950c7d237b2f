"""Random runs of the simulator: a seed chooses a world and its faults, checkers watch it (ffi/sim/run.h)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from umstack._sim_bench import ffi, lib
from umstack.sim.world import SimulationFailed, World


class Canary(IntEnum):
    """A deliberate mistake: a run with one must fail, or its checkers miss faults."""

    NONE = 0
    STALE_PAYLOAD = 1
    LOSE_ROW = 2
    REPEAT_ROW = 3
    DEAF_RECEIVER = 4
    STALE_ANSWER = 5
    KNOWN_KEY = 6
    """The adversary has the key of LBT-RU client ids."""


class Transport(IntEnum):
    """The transport of a world's sessions; a seed makes the same world for both."""

    LBTRM = 0
    LBTRU = 1


class Adversary(IntEnum):
    """An attacker on the network while the faults last."""

    NONE = 0
    FORGES_CONTROL = 1
    """Session messages, NAKs, NCFs, status messages, replays and floods: all checks must succeed."""

    FORGES_DATA = 2
    """Also data with the address of a source, which only keys could reject: a run may fail."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Settings of a run besides its seed."""

    canary: Canary = Canary.NONE
    adversary: Adversary = Adversary.NONE
    transport: Transport = Transport.LBTRM
    recovers: bool = True
    """With late join and off-transport recovery; not with an adversary, nor over LBT-RU."""

    @property
    def options(self) -> str:
        """Return the settings as command-line options, each after a blank."""
        attacked = f" --adversary={option_name(self.adversary)}" if self.adversary else ""
        over = f" --transport {option_name(self.transport)}" if self.transport else ""
        planted = f" --canary={option_name(self.canary)}" if self.canary else ""
        return attacked + over + planted + ("" if self.recovers else " --transport-only")

    def params(self, *, trace: bool = False) -> Any:
        """Return an um_sim_params."""
        fields = {
            "canary": int(self.canary),
            "adversary": int(self.adversary),
            "transport": int(self.transport),
            "recovers": self.recovers and not self.adversary and not self.transport,
            "trace": trace,
        }
        return ffi.new("um_sim_params *", fields)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a seed; `violation` is empty on success."""

    seed: int
    violation: str
    scenario: str
    digest: int
    virtual_ns: int
    event_count: int
    datagrams_sent: int
    datagrams_dropped: int
    messages_sent: int
    messages_delivered: int
    losses_declared: int
    naks_sent: int
    retransmissions: int
    fetches: int
    messages_recovered: int
    datagrams_forged: int
    setup: Setup

    @property
    def replay(self) -> str:
        """Return the command that repeats this seed with a trace."""
        return f"umstack sim --seed {self.seed} --trace{self.setup.options}"


def option_name(choice: Canary | Adversary | Transport) -> str:
    """Return a choice as written on the command line."""
    return choice.name.lower().replace("_", "-")


PLAIN = Setup()


def _result(raw: Any, setup: Setup) -> Result:
    return Result(
        seed=raw.seed,
        violation=ffi.string(raw.message).decode() if raw.failed else "",
        scenario=ffi.string(raw.scenario).decode(),
        digest=raw.hash,
        virtual_ns=raw.virtual_ns,
        event_count=raw.event_count,
        datagrams_sent=raw.datagrams_sent,
        datagrams_dropped=raw.datagrams_dropped,
        messages_sent=raw.messages_sent,
        messages_delivered=raw.messages_delivered,
        losses_declared=raw.losses_declared,
        naks_sent=raw.naks_sent,
        retransmissions=raw.retransmissions,
        fetches=raw.fetches,
        messages_recovered=raw.messages_recovered,
        datagrams_forged=raw.datagrams_forged,
        setup=setup,
    )


def run_seed(seed: int, setup: Setup = PLAIN) -> Result:
    """Run one seed."""
    raw = ffi.new("um_sim_result *")
    if lib.um_sim_run(setup.params(), seed, raw) != 0:
        raise SimulationFailed("no memory for a world", hint="free memory, or raise `ulimit -v`")
    return _result(raw, setup)


def run_seeds(first: int, count: int | None = None, setup: Setup = PLAIN) -> Iterator[Result]:
    """Run `count` seeds from `first` on; forever if None."""
    seed = first
    while count is None or seed < first + count:
        yield run_seed(seed, setup)
        seed += 1


def trace_seed(seed: int, setup: Setup = PLAIN) -> tuple[Result, World]:
    """Run one seed and keep its world, for its trace and rows; the caller closes it."""
    raw = ffi.new("um_sim_result *")
    handle = lib.um_sim_run_world(setup.params(trace=True), seed, raw)
    if not handle:
        raise SimulationFailed("no memory for a world", hint="free memory, or raise `ulimit -v`")
    return _result(raw, setup), World(handle=handle)
