"""Config: what a user has set, from UM-style text and from keyword arguments, turned into typed options.

A text is lines of `scope option value`. `#` starts a comment, quotes hold a value together, scopes and option
names may be in any case, and a later line wins over an earlier one.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from umstack.config.absent_options import ABSENT_SCOPES, why_absent
from umstack.config.context_options import ContextOptions
from umstack.config.event_queue_options import EventQueueOptions
from umstack.config.option import Option, OptionValue, Scope, StoredValue, options_of, shown
from umstack.config.receiver_options import ReceiverOptions
from umstack.config.relations import (
    LintWarning,
    check_context,
    check_receiver,
    check_source,
    check_wildcard_receiver,
    lint,
)
from umstack.config.source_options import SourceOptions
from umstack.config.wildcard_receiver_options import WildcardReceiverOptions
from umstack.errors import ConfigError, OptionAbsent, OptionError

if TYPE_CHECKING:
    from umstack.config.keywords import (
        ContextOptionKeywords,
        EventQueueKeywords,
        ReceiverKeywords,
        SourceKeywords,
        WildcardKeywords,
    )

OPTION_HOLDERS: Mapping[Scope, type[Any]] = {
    Scope.CONTEXT: ContextOptions,
    Scope.SOURCE: SourceOptions,
    Scope.RECEIVER: ReceiverOptions,
    Scope.WILDCARD_RECEIVER: WildcardReceiverOptions,
    Scope.EVENT_QUEUE: EventQueueOptions,
}

OPTIONS: Mapping[Scope, Mapping[str, Option]] = {
    scope: options_of(holder) for scope, holder in OPTION_HOLDERS.items()
}
"""The option table: every option by scope and name."""

_KNOW_WHAT_IS_SET: frozenset[type[Any]] = frozenset({SourceOptions, ReceiverOptions})
_Options = TypeVar(
    "_Options", ContextOptions, SourceOptions, ReceiverOptions, WildcardReceiverOptions, EventQueueOptions
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One option that was set: its stored value, and where it was set ("um.cfg:12", or "argument")."""

    option: Option
    value: StoredValue
    origin: str

    @property
    def text(self) -> str:
        """The value as text of a configuration file."""
        return shown(self.option.spec, self.value)


def find_option(scope: Scope, name: str) -> Option:
    """Return the option with this name, in any case; OptionError suggests a name if there is none."""
    key = name.lower()
    options = OPTIONS[scope]
    if key in options:
        return options[key]
    for other, table in OPTIONS.items():
        if key in table:
            raise OptionError(f"{key} is not a {scope} option", hint=f"its scope is {other}: set it there")
    if reason := why_absent(key):
        raise OptionAbsent(f"{scope} option {key} does not exist here", hint=f"remove it: {reason}")
    import difflib

    close = difflib.get_close_matches(key, options, n=1, cutoff=0.75)
    hint = f"did you mean {close[0]}? docs/options.md lists them all" if close else None
    raise OptionError(f"there is no {scope} option {name!r}", hint=hint)


def _find_scope(word: str) -> Scope:
    key = word.lower()
    try:
        return Scope(key)
    except ValueError:
        pass
    if key in ABSENT_SCOPES:
        raise OptionAbsent(f"scope {key} does not exist here", hint=f"remove the line: {ABSENT_SCOPES[key]}")
    import difflib

    close = difflib.get_close_matches(key, list(Scope), n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise OptionError(f"there is no scope {word!r}", hint=f"{hint}scopes are {', '.join(Scope)}")


def lines_of(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a configuration text with their numbers from 1; only the first line of an XML document."""
    if text.lstrip().startswith("<"):
        yield 1, "<"
        return
    for number, line in enumerate(text.split("\n"), start=1):
        yield number, line.rstrip("\r")


def read_line(line: str, origin: str) -> Setting | None:
    """Return the setting of a line; None for a comment. Raises OptionError for a wrong line."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        raise OptionError(f"cannot read the line: {error}".lower(), hint="close the quote") from None
    if not words:
        return None
    if words[0].startswith("<"):
        raise OptionError(
            "XML configurations are not read",
            hint='write <option default-value="5" name="delay"/> of <options type="source"> as: source delay 5',
        )
    if len(words) != 3:
        raise OptionError(
            f"a line is `scope option value`, here are {len(words)} words",
            hint='put a value with blanks in quotes: source transport_session_name "a b"',
        )
    option = find_option(_find_scope(words[0]), words[1])
    return Setting(option, option.read(words[2]), origin)


def read_text(path: str | Path) -> str:
    """Return the text of a configuration file; OptionError if it cannot be read or is not UTF-8."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise OptionError(
            f"cannot read the configuration {path}: {error.strerror}", hint="name a file that can be read"
        ) from error
    except UnicodeDecodeError:
        raise OptionError(f"the configuration {path} is not text", hint="name a text file in UTF-8") from None


class Config:
    """The options that were set, for all scopes. Immutable; other options have their defaults.

    load() and parse() read a configuration, with_options() sets options by name.

    Args:
        settings: Options by scope and name; None: nothing is set.

    Example:
        ```python
        config = umstack.Config.parse("source transport_tcp_port 14371")
        ```
    """

    __slots__ = ("_settings",)

    def __init__(self, settings: Mapping[tuple[Scope, str], Setting] | None = None) -> None:
        self._settings = dict(settings or {})

    @classmethod
    def load(cls, path: str | Path) -> Config:
        """Read a configuration file.

        Args:
            path: The file, a text in UTF-8.

        Returns:
            The configuration.

        Raises:
            OptionError: The file cannot be read or is not UTF-8.
            ConfigError: A line is not `scope option value`, or sets an unknown option or a wrong value.

        Example:
            ```python
            config = umstack.Config.load("umstack.cfg")
            ```
        """
        return cls.parse(read_text(path), file=str(path))

    @classmethod
    def parse(cls, text: str, file: str = "<text>") -> Config:
        """Read a configuration text.

        Args:
            text: Lines of `scope option value`; `#` starts a comment.
            file: Name of the text in errors.

        Returns:
            The configuration.

        Raises:
            ConfigError: A line is wrong; the error names it.

        Example:
            ```python
            config = umstack.Config.parse("receiver ordered_delivery 0")
            ```
        """
        settings: dict[tuple[Scope, str], Setting] = {}
        for number, line in lines_of(text):
            try:
                setting = read_line(line, f"{file}:{number}")
            except OptionError as error:
                raise ConfigError(error.message, file=file, line=number, hint=error.hint) from None
            if setting is not None:
                settings[setting.option.scope, setting.option.name] = setting
        return cls(settings)

    def merged(self, other: Config) -> Config:
        """Merge two configurations.

        Args:
            other: Wins if both set an option.

        Returns:
            The merged configuration.

        Example:
            ```python
            config = umstack.Config().merged(umstack.Config.parse("receiver ordered_delivery 0"))
            ```
        """
        return Config({**self._settings, **other._settings})

    def with_options(self, scope: Scope, overrides: Mapping[str, OptionValue]) -> Config:
        """Return a copy with further options of one scope set.

        Args:
            scope: Scope of the options.
            overrides: Values by option name, in the option's unit.

        Returns:
            The new configuration.

        Raises:
            OptionError: An option does not exist in the scope, or has a wrong value.

        Example:
            ```python
            config = umstack.Config().with_options(Scope.SOURCE, {"late_join": 1})
            ```
        """
        settings = dict(self._settings)
        for name, value in overrides.items():
            option = find_option(scope, name)
            settings[scope, option.name] = Setting(option, option.read(value), "argument")
        return Config(settings)

    def settings(self) -> Iterator[Setting]:
        """Iterate over the settings in the order in which they were made.

        Returns:
            An iterator of settings.

        Example:
            ```python
            print([setting.text for setting in umstack.Config().settings()])
            ```
        """
        yield from self._settings.values()

    def get(self, scope: Scope, name: str) -> Setting | None:
        """Look up the setting of an option.

        Args:
            scope: Scope of the option.
            name: Name of the option, in any case.

        Returns:
            The setting, or None if the option has its default.

        Raises:
            OptionError: The scope has no such option.

        Example:
            ```python
            print(umstack.Config().get(Scope.SOURCE, "late_join"))
            ```
        """
        return self._settings.get((scope, find_option(scope, name).name))

    def context_options(self, **overrides: Unpack[ContextOptionKeywords]) -> ContextOptions:
        """Build typed context options.

        Args:
            **overrides: Values by option name; they override the configuration.

        Returns:
            The options in force.

        Raises:
            OptionError: An override is wrong, or two options contradict each other.

        Example:
            ```python
            print(umstack.Config().context_options().link)
            ```
        """
        options = self._build(ContextOptions, overrides)
        check_context(options)
        return options

    def source_options(self, **overrides: Unpack[SourceKeywords]) -> SourceOptions:
        """Build typed source options.

        Args:
            **overrides: Values by option name; they override the configuration.

        Returns:
            The options in force.

        Raises:
            OptionError: An override is wrong, or two options contradict each other.

        Example:
            ```python
            print(umstack.Config().source_options(late_join=1).late_join)
            ```
        """
        options = self._build(SourceOptions, overrides)
        check_source(options)
        return options

    def receiver_options(self, **overrides: Unpack[ReceiverKeywords]) -> ReceiverOptions:
        """Build typed receiver options.

        Args:
            **overrides: Values by option name; they override the configuration.

        Returns:
            The options in force.

        Raises:
            OptionError: An override is wrong, or two options contradict each other.

        Example:
            ```python
            print(umstack.Config().receiver_options().ordered_delivery)
            ```
        """
        options = self._build(ReceiverOptions, overrides)
        check_receiver(options)
        return options

    def wildcard_receiver_options(self, **overrides: Unpack[WildcardKeywords]) -> WildcardReceiverOptions:
        """Build typed options of scope wildcard_receiver.

        Args:
            **overrides: Values by option name; they override the configuration.

        Returns:
            The options in force.

        Raises:
            OptionError: An override is wrong, or two options contradict each other.

        Example:
            ```python
            print(umstack.Config().wildcard_receiver_options().wildcard_maximum_topics)
            ```
        """
        options = self._build(WildcardReceiverOptions, overrides)
        check_wildcard_receiver(options)
        return options

    def event_queue_options(self, **overrides: Unpack[EventQueueKeywords]) -> EventQueueOptions:
        """Build typed options of scope event_queue.

        Args:
            **overrides: Values by option name; they override the configuration.

        Returns:
            The options in force.

        Raises:
            OptionError: An override is wrong.

        Example:
            ```python
            print(umstack.Config().event_queue_options())
            ```
        """
        return self._build(EventQueueOptions, overrides)

    def lint(self) -> list[LintWarning]:
        """Check UM's advice on relations between options.

        Returns:
            One warning per relation that the configuration violates.

        Raises:
            OptionError: Two options contradict each other.

        Example:
            ```python
            for warning in umstack.Config().lint():
                print(warning)
            ```
        """
        return lint(self.context_options(), self.source_options(), self.receiver_options())

    def _build(self, holder: type[_Options], overrides: Mapping[str, Any]) -> _Options:
        config = self.with_options(holder.SCOPE, overrides) if overrides else self
        settings = [one for one in config._settings.values() if one.option.scope is holder.SCOPE]
        chosen: dict[str, Any] = {setting.option.field: setting.value for setting in settings}
        if holder in _KNOW_WHAT_IS_SET:
            chosen["given"] = frozenset(setting.option.name for setting in settings)
        return holder(**chosen)

    def __repr__(self) -> str:
        lines = (f"{s.option.scope} {s.option.name} {s.text}" for s in self.settings())
        return f"Config({'; '.join(lines)})"
