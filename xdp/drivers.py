"""What drivers can do, from `drivers.toml`. `python -m xdp.drivers > docs/drivers.md` renders the table."""

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
    """One driver. `native` and `zero_copy` are the kernels that brought them, None where nothing did."""

    name: str
    hardware: str
    native: KernelVersion | None
    native_commit: str | None
    """The commit of Linux that brought it, where it was looked up."""
    zero_copy: KernelVersion | None
    needs_off: tuple[str, ...]
    expect: str


@cache
def known_drivers() -> Mapping[str, Driver]:
    """Return the table by the drivers' names."""
    read = tomllib.loads(files("xdp").joinpath("drivers.toml").read_text(encoding="utf-8"))
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
    """Write a kernel version the way people do."""
    return "-" if version is None else f"{version[0]}.{version[1]}"


def _shown_native(driver: Driver) -> str:
    commit = f" `{driver.native_commit}`" if driver.native_commit else ""
    return f"{shown_version(driver.native)}{commit}"


_INTRODUCTION = """\
# Drivers

Made from `xdp/drivers.toml` by `python -m xdp.drivers`; edit the table there.

*Native* and *zero-copy* name the Linux release that brought XDP in the driver, and AF_XDP rings that are the NIC's
own memory. Beside it is the commit of Linux that did, where the list of features by kernel version that bcc keeps has
it; what has none is as the release's notes said it. The bypass itself needs Linux 5.15. Zero-copy is tried only where
this table has it; what the running kernel declares for the interface (Linux 6.3 and later) comes before the table
everywhere else. `umstack doctor` says what holds on the host at hand. A driver that is not here works in generic mode
and over sockets, and in native mode if the kernel declares that it can.

| driver | hardware | native | zero-copy | must be off | what to expect |
|---|---|---|---|---|---|"""


def render_drivers_markdown() -> str:
    """The text of docs/drivers.md."""
    rows = (
        f"| `{driver.name}` | {driver.hardware} | {_shown_native(driver)} "
        f"| {shown_version(driver.zero_copy)} | {', '.join(driver.needs_off) or '-'} | {driver.expect} |"
        for driver in known_drivers().values()
    )
    return "\n".join([_INTRODUCTION, *rows]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render_drivers_markdown())
