"""The option table, and one option that was set in a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from umstack.config.absent_options import ABSENT_IN_SCOPES, ABSENT_SCOPES, why_absent
from umstack.config.context_options import ContextOptions
from umstack.config.event_queue_options import EventQueueOptions
from umstack.config.option import Option, Scope, StoredValue, options_of, shown
from umstack.config.receiver_options import ReceiverOptions
from umstack.config.source_options import SourceOptions
from umstack.config.wildcard_receiver_options import WildcardReceiverOptions
from umstack.errors import OptionAbsent, OptionError

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
    reason = ABSENT_IN_SCOPES.get((scope.value, key))
    if reason is not None:
        raise OptionAbsent(f"{scope} option {key} does not exist here", hint=f"remove it: {reason}")
    for other, table in OPTIONS.items():
        if key in table:
            raise OptionError(f"{key} is not a {scope} option", hint=f"its scope is {other}: set it there")
    if reason := why_absent(key):
        raise OptionAbsent(f"{scope} option {key} does not exist here", hint=f"remove it: {reason}")
    import difflib

    close = difflib.get_close_matches(key, options, n=1, cutoff=0.75)
    hint = f"did you mean {close[0]}? docs/options.md lists them all" if close else None
    raise OptionError(f"there is no {scope} option {name!r}", hint=hint)


def find_scope(word: str) -> Scope:
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
