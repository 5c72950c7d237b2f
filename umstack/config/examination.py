"""Checks a whole configuration text: wrong or unsupported lines, then contradictory or unwise relations of options.

Also lists the options whose values in force differ between two configurations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from umstack.config.configuration import Config, lines_of, read_line, xml_config
from umstack.config.context_options import ContextOptions
from umstack.config.option import Option, shown
from umstack.config.relations import lint_datagram_size
from umstack.config.setting import OPTIONS, Setting
from umstack.config.xml_configuration import (
    NO_APPLICATION,
    NO_APPLICATION_HINT,
    Content,
    XmlContext,
    XmlFile,
    read_option,
)
from umstack.config.xml_document import Element, XmlError, is_xml
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
    if is_xml(text):
        return _examine_xml(text, file)
    settings: list[Setting] = []
    findings: list[Finding] = []
    for number, line in lines_of(text):
        try:
            setting = read_line(line, f"{file}:{number}")
        except OptionError as error:
            findings.append(_fault(error, number))
        else:
            settings += [setting] if setting is not None else []
    config = Config({(setting.option.scope, setting.option.name): setting for setting in settings})
    return config, findings + _relations(config)


def _fault(error: OptionError, line: int) -> Finding:
    kind = FindingKind.ABSENT if isinstance(error, OptionAbsent) else FindingKind.WRONG
    return Finding(kind, line, error.message, error.hint)


def _relations(config: Config) -> list[Finding]:
    contradictions = list(_contradictions(config))
    return contradictions or [
        Finding(FindingKind.WARNING, _line_of(config, one.options), one.message, "", one.options)
        for one in config.lint()
    ]


def _examine_xml(text: str, file: str) -> tuple[Config, list[Finding]]:
    """The same for an XML document: each option once, then the relations in each application and context.

    Returns the configuration of the first one.
    """
    try:
        document = XmlFile(text, file)
    except XmlError as error:
        return Config(), [_fault(error, error.line)]
    found = []
    for options, option in list(document.options()):
        try:
            read_option(options, option, file)
        except XmlError as error:
            found.append(_fault(error, error.line))
            # Relations are those of the valid options.
            options.children = [one for one in options.children if one is not option]
    configs = []
    for application in document.applications:
        contexts: list[Element | None] = [*document.contexts(application)]
        for context in contexts or [None]:
            try:
                read = document.read(application, context)
            except XmlError as error:
                found.append(_fault(error, error.line))
                continue
            configs.append(xml_config(read))
            found += _named(_relations_with_topics(read), application, context)
    if not document.applications:
        found.append(Finding(FindingKind.WRONG, 1, NO_APPLICATION, NO_APPLICATION_HINT))
    return (configs or [Config()])[0], list(dict.fromkeys(found))


def _relations_with_topics(context: XmlContext) -> list[Finding]:
    found = _relations(xml_config(context))
    for rules in context.topics.values():
        for rule in rules.rules:
            content = Content() + context.content + rules.content + rule.content
            of_rule = _relations(xml_config(XmlContext(content, {})))
            found += [one for one in of_rule if one not in found]
    return found


def _named(findings: Iterable[Finding], application: Element, context: Element | None) -> Iterator[Finding]:
    """Add the application to findings that have no line."""
    place = f"{application}, {context}" if context is not None else str(application)
    for one in findings:
        yield one if one.line else replace(one, line=application.line, message=f"{place}: {one.message}")


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
