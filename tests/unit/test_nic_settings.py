"""Settings of a NIC on a simulated host: changes, records, undo and rollback."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from umstack.cli.nic import command
from umstack.errors import InterfaceError, UmError
from umstack_xdp.errors import SettingError
from umstack_xdp.facts import Unknown
from umstack_xdp.netdev_family import THREADED_BUSY_POLL, THREADED_ON
from umstack_xdp.nic_host import Value, cpu_list
from umstack_xdp.nic_settings import (
    STAGES,
    NoStateError,
    Preferences,
    check,
    command_for,
    init,
    state_path,
    undo,
)

MIB = 1024 * 1024


class FakeHost:
    """A NIC with all settings in a dictionary. `refused` keys cannot be written."""

    interface = "eth1"
    mac = "02:00:00:00:00:01"

    def __init__(self, values: Mapping[str, Value], refused: tuple[str, ...] = ()) -> None:
        """Start with these settings."""
        self.values = dict(values)
        self.refused = set(refused)
        self.written: list[tuple[str, Value]] = []

    def read(self, key: str) -> Value | Unknown:
        """Return the value."""
        return self.values.get(key, Unknown("no such setting"))

    def write(self, key: str, value: Value) -> None:
        """Change the value, or refuse the change."""
        if key in self.refused:
            raise SettingError(f"writing {key}", "Invalid argument", 22)
        self.written.append((key, value))
        self.values[key] = value

    def changeable_features(self) -> frozenset[str]:
        """Return all offloads."""
        return frozenset(key.removeprefix("feature.") for key in self.values if key.startswith("feature."))

    def irq_numbers(self) -> list[int]:
        """Return one interrupt per queue."""
        return [int(key.removeprefix("irq.")) for key in self.values if key.startswith("irq.")]

    def cpus(self) -> list[int]:
        """Return four CPUs."""
        return [0, 1, 2, 3]

    def napi_ids(self) -> list[int]:
        """Return numbers from 900."""
        positions = {key.split(".")[1] for key in self.values if key.startswith("napi.")}
        return [900 + int(position) for position in sorted(positions)]


FRESH: Mapping[str, Value] = {
    "feature.rx-lro": 1,
    "feature.rx-gro-hw": 0,
    "feature.rx-vlan-hw-parse": 1,
    "feature.rx-ntuple-filter": 0,
    "queues.combined": 16,
    "queues.combined_max": 32,
    "queues.rx": 0,
    "queues.tx": 0,
    "rings.rx": 512,
    "rings.tx": 512,
    "rings.rx_max": 8160,
    "rings.tx_max": 1024,
    "coalescing.rx_usecs": 50,
    "coalescing.adaptive_rx": 1,
    "interface.napi_defer_hard_irqs": 0,
    "interface.gro_flush_timeout": 0,
    "napi.0.threaded": 0,
    "napi.0.irq_suspend_timeout": 0,
    "napi.1.threaded": 0,
    "napi.1.irq_suspend_timeout": 0,
    "irq.60": "0-3",
    "irq.61": "0-3",
    "irq.62": "0-3",
    "irq.63": "0-3",
    "irq.64": "0-3",
    "sysctl.net/core/busy_poll": 0,
    "sysctl.net/core/busy_read": 0,
    "sysctl.net/core/rmem_max": 212992,
    "sysctl.net/core/wmem_max": 16 * MIB,
}
PREPARED: Mapping[str, Value] = {
    **FRESH,
    "feature.rx-lro": 0,
    "feature.rx-vlan-hw-parse": 0,
    "feature.rx-ntuple-filter": 1,
    "queues.combined": 4,
    "rings.rx": 2048,
    "rings.tx": 1024,
    "coalescing.rx_usecs": 8,
    "coalescing.adaptive_rx": 0,
    "irq.60": "0",
    "irq.61": "1",
    "irq.62": "2",
    "irq.63": "3",
    "irq.64": "0",
    "sysctl.net/core/rmem_max": 8 * MIB,
}


def test_init_changes_the_settings_and_undo_restores_them_exactly(tmp_path: Path) -> None:
    """Every setting has the required value after init, and its old value after undo, which runs in reverse order."""
    host, state = FakeHost(FRESH), tmp_path / "deep" / "state.json"
    outcome = init(host, state)
    assert host.values == PREPARED
    assert [key for key, _, _ in outcome.changes] == [key for key, _ in host.written]
    assert not [setting for setting in check(host) if setting.is_to_change]
    forward, host.written = host.written, []
    undo(host, state)
    assert host.values == FRESH
    assert [key for key, _ in host.written] == [key for key, _ in reversed(forward)]
    assert not state.exists()


def test_a_second_init_changes_nothing_and_keeps_the_record(tmp_path: Path) -> None:
    """Undo after two inits restores the state before the first init, whichever settings the second one
    requested.
    """
    host, state = FakeHost(FRESH), tmp_path / "state.json"
    init(host, state)
    assert not init(host, state).changes
    init(host, state, Preferences(queues=2, busy_poll_us=50))
    assert host.values["queues.combined"] == 2
    assert host.values["sysctl.net/core/busy_read"] == 50
    undo(host, state)
    assert host.values == FRESH


@pytest.mark.parametrize("refused", sorted(set(PREPARED.items()) - set(FRESH.items())))
def test_a_refused_change_rolls_all_others_back(tmp_path: Path, refused: tuple[str, Value]) -> None:
    """If any change fails, the host is as before, nothing is recorded, and the error names the setting."""
    host, state = FakeHost(FRESH, (refused[0],)), tmp_path / "state.json"
    with pytest.raises(SettingError, match="everything was put back") as error:
        init(host, state)
    assert refused[0] in str(error.value)
    assert host.values == FRESH
    assert not state.exists()


def test_a_failed_second_init_keeps_the_record_of_the_first(tmp_path: Path) -> None:
    """The changes of the first init can still be undone."""
    host, state = FakeHost(FRESH), tmp_path / "state.json"
    init(host, state)
    host.refused = {"sysctl.net/core/busy_poll"}
    with pytest.raises(SettingError):
        init(host, state, Preferences(queues=2, busy_poll_us=50))
    assert host.values == PREPARED
    host.refused = set()
    undo(host, state)
    assert host.values == FRESH


def test_settings_that_cannot_be_restored_stay_recorded(tmp_path: Path) -> None:
    """Undo continues after an error, reports the settings that remain, and can be repeated."""
    host, state = FakeHost(FRESH), tmp_path / "state.json"
    init(host, state)
    host.refused = {"rings.rx", "queues.combined"}
    with pytest.raises(SettingError, match=r"rings\.rx, queues\.combined"):
        undo(host, state)
    assert list(json.loads(state.read_text())["before"]) == ["queues.combined", "rings.rx"]
    host.refused = set()
    undo(host, state)
    assert host.values == FRESH


def test_old_values_are_recorded_before_the_change(tmp_path: Path) -> None:
    """If init is killed at any point, the file is sufficient to restore the original state."""
    state = tmp_path / "state.json"

    class Watched(FakeHost):
        def write(self, key: str, value: Value) -> None:
            super().write(key, value)
            survivor, copy = FakeHost(self.values), tmp_path / "copy.json"
            copy.write_text(state.read_text())
            undo(survivor, copy)
            assert survivor.values == FRESH

    host = Watched(FRESH)
    init(host, state)
    assert host.values == PREPARED


def test_an_interrupted_init_is_rolled_back(tmp_path: Path) -> None:
    """Ctrl-C in the middle is handled like any other failure."""
    state = tmp_path / "state.json"

    class Interrupted(FakeHost):
        def write(self, key: str, value: Value) -> None:
            super().write(key, value)
            if key == "coalescing.rx_usecs" and value == 8:
                raise KeyboardInterrupt

    host = Interrupted(FRESH)
    with pytest.raises(KeyboardInterrupt):
        init(host, state)
    assert host.values == FRESH
    assert not state.exists()


def test_missing_settings_are_skipped(tmp_path: Path) -> None:
    """On a host without settings nothing is changed or recorded, and everything is shown as unknown."""
    host, state = FakeHost({}), tmp_path / "state.json"
    assert not init(host, state).changes
    assert not state.exists()
    assert all(setting.target is None for setting in check(host))


def test_stages_can_be_skipped(tmp_path: Path) -> None:
    """--skip leaves a stage unchanged."""
    host = FakeHost(FRESH)
    init(host, tmp_path / "state.json", Preferences(skip=frozenset({"affinity", "rings"})))
    assert (host.values["irq.60"], host.values["rings.rx"]) == ("0-3", 512)
    assert host.values["queues.combined"] == 4


BUSY: Mapping[str, Value] = {
    "interface.napi_defer_hard_irqs": 2,
    "interface.gro_flush_timeout": 200_000,
    "napi.0.irq_suspend_timeout": 20_000_000,
    "napi.1.irq_suspend_timeout": 20_000_000,
}


def test_busy_polling_is_prepared_only_on_request(tmp_path: Path) -> None:
    """Deferral and IRQ suspension cost every process that does not poll; both are restored."""
    host, state = FakeHost(FRESH), tmp_path / "state.json"
    assert not {setting.key for setting in check(host)} & set(BUSY)
    assert init(host, state, Preferences(prefers_busy_poll=True)).unavailable == {}
    assert host.values == {**PREPARED, **BUSY}
    undo(host, state)
    assert host.values == FRESH


@pytest.mark.parametrize("threaded", [THREADED_ON, THREADED_BUSY_POLL])
def test_napi_threads_are_set_for_each_instance(tmp_path: Path, threaded: int) -> None:
    """Threads are recorded by index, so undo works even if the driver assigns new numbers."""
    host, state = FakeHost(FRESH), tmp_path / "state.json"
    init(host, state, Preferences(threaded_napi=threaded))
    assert host.values == {**PREPARED, "napi.0.threaded": threaded, "napi.1.threaded": threaded}
    undo(host, state)
    assert host.values == FRESH


def test_features_missing_in_the_kernel_are_reported(tmp_path: Path) -> None:
    """An unavailable part of a requested stage is skipped and reported; a stage with no available part is an
    error."""
    old = {key: value for key, value in FRESH.items() if not key.startswith("napi.")}
    host, state = FakeHost(old), tmp_path / "state.json"
    outcome = init(host, state, Preferences(prefers_busy_poll=True))
    assert outcome.unavailable == {"napi.0.irq_suspend_timeout": "no such setting"}
    assert host.values["interface.gro_flush_timeout"] == 200_000
    undo(host, state)
    with pytest.raises(SettingError, match="threaded NAPI: no such setting"):
        init(host, state, Preferences(threaded_napi=THREADED_BUSY_POLL))
    assert host.values == old
    assert not state.exists()


def test_the_switch_of_the_interface_is_the_fallback(tmp_path: Path) -> None:
    """Before Linux 6.17 the threads of a driver can only be enabled for the whole interface."""
    old = {key: value for key, value in FRESH.items() if not key.startswith("napi.")}
    host, state = FakeHost({**old, "interface.threaded": 0}), tmp_path / "state.json"
    init(host, state, Preferences(threaded_napi=THREADED_ON))
    assert host.values["interface.threaded"] == 1
    undo(host, state)
    assert host.values == {**old, "interface.threaded": 0}


def test_a_state_of_another_interface_is_refused(tmp_path: Path) -> None:
    """Settings are never restored to another NIC; the error names a broken or missing file."""
    host, state = FakeHost(FRESH), tmp_path / "state.json"
    with pytest.raises(NoStateError, match="nothing is recorded"):
        undo(host, state)
    init(host, state)
    other = FakeHost(PREPARED)
    other.mac = "02:00:00:00:00:02"
    with pytest.raises(NoStateError, match="is of eth1 02:00:00:00:00:01"):
        undo(other, state)
    state.write_text("{")
    with pytest.raises(NoStateError, match="cannot be read"):
        undo(host, state)
    assert other.values == PREPARED


def test_every_change_has_its_command_and_privilege() -> None:
    """Every step of init can be done by hand."""
    commands = {
        setting.key: setting.command for setting in check(FakeHost(FRESH), Preferences(busy_poll_us=50))
    }
    assert commands["queues.combined"] == "ethtool -L eth1 combined 4"
    assert commands["rings.rx"] == "ethtool -G eth1 rx 2048"
    assert commands["coalescing.adaptive_rx"] == "ethtool -C eth1 adaptive-rx off"
    assert commands["coalescing.rx_usecs"] == "ethtool -C eth1 rx-usecs 8"
    assert commands["feature.rx-lro"] == "ethtool -K eth1 rx-lro off"
    busy = {
        setting.key: setting.command
        for setting in check(FakeHost(FRESH), Preferences(prefers_busy_poll=True, threaded_napi=THREADED_ON))
    }
    assert busy["interface.gro_flush_timeout"] == "echo 200000 > /sys/class/net/eth1/gro_flush_timeout"
    assert busy["napi.1.threaded"] == (
        """ynl --family netdev --do napi-set --json '{"id": 901, "threaded": 1}'"""
    )
    assert commands["irq.61"] == "echo 1 > /proc/irq/61/smp_affinity_list"
    assert commands["sysctl.net/core/busy_poll"] == "sysctl -w net.core.busy_poll=50"
    assert command_for("eth1", "feature.rx-ntuple-filter", 1) == "ethtool -K eth1 rx-ntuple-filter on"
    assert all(stage.privilege and stage.why for stage in STAGES)


def test_cpu_lists_of_the_kernel_are_parsed() -> None:
    """A list of CPUs can have ranges, single CPUs or nothing."""
    assert cpu_list("0-3,8,10-11\n") == [0, 1, 2, 3, 8, 10, 11]
    assert cpu_list("\n") == []


def test_the_state_file_depends_on_interface_and_namespace() -> None:
    """Interfaces of the same name in two namespaces do not share a file."""
    path = state_path("eth1")
    assert path.parent == Path("/run/umstack")
    assert path.name.startswith("nic-eth1-")


def test_the_command_reports_the_error(tmp_path: Path) -> None:
    """A missing interface, and an undo without a record, are errors that state the next step."""
    runner = CliRunner()
    missing = runner.invoke(command, ["check", "no-such-interface"])
    assert isinstance(missing.exception, InterfaceError)
    nothing = runner.invoke(command, ["undo", "lo", "--state", str(tmp_path / "none.json")])
    assert isinstance(nothing.exception, UmError)
    assert "umstack nic init" in str(nothing.exception)
