"""The statistics schema: reads counters.toml and renders all files made from it.

`python -m umstack.telemetry.counters --c-header` prints ffi/core/foundation/counters.h,
`--markdown` prints docs/counters.md,
`--cdef` prints the same structs for cffi. Unit tests compare the committed files with this output.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any

UNSET_MINIMUM = 2**64 - 1


class CounterKind(StrEnum):
    """How a counter changes, which determines how it is reset, summed and plotted."""

    COUNTER = "counter"
    SNAPSHOT = "snapshot"
    MIN = "min"
    MAX = "max"
    MEAN = "mean"


@dataclass(frozen=True, slots=True)
class Counter:
    """One statistic. The core stores `scale` integer steps per `unit`."""

    group: str
    name: str
    kind: CounterKind
    unit: str
    scale: int
    extension: bool
    in_core: bool
    doc: str

    def value(self, stored: int) -> int | float | None:
        """Return the value to report for a stored integer; None for a minimum without a sample."""
        if self.kind is CounterKind.MIN and stored == UNSET_MINIMUM:
            return None
        return stored if self.scale == 1 else stored / self.scale


@dataclass(frozen=True, slots=True)
class CounterGroup:
    """The counters of one kind of object, in the order of the C struct."""

    name: str
    doc: str
    counters: tuple[Counter, ...]
    core_counters: tuple[Counter, ...] = field(init=False)
    """The counters that are fields of the C struct."""
    _core_names: tuple[str, ...] = field(init=False)
    _converted: tuple[Counter, ...] = field(init=False)
    """The counters whose reported value differs from the stored one."""

    def __post_init__(self) -> None:
        core = tuple(counter for counter in self.counters if counter.in_core)
        converted = tuple(one for one in core if one.kind is CounterKind.MIN or one.scale != 1)
        object.__setattr__(self, "core_counters", core)
        object.__setattr__(self, "_core_names", tuple(counter.name for counter in core))
        object.__setattr__(self, "_converted", converted)

    def of_core(self, stored: Sequence[int]) -> dict[str, int | float | None]:
        """Map names to reported values for the fields of the C struct, in their order."""
        found: dict[str, int | float | None] = dict(zip(self._core_names, stored, strict=True))
        for counter in self._converted:
            found[counter.name] = counter.value(int(found[counter.name] or 0))
        return found

    @property
    def struct_name(self) -> str:
        return f"um_{self.name}_counters"

    def counter(self, name: str) -> Counter:
        for counter in self.counters:
            if counter.name == name:
                return counter
        raise KeyError(f"no counter {name!r} in group {self.name!r}")

    def report(self, stored: Mapping[str, int]) -> dict[str, int | float | None]:
        """Map names to reported values for every counter of the group in `stored`."""
        return {c.name: c.value(stored[c.name]) for c in self.counters if c.name in stored}


@dataclass(frozen=True, slots=True)
class AbsentCounters:
    """Counters that UM has and this stack does not, with the reason."""

    names: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class CounterSchema:
    """The parsed and checked counters.toml."""

    version: int
    groups: tuple[CounterGroup, ...]
    absent: tuple[AbsentCounters, ...]

    def group(self, name: str) -> CounterGroup:
        for group in self.groups:
            if group.name == name:
                return group
        raise KeyError(f"no counter group {name!r}")


def _read_counter(group: str, table: Mapping[str, Any]) -> Counter:
    known = {"name", "kind", "unit", "scale", "origin", "home", "doc"}
    if unknown := set(table) - known:
        raise ValueError(f"counters.toml: {group}.{table.get('name')}: unknown fields {sorted(unknown)}")
    origin, home = table["origin"], table.get("home", "core")
    if origin not in ("um", "extension") or home not in ("core", "python"):
        raise ValueError(f"counters.toml: {group}.{table['name']}: bad origin or home")
    return Counter(
        group=group,
        name=table["name"],
        kind=CounterKind(table["kind"]),
        unit=table["unit"],
        scale=int(table.get("scale", 1)),
        extension=origin == "extension",
        in_core=home == "core",
        doc=table["doc"],
    )


def parse_schema(text: str) -> CounterSchema:
    """Parse a schema; ValueError or KeyError names the wrong entry."""
    import tomllib  # imported only when figures are first read

    document = tomllib.loads(text)
    version = int(document.pop("schema_version"))
    absent = tuple(AbsentCounters(tuple(a["names"]), a["reason"]) for a in document.pop("absent", []))
    groups = []
    for name, table in document.items():
        counters = tuple(_read_counter(name, entry) for entry in table["counters"])
        if len({counter.name for counter in counters}) != len(counters):
            raise ValueError(f"counters.toml: group {name} names a counter twice")
        groups.append(CounterGroup(name, table["doc"], counters))
    return CounterSchema(version, tuple(groups), absent)


@cache
def schema() -> CounterSchema:
    """Return the schema of this package."""
    from importlib import resources

    return parse_schema(
        resources.files("umstack.telemetry").joinpath("counters.toml").read_text(encoding="utf-8")
    )


def _core_groups(counter_schema: CounterSchema) -> list[CounterGroup]:
    """Return the groups with a C struct: those of which the core counts something."""
    return [group for group in counter_schema.groups if group.core_counters]


def _struct_lines(group: CounterGroup, comments: bool) -> list[str]:
    lines = [f"typedef struct {group.struct_name} {{"]
    for counter in group.core_counters:
        if comments:
            stored = counter.unit if counter.scale == 1 else f"{counter.unit} x {counter.scale}"
            lines.append(f"    /* {counter.kind}, {stored}: {counter.doc} */")
        lines.append(f"    uint64_t {counter.name};")
    lines.append(f"}} {group.struct_name};")
    return lines


def _reset_lines(group: CounterGroup) -> list[str]:
    lines = [
        f"static inline void {group.struct_name}_reset({group.struct_name} *counters)",
        "{",
        f"    *counters = ({group.struct_name}){{0}};",
    ]
    lines += [
        f"    counters->{c.name} = UINT64_MAX;" for c in group.core_counters if c.kind is CounterKind.MIN
    ]
    return [*lines, "}"]


_C_HEADER_TOP = """\
/* clang-format off */
/* Made from umstack/telemetry/counters.toml by `python -m umstack.telemetry.counters --c-header`; edit that file.
 *
 * Statistics of the stack (UM's names), one plain struct per kind of object, embedded in and owned by that
 * object. One thread at a time writes a field. Any thread may read at any time: a figure may be a moment
 * old and a set of them is not one instant. `_reset` is for the writer, at creation and on request: zero,
 * and all ones for minima. One file, because it is made from one schema. */
#ifndef UM_CORE_COUNTERS_H
#define UM_CORE_COUNTERS_H

#include <stdint.h>"""


def render_c_header(counter_schema: CounterSchema | None = None) -> str:
    """Return the text of ffi/core/foundation/counters.h."""
    lines = [_C_HEADER_TOP]
    for group in _core_groups(counter_schema or schema()):
        lines += ["", f"/* {group.doc} */", *_struct_lines(group, comments=True), "", *_reset_lines(group)]
    lines += ["", "#endif", "/* clang-format on */"]
    return "\n".join(lines) + "\n"


def render_cdef(counter_schema: CounterSchema | None = None) -> str:
    """Return the same structs for cffi's `cdef`."""
    lines: list[str] = []
    for group in _core_groups(counter_schema or schema()):
        lines += _struct_lines(group, comments=False)
    return "\n".join(lines) + "\n"


def render_markdown(counter_schema: CounterSchema | None = None) -> str:
    """Return the text of docs/counters.md."""
    counters = counter_schema or schema()
    lines = [
        "# Counters",
        "",
        "Made from `umstack/telemetry/counters.toml` by `python -m umstack.telemetry.counters --markdown`;",
        "edit that file.",
        "",
        "Names are UM's where UM has the counter; the others are marked *ours*. All figures count from the",
        "creation of their object, except snapshots, which are levels. A set of counters is not one instant.",
        "A minimum without a sample is absent. Means are moving averages: the newest sample weighs 1/8.",
    ]
    for group in counters.groups:
        lines += [
            "",
            f"## {group.name}",
            "",
            group.doc,
            "",
            "| counter | kind | unit | meaning |",
            "|---|---|---|---|",
        ]
        for c in group.counters:
            mark = " *(ours)*" if c.extension else ""
            lines.append(f"| `{c.name}`{mark} | {c.kind} | {c.unit} | {c.doc} |")
    lines += ["", "## UM counters without a counterpart", "", "| counters | why |", "|---|---|"]
    for absent in counters.absent:
        lines.append(f"| {', '.join(f'`{name}`' for name in absent.names)} | {absent.reason} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry of `python -m umstack.telemetry.counters`."""
    import argparse

    parser = argparse.ArgumentParser(
        prog="python -m umstack.telemetry.counters",
        description="Print what is made from umstack/telemetry/counters.toml.",
        epilog="example: python -m umstack.telemetry.counters --c-header > ffi/core/foundation/counters.h",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--c-header", dest="render", action="store_const", const=render_c_header)
    what.add_argument("--cdef", dest="render", action="store_const", const=render_cdef)
    what.add_argument("--markdown", dest="render", action="store_const", const=render_markdown)
    sys.stdout.write(parser.parse_args(arguments).render())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
