"""Checks a whole configuration text: wrong or unsupported lines, then contradictory or unwise relations of options.

Also lists the options whose values in force differ between two configurations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from umstack.config.configuration import OPTIONS, Config, Setting, lines_of, read_line
from umstack.config.context_options import ContextOptions
from umstack.config.option import Option, shown
from umstack.config.relations import lint_datagram_size
from umstack.errors import OptionAbsent, OptionError


class FindingKind(StrEnum):
    """Severity of a finding. With any but `warning`, no context can be made from the configuration."""

    WRONG = "wrong"
    """The line cannot be read, or the option does not exist or has a wrong value."""
    ABSENT = "absent"
    """Ultra Messaging has the option, this stack does not."""
    CONTRADICTION = "contradiction"
    """Two options exclude each other."""
    WARNING = "warning"
    """A relation between options that is unwise."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `line` counts from 1; 0: no particular line."""

    kind: FindingKind
    line: int
    message: str
    hint: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InForce:
    """One option as it is in force. `origin` is a place ("um.cfg:12"), "argument" or "default"."""

    option: Option
    value: str
    origin: str

    @property
    def default(self) -> str:
        """The default as text of a configuration file."""
        return shown(self.option.spec, self.option.default)


def examine(text: str, file: str = "<text>") -> tuple[Config, list[Finding]]:
    """Read configuration `text` without stopping at the first error.

    Returns the configuration from the valid lines, and the findings: those on lines first, then those on relations.
    """
    settings: list[Setting] = []
    findings: list[Finding] = []
    for number, line in lines_of(text):
        try:
            setting = read_line(line, f"{file}:{number}")
        except OptionError as error:
            kind = FindingKind.ABSENT if isinstance(error, OptionAbsent) else FindingKind.WRONG
            findings.append(Finding(kind, number, error.message, error.hint))
        else:
            settings += [setting] if setting is not None else []
    config = Config({(setting.option.scope, setting.option.name): setting for setting in settings})
    contradictions = list(_contradictions(config))
    findings += contradictions
    if not contradictions:
        findings += [
            Finding(FindingKind.WARNING, _line_of(config, one.options), one.message, "", one.options)
            for one in config.lint()
        ]
    return config, findings


def examine_sizes(config: Config, options: ContextOptions, interface: str, mtu_bytes: int) -> list[Finding]:
    """Return the findings on datagram sizes for an interface, as a context on it would report them.

    `options` are the context options of `config`.
    """
    try:
        one = lint_datagram_size(options, interface, mtu_bytes)
    except OptionError as error:
        return [Finding(FindingKind.CONTRADICTION, 0, error.message, error.hint)]
    if one is None:
        return []
    return [Finding(FindingKind.WARNING, _line_of(config, one.options), one.message, "", one.options)]


def in_force(config: Config) -> list[InForce]:
    """Return every option with its value under `config`, in the order of docs/options.md."""
    found = []
    for scope, table in OPTIONS.items():
        for name, option in table.items():
            setting = config.get(scope, name)
            found.append(
                InForce(option, shown(option.spec, option.default), "default")
                if setting is None
                else InForce(option, setting.text, setting.origin)
            )
    return found


def differences(before: Config, after: Config) -> list[tuple[InForce, InForce]]:
    """Return the options whose values in force differ."""
    return [
        (old, new)
        for old, new in zip(in_force(before), in_force(after), strict=True)
        if old.value != new.value
    ]


def _contradictions(config: Config) -> Iterator[Finding]:
    checks: tuple[Callable[[], object], ...] = (
        config.context_options,
        config.source_options,
        config.receiver_options,
        config.wildcard_receiver_options,
    )
    for check in checks:
        try:
            check()
        except OptionError as error:
            yield Finding(FindingKind.CONTRADICTION, 0, error.message, error.hint)


def _line_of(config: Config, options: tuple[str, ...]) -> int:
    """Return the last line that set one of the options; 0 if all have their defaults."""
    lines = [
        int(setting.origin.rpartition(":")[2])
        for setting in config.settings()
        if setting.option.name in options
    ]
    return max(lines, default=0)
