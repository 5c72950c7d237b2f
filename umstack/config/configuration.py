"""Config: what a user has set, from UM-style text and from keyword arguments, turned into typed options.

A text is lines of `scope option value`. `#` starts a comment, quotes hold a value together, scopes and option
names may be in any case, and a later line wins over an earlier one. A text that starts with `<` is Ultra
Messaging's XML (`umstack.config.xml_configuration`).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from umstack.config.context_options import ContextOptions
from umstack.config.event_queue_options import EventQueueOptions
from umstack.config.option import OptionValue, Scope
from umstack.config.receiver_options import ReceiverOptions
from umstack.config.relations import (
    LintWarning,
    check_context,
    check_receiver,
    check_source,
    check_wildcard_receiver,
    lint,
)
from umstack.config.setting import Setting, find_option, find_scope
from umstack.config.source_options import SourceOptions
from umstack.config.wildcard_receiver_options import WildcardReceiverOptions
from umstack.config.xml_configuration import Limit, TopicRules, XmlContext, XmlFile
from umstack.config.xml_document import XmlError, is_xml
from umstack.errors import ConfigError, OptionError

if TYPE_CHECKING:
    from umstack.config.keywords import (
        ContextOptionKeywords,
        EventQueueKeywords,
        ReceiverKeywords,
        SourceKeywords,
        WildcardKeywords,
    )

_KNOW_WHAT_IS_SET: frozenset[type[Any]] = frozenset({SourceOptions, ReceiverOptions})
ARGUMENT = "argument"
"""Origin of an option set by name."""
_Options = TypeVar(
    "_Options", ContextOptions, SourceOptions, ReceiverOptions, WildcardReceiverOptions, EventQueueOptions
)


def lines_of(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a configuration text with their numbers from 1."""
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
    if len(words) != 3:
        raise OptionError(
            f"a line is `scope option value`, here are {len(words)} words",
            hint='put a value with blanks in quotes: source transport_session_name "a b"',
        )
    option = find_option(find_scope(words[0]), words[1])
    return Setting(option, option.read(words[2]), origin)


def _by_key(settings: Iterable[Setting]) -> dict[tuple[Scope, str], Setting]:
    return {(one.option.scope, one.option.name): one for one in settings}


def _application_of(path: str | Path, application: str | None) -> tuple[str | Path, str | None]:
    """Return the file and the application of `FILE#APPLICATION`."""
    file, mark, name = str(path).rpartition("#")
    if not mark or application is not None or Path(path).exists():
        return path, application
    return file, name


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

    __slots__ = ("_limits", "_settings", "_topics")

    def __init__(self, settings: Mapping[tuple[Scope, str], Setting] | None = None) -> None:
        self._settings = dict(settings or {})
        self._limits: tuple[Limit, ...] = ()
        self._topics: Mapping[Scope, TopicRules] = {}

    @classmethod
    def load(cls, path: str | Path, *, application: str | None = None, context: str | None = None) -> Config:
        """Read a configuration file: lines of options, or Ultra Messaging's XML.

        Args:
            path: The file, a text in UTF-8. `FILE.xml#NAME` chooses an application, too.
            application: Name of the application in an XML file; None: the one without a name, or the only one.
            context: Name of its context; None: the one without a name, or the only one.

        Returns:
            The configuration.

        Raises:
            OptionError: The file cannot be read or is not UTF-8.
            ConfigError: A line is not `scope option value`, or sets an unknown option or a wrong value; or the XML file
                does not have the application or context.

        Example:
            ```python
            config = umstack.Config.load("umstack.cfg")
            ```
        """
        path, application = _application_of(path, application)
        return cls.parse(read_text(path), str(path), application=application, context=context)

    @classmethod
    def parse(
        cls, text: str, file: str = "<text>", *, application: str | None = None, context: str | None = None
    ) -> Config:
        """Read a configuration text.

        Args:
            text: Lines of `scope option value`, where `#` starts a comment, or an XML document.
            file: Name of the text in errors.
            application: Name of the application in an XML document, as in load().
            context: Name of its context.

        Returns:
            The configuration.

        Raises:
            ConfigError: A line is wrong; the error names it.
            OptionError: An application is named, but the text is not an XML document.

        Example:
            ```python
            config = umstack.Config.parse("receiver ordered_delivery 0")
            ```
        """
        if is_xml(text):
            try:
                return xml_config(XmlFile(text, file).chosen(application, context))
            except XmlError as error:
                raise ConfigError(error.message, file=file, line=error.line, hint=error.hint) from None
        if application is not None or context is not None:
            raise OptionError(
                f"{file} has no applications", hint="only XML configurations have applications and contexts"
            )
        settings: dict[tuple[Scope, str], Setting] = {}
        for number, line in lines_of(text):
            try:
                setting = read_line(line, f"{file}:{number}")
            except OptionError as error:
                raise ConfigError(error.message, file=file, line=number, hint=error.hint) from None
            if setting is not None:
                settings[setting.option.scope, setting.option.name] = setting
        return cls(settings)

    def of_topic(self, scope: Scope, topic: str) -> Config:
        """Return the configuration for one topic: an XML document may have own options for it.

        Options set by name, as on the command line, win over those of the topic.

        Args:
            scope: `source`, `receiver` or `wildcard_receiver`.
            topic: Name of the topic; of a wildcard receiver the pattern.

        Returns:
            The configuration for it, without rules for topics.

        Raises:
            OptionError: The document denies the topic.

        Example:
            ```python
            config = umstack.Config().of_topic(Scope.SOURCE, "orders")
            ```
        """
        rules = self._topics.get(scope)
        if rules is None:
            return self
        content = rules.content_of(topic)
        argued = {key: one for key, one in self._settings.items() if one.origin == ARGUMENT}
        config = Config({**self._settings, **_by_key(content.settings), **argued})
        config._limits = self._limits + content.limits
        return config

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
        config = Config({**self._settings, **other._settings})
        config._limits = self._limits + other._limits
        config._topics = {**self._topics, **other._topics}
        return config

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
            settings[scope, option.name] = Setting(option, option.read(value), ARGUMENT)
        config = Config(settings)
        config._limits, config._topics = self._limits, self._topics
        return config

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
        for limit in self._limits:
            if limit.option.scope is holder.SCOPE:
                set_to = config._settings.get((holder.SCOPE, limit.option.name))
                limit.check(limit.option.default if set_to is None else set_to.value)
        chosen: dict[str, Any] = {setting.option.field: setting.value for setting in settings}
        if holder in _KNOW_WHAT_IS_SET:
            chosen["given"] = frozenset(setting.option.name for setting in settings)
        return holder(**chosen)

    def __repr__(self) -> str:
        lines = (f"{s.option.scope} {s.option.name} {s.text}" for s in self.settings())
        return f"Config({'; '.join(lines)})"


def xml_config(context: XmlContext) -> Config:
    """Return the configuration of a context of an XML document."""
    config = Config(_by_key(context.content.settings))
    config._limits, config._topics = context.content.limits, context.topics
    return config
