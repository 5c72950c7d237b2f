"""Capabilities of drivers, from `drivers.toml`. `python -m umstack_xdp.drivers > docs/drivers.md` renders the table."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

KernelVersion = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Driver:
    """One driver. `native` and `zero_copy` are the kernels that added them, or None."""

    name: str
    hardware: str
    native: KernelVersion | None
    native_commit: str | None
    """The commit of Linux that added it, if known."""
    zero_copy: KernelVersion | None
    needs_off: tuple[str, ...]
    expect: str


@cache
def known_drivers() -> Mapping[str, Driver]:
    """Return the table by driver name."""
    read = tomllib.loads(files("umstack_xdp").joinpath("drivers.toml").read_text(encoding="utf-8"))
    return {entry["name"]: _driver(entry) for entry in read["driver"]}


def _driver(entry: Mapping[str, str | list[str]]) -> Driver:
    return Driver(
        name=str(entry["name"]),
        hardware=str(entry["hardware"]),
        native=_version(entry.get("native")),
        native_commit=str(entry["native_commit"]) if "native_commit" in entry else None,
        zero_copy=_version(entry.get("zero_copy")),
        needs_off=tuple(entry.get("needs_off", ())),
        expect=str(entry["expect"]),
    )


def _version(text: object) -> KernelVersion | None:
    if text is None:
        return None
    major, minor = str(text).split(".")
    return int(major), int(minor)


def shown_version(version: KernelVersion | None) -> str:
    """Return a kernel version as text."""
    return "-" if version is None else f"{version[0]}.{version[1]}"


def _shown_native(driver: Driver) -> str:
    commit = f" `{driver.native_commit}`" if driver.native_commit else ""
    return f"{shown_version(driver.native)}{commit}"


_INTRODUCTION = """\
# Drivers

Generated from `xdp/drivers.toml` by `python -m umstack_xdp.drivers`; edit the table there.

The column *native* gives the Linux release that added XDP to the driver; *zero-copy* gives the release that added
AF_XDP rings in the NIC's own memory.
The Linux commit is from bcc's list of features by kernel version; entries without a commit follow the release notes.
The bypass itself needs Linux 5.15. Zero-copy is tried only for drivers that this table lists for it; otherwise the
running kernel's declaration for the interface (Linux 6.3 and later) takes precedence over the table. `umstack doctor`
shows the result for this host. Other drivers work in generic mode and over sockets, and in native mode if the kernel
declares it.

| driver | hardware | native | zero-copy | must be off | what to expect |
|---|---|---|---|---|---|"""


def render_drivers_markdown() -> str:
    """Return the text of docs/drivers.md."""
    rows = (
        f"| `{driver.name}` | {driver.hardware} | {_shown_native(driver)} "
        f"| {shown_version(driver.zero_copy)} | {', '.join(driver.needs_off) or '-'} | {driver.expect} |"
        for driver in known_drivers().values()
    )
    return "\n".join([_INTRODUCTION, *rows]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render_drivers_markdown())
