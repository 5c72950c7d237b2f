"""The settings of a NIC and its host that matter to the bypass, as stages that can be checked, applied and undone.

A stage maps keys (see `umstack_xdp.nic_host`) to target values. Before a key is changed, its value is written to a
state file; `undo` restores exactly that, the last change first. If a change fails, the changes before it are undone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from umstack_xdp.errors import SettingError, XdpError
from umstack_xdp.facts import Unknown
from umstack_xdp.netdev_family import THREADED_ON
from umstack_xdp.nic_host import Host, Value

_STATE_DIR = Path("/run/umstack")
_RING_ENTRIES = 2048
_RX_USECS_MAX = 8
_NAPI_DEFER_HARD_IRQS = 2
_GRO_FLUSH_TIMEOUT_NS = 200_000
_IRQ_SUSPEND_TIMEOUT_NS = 20_000_000
_SOCKET_BUFFER_BYTES = 8 * 1024 * 1024
_OFF = ("rx-lro", "rx-gro-hw", "rx-vlan-hw-parse", "rx-vlan-stag-hw-parse")
_ON = ("rx-ntuple-filter",)


@dataclass(frozen=True, slots=True)
class Preferences:
    """Optional changes requested by the user; None leaves a setting unchanged. `skip` names stages to omit."""

    queues: int | None = None
    busy_poll_us: int | None = None
    prefers_busy_poll: bool = False
    """True if every process that reads from the NIC prefers busy polling, so its interrupts may be deferred."""
    threaded_napi: int | None = None
    """`umstack_xdp.netdev_family.THREADED_ON` or `THREADED_BUSY_POLL`."""
    skip: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Setting:
    """The current and target value of a key. `target` None: unavailable, or left unchanged."""

    stage: str
    key: str
    current: Value | Unknown
    target: Value | None
    why: str
    privilege: str
    command: str

    @property
    def is_to_change(self) -> bool:
        """True if `init` would change it."""
        return self.target is not None and self.current != self.target


@dataclass(frozen=True, slots=True)
class Stage:
    """Related keys that are changed together, and the privilege required."""

    name: str
    why: str
    privilege: str
    targets: Callable[[Host, Preferences], Mapping[str, Value]]
    is_on_request: bool = False
    """True for a stage that runs on request only; `init` then fails if none of it is available."""


@dataclass(slots=True)
class Outcome:
    """The changes of `init` or `undo` in order, as (key, before, after)."""

    changes: list[tuple[str, Value, Value]] = field(default_factory=list)
    unavailable: dict[str, str] = field(default_factory=dict)
    """Requested keys that this kernel or driver does not have, with the reason."""


class NoStateError(XdpError):
    """There is nothing to undo, or the state belongs to another interface."""


def check(host: Host, preferences: Preferences | None = None) -> list[Setting]:
    """Return every available setting with its target value. Changes nothing."""
    return [setting for stage in STAGES for setting in _settings(host, stage, preferences or Preferences())]


def init(host: Host, state: Path, preferences: Preferences | None = None) -> Outcome:
    """Apply every stage. The previous values are written to the state file before the first change.

    A second `init` adds its changes to the same file, so that `undo` restores the state before the first one.
    """
    recorded = _read_state(state, host) if state.exists() else {}
    outcome = Outcome()
    try:
        for stage in STAGES:
            settings = list(_settings(host, stage, preferences or Preferences()))
            if stage.is_on_request:
                outcome.unavailable |= _unavailable(stage, settings)
            for setting in settings:
                if setting.target is None or isinstance(setting.current, Unknown):
                    continue
                if setting.is_to_change:
                    # A key keeps the position and value of its first change, because undo restores that.
                    _write_state(state, host, recorded | _before(outcome, setting) | recorded)
                    outcome.changes.append((setting.key, setting.current, setting.target))
                    host.write(setting.key, setting.target)
    except BaseException as error:
        left = _roll_back(host, outcome)
        if left or recorded:
            _write_state(state, host, recorded | left | recorded)
        elif state.exists():
            state.unlink()
        if not isinstance(error, SettingError):
            raise
        undone = "everything was put back" if not left else f"{', '.join(left)} could not be put back"
        raise SettingError(error.what, f"{error.reason} ({undone})", error.errno) from error
    return outcome


def undo(host: Host, state: Path, *, dry_run: bool = False) -> Outcome:
    """Restore the values before `init`, the last change first. Values that cannot be restored stay in the file."""
    if not state.exists():
        raise NoStateError(
            f"nothing is recorded for {host.interface} ({state} is missing)",
            hint="`umstack nic init` records what it changes; name its file with --state",
        )
    recorded = _read_state(state, host)
    outcome = Outcome()
    failed: dict[str, Value] = {}
    for key, value in reversed(recorded.items()):
        now = host.read(key)
        if now == value:
            continue
        try:
            if not dry_run:
                host.write(key, value)
        except SettingError as error:
            failed[key] = value
            refusal = error
        else:
            outcome.changes.append((key, "?" if isinstance(now, Unknown) else now, value))
    if failed:
        _write_state(state, host, dict(reversed(failed.items())))
        raise SettingError(f"not put back: {', '.join(failed)}", refusal.reason, refusal.errno) from refusal
    if not dry_run:
        state.unlink()
    return outcome


def state_path(interface: str) -> Path:
    """Return the usual state file of an interface of the calling thread's network namespace."""
    namespace = Path("/proc/thread-self/ns/net").stat().st_ino
    return _STATE_DIR / f"nic-{interface}-{namespace}.json"


def command_for(interface: str, key: str, value: Value, napi_ids: Sequence[int] = ()) -> str:
    """Return the equivalent shell command."""
    group, _, name = key.partition(".")
    if group == "napi":
        position, _, setting = name.partition(".")
        number = dict(enumerate(napi_ids)).get(int(position), "ID")
        attributes = f'{{"id": {number}, "{setting.replace("_", "-")}": {value}}}'
        return f"ynl --family netdev --do napi-set --json '{attributes}'"
    switch = "on" if value in (1, "1") else "off"
    return {
        "queues": f"ethtool -L {interface} {name} {value}",
        "rings": f"ethtool -G {interface} {name} {value}",
        "coalescing": f"ethtool -C {interface} "
        + (f"rx-usecs {value}" if name == "rx_usecs" else f"adaptive-rx {switch}"),
        "feature": f"ethtool -K {interface} {name} {switch}",
        "interface": f"echo {value} > /sys/class/net/{interface}/{name}",
        "irq": f"echo {value} > /proc/irq/{name}/smp_affinity_list",
        "sysctl": f"sysctl -w {name.replace('/', '.')}={value}",
    }[group]


def _settings(host: Host, stage: Stage, preferences: Preferences) -> Iterator[Setting]:
    if stage.name in preferences.skip:
        return
    for key, wanted in stage.targets(host, preferences).items():
        current = host.read(key)
        yield Setting(
            stage=stage.name,
            key=key,
            current=current,
            target=None if isinstance(current, Unknown) else wanted,
            why=stage.why,
            privilege=stage.privilege,
            command=command_for(host.interface, key, wanted, host.napi_ids()),
        )


def _unavailable(stage: Stage, settings: Sequence[Setting]) -> dict[str, str]:
    unavailable = {one.key: one.current.reason for one in settings if isinstance(one.current, Unknown)}
    if unavailable and len(unavailable) == len(settings):
        raise SettingError(stage.name, "; ".join(dict.fromkeys(unavailable.values())))
    return unavailable


def _before(outcome: Outcome, setting: Setting) -> dict[str, Value]:
    before = {key: value for key, value, _ in outcome.changes}
    return before if isinstance(setting.current, Unknown) else {**before, setting.key: setting.current}


def _roll_back(host: Host, outcome: Outcome) -> dict[str, Value]:
    """Undo the changes, last first; return those that could not be undone."""
    left: dict[str, Value] = {}
    for key, before, _ in reversed(outcome.changes):
        if host.read(key) == before:
            continue
        try:
            host.write(key, before)
        except SettingError:
            left[key] = before
    return left


def _read_state(state: Path, host: Host) -> dict[str, Value]:
    try:
        read = json.loads(state.read_text(encoding="utf-8"))
        interface, mac, before = read["interface"], read["mac"], dict(read["before"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NoStateError(f"{state} cannot be read: {error}", hint="fix it or remove it") from error
    if (interface, mac) != (host.interface, host.mac):
        raise NoStateError(
            f"{state} is of {interface} {mac}, not of {host.interface} {host.mac}",
            hint="name the right file with --state, or remove this one",
        )
    return before


def _write_state(state: Path, host: Host, before: Mapping[str, Value]) -> None:
    """Replace the file as a whole, so that a crash leaves the old one or the new one."""
    text = json.dumps({"interface": host.interface, "mac": host.mac, "before": dict(before)}, indent=1)
    fresh = state.with_name(f"{state.name}.new")
    try:
        state.parent.mkdir(parents=True, exist_ok=True)
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(state)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink()
        raise SettingError(f"writing {state}", error.strerror or str(error), error.errno or 0) from error


def _number(host: Host, key: str) -> int:
    value = host.read(key)
    return 0 if isinstance(value, Unknown) else int(value)


def _offloads(host: Host, _preferences: Preferences) -> Mapping[str, Value]:
    changeable = host.changeable_features()
    wanted = dict.fromkeys(_OFF, 0) | dict.fromkeys(_ON, 1)
    return {f"feature.{name}": value for name, value in wanted.items() if name in changeable}


def _queues(host: Host, preferences: Preferences) -> Mapping[str, Value]:
    """Return the requested number; by default at most one per CPU."""
    keys = ("queues.combined",) if _number(host, "queues.combined_max") else ("queues.rx", "queues.tx")
    cpu_count = len(host.cpus())
    return {key: preferences.queues or min(_number(host, key), cpu_count) for key in keys}


def _rings(host: Host, _preferences: Preferences) -> Mapping[str, Value]:
    wanted = {}
    for kind in ("rx", "tx"):
        size, largest = _number(host, f"rings.{kind}"), _number(host, f"rings.{kind}_max")
        wanted[f"rings.{kind}"] = max(size, min(largest, _RING_ENTRIES))
    return wanted


def _coalescing(host: Host, _preferences: Preferences) -> Mapping[str, Value]:
    usecs = min(_number(host, "coalescing.rx_usecs"), _RX_USECS_MAX)
    return {"coalescing.adaptive_rx": 0, "coalescing.rx_usecs": usecs}


def _busy_polling(host: Host, preferences: Preferences) -> Mapping[str, Value]:
    """Defer interrupts; only on request, because a process that does not poll then waits for the timer."""
    if not preferences.prefers_busy_poll:
        return {}
    return {
        "interface.napi_defer_hard_irqs": _NAPI_DEFER_HARD_IRQS,
        "interface.gro_flush_timeout": _GRO_FLUSH_TIMEOUT_NS,
        **_of_each_napi(host, "irq_suspend_timeout", _IRQ_SUSPEND_TIMEOUT_NS),
    }


def _threaded_napi(host: Host, preferences: Preferences) -> Mapping[str, Value]:
    """Use netlink per instance; before Linux 6.17 the interface's switch, which has no busy polling."""
    if preferences.threaded_napi is None:
        return {}
    wanted = _of_each_napi(host, "threaded", preferences.threaded_napi)
    if preferences.threaded_napi == THREADED_ON and all(
        isinstance(host.read(key), Unknown) for key in wanted
    ):
        return {"interface.threaded": THREADED_ON}
    return wanted


def _of_each_napi(host: Host, setting: str, value: int) -> Mapping[str, Value]:
    """Return the keys of every instance; those of the first even if there is none, so that its absence is reported."""
    return {f"napi.{position}.{setting}": value for position in range(len(host.napi_ids()) or 1)}


def _affinity(host: Host, _preferences: Preferences) -> Mapping[str, Value]:
    """Assign one CPU to each interrupt, in turn."""
    cpus = host.cpus()
    return {
        f"irq.{number}": str(cpus[position % len(cpus)]) for position, number in enumerate(host.irq_numbers())
    }


def _busy_poll_sysctls(_host: Host, preferences: Preferences) -> Mapping[str, Value]:
    if preferences.busy_poll_us is None:
        return {}
    return {f"sysctl.net/core/{name}": preferences.busy_poll_us for name in ("busy_poll", "busy_read")}


def _socket_buffers(host: Host, _preferences: Preferences) -> Mapping[str, Value]:
    keys = ("sysctl.net/core/rmem_max", "sysctl.net/core/wmem_max")
    return {key: max(_number(host, key), _SOCKET_BUFFER_BYTES) for key in keys}


_NET_ADMIN = "CAP_NET_ADMIN"
_ROOT_NET_ADMIN = "root and CAP_NET_ADMIN"
_ROOT = "root"
STAGES: Sequence[Stage] = (
    Stage("offloads", "the XDP program should see datagrams as they were sent", _NET_ADMIN, _offloads),
    Stage("queues", "each receive queue takes a ring and a CPU that looks at it", _NET_ADMIN, _queues),
    Stage("rings", "a longer ring holds bursts while the reader is away", _NET_ADMIN, _rings),
    Stage("coalescing", "an interrupt that is held back is latency", _NET_ADMIN, _coalescing),
    Stage(
        "busy polling",
        "interrupts stay off the CPU while processes that prefer busy polling look; those that do not wait longer",
        _ROOT_NET_ADMIN,
        _busy_polling,
        is_on_request=True,
    ),
    Stage(
        "threaded NAPI",
        "a kernel thread takes datagrams from the driver, on a CPU of its own",
        _NET_ADMIN,
        _threaded_napi,
        is_on_request=True,
    ),
    Stage("affinity", "one CPU for each interrupt keeps its caches warm", _ROOT, _affinity),
    Stage("busy-poll sysctls", "blocking reads spin that long before they sleep", _ROOT, _busy_poll_sysctls),
    Stage("socket buffers", "kernel sockets need space for bursts", _ROOT, _socket_buffers),
)
