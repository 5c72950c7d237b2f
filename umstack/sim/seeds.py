"""Random runs of the simulator: a seed makes a world, faults trouble it, checkers watch it (ffi/sim/run.h)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from umstack._sim_bench import ffi, lib
from umstack.errors import Unsupported
from umstack.sim.world import SimulationFailed, World


class Canary(IntEnum):
    """A deliberate mistake: a run with one must fail, or its checkers are blind."""

    NONE = 0
    STALE_PAYLOAD = 1
    LOSE_ROW = 2
    REPEAT_ROW = 3
    DEAF_RECEIVER = 4


class Transport(IntEnum):
    """What the sessions of a world are; seeds make the same worlds for both."""

    LBTRM = 0
    LBTRU = 1


class Adversary(IntEnum):
    """Somebody on the group who attacks while the faults last."""

    NONE = 0
    FORGES_CONTROL = 1
    """Session messages, NAKs, NCFs, status messages, replays and floods: every promise has to hold."""

    FORGES_DATA = 2
    """Data in the name of a source, too, which only keys could tell: a run may well fail."""


@dataclass(frozen=True, slots=True)
class Result:
    """How one seed went; `violation` is empty when everything held."""

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
    datagrams_forged: int
    adversary: Adversary
    transport: Transport = Transport.LBTRM

    @property
    def replay(self) -> str:
        """The command that runs this seed again and shows what happens."""
        attacked = f" --adversary={option_name(self.adversary)}" if self.adversary else ""
        over = f" --transport {option_name(self.transport)}" if self.transport else ""
        return f"umstack sim --seed {self.seed} --trace{attacked}{over}"


def option_name(choice: Canary | Adversary | Transport) -> str:
    """How a choice is written on the command line."""
    return choice.name.lower().replace("_", "-")


def _result(raw: Any, adversary: Adversary, transport: Transport) -> Result:
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
        datagrams_forged=raw.datagrams_forged,
        adversary=adversary,
        transport=transport,
    )


def _params(canary: Canary, adversary: Adversary, transport: Transport, trace: bool) -> Any:
    if adversary and transport:
        raise Unsupported("the adversary forges LBT-RM", hint="run its seeds with --transport lbtrm")
    fields = {"canary": int(canary), "adversary": int(adversary), "transport": int(transport), "trace": trace}
    return ffi.new("um_sim_params *", fields)


def run_seed(
    seed: int,
    canary: Canary = Canary.NONE,
    adversary: Adversary = Adversary.NONE,
    transport: Transport = Transport.LBTRM,
) -> Result:
    """Run one seed."""
    raw = ffi.new("um_sim_result *")
    if lib.um_sim_run(_params(canary, adversary, transport, False), seed, raw) != 0:
        raise SimulationFailed("no memory for a world", hint="free memory, or raise `ulimit -v`")
    return _result(raw, adversary, transport)


def run_seeds(
    first: int,
    count: int | None = None,
    canary: Canary = Canary.NONE,
    adversary: Adversary = Adversary.NONE,
    transport: Transport = Transport.LBTRM,
) -> Iterator[Result]:
    """Run `count` seeds from `first` on; without a count, forever."""
    seed = first
    while count is None or seed < first + count:
        yield run_seed(seed, canary, adversary, transport)
        seed += 1


def trace_seed(
    seed: int,
    canary: Canary = Canary.NONE,
    adversary: Adversary = Adversary.NONE,
    transport: Transport = Transport.LBTRM,
) -> tuple[Result, World]:
    """Run one seed and keep its world, for its trace and rows; the caller closes it."""
    raw = ffi.new("um_sim_result *")
    handle = lib.um_sim_run_world(_params(canary, adversary, transport, True), seed, raw)
    if not handle:
        raise SimulationFailed("no memory for a world", hint="free memory, or raise `ulimit -v`")
    return _result(raw, adversary, transport), World(handle=handle)
