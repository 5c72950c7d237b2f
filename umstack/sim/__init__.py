"""The simulator: the whole C core on simulated hosts, under virtual time, from a seed or from a script.

`run_seeds` runs random worlds with checkers (`umstack sim` does so from a shell); `World` builds one by a script.
`write_capture` writes a world as a capture, `truth_of` returns the true content of that capture.
"""

from umstack.sim.capture import START_NS, SWITCH, point_name, write_capture
from umstack.sim.options import (
    ADAPTIVE_JOIN,
    ADAPTIVE_SESSION,
    FLOW_MAX,
    FLOW_MIN,
    FLOW_NONE,
    FLOW_TAGGED,
    MS,
    SECOND,
    US,
)
from umstack.sim.seeds import Adversary, Canary, Result, Setup, Transport, run_seed, run_seeds, trace_seed
from umstack.sim.trace import Datagram, DropReason, Fate, Fragment, Kind, NcfReason, Row, Type
from umstack.sim.truth import Loss, SessionTruth, Truth, Unrecoverable, truth_of
from umstack.sim.world import Host, Join, Receiver, Session, SimulationFailed, Source, World

__all__ = [
    "ADAPTIVE_JOIN",
    "ADAPTIVE_SESSION",
    "FLOW_MAX",
    "FLOW_MIN",
    "FLOW_NONE",
    "FLOW_TAGGED",
    "MS",
    "SECOND",
    "START_NS",
    "SWITCH",
    "US",
    "Adversary",
    "Canary",
    "Datagram",
    "DropReason",
    "Fate",
    "Fragment",
    "Host",
    "Join",
    "Kind",
    "Loss",
    "NcfReason",
    "Receiver",
    "Result",
    "Row",
    "Session",
    "SessionTruth",
    "Setup",
    "SimulationFailed",
    "Source",
    "Transport",
    "Truth",
    "Type",
    "Unrecoverable",
    "World",
    "point_name",
    "run_seed",
    "run_seeds",
    "trace_seed",
    "truth_of",
    "write_capture",
]
