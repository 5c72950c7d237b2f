"""Renders umstack/config/keywords.py from the option table: `python -m umstack.config --keywords`."""

from __future__ import annotations

from umstack.config.option import Kind, Option, Scope
from umstack.config.setting import OPTIONS

_HEADER = '''\
"""Types of options as keyword arguments, for type checkers.

Generated from the option tables by `python -m umstack.config --keywords`; edit the tables instead.
"""

from __future__ import annotations

from typing import TypedDict

from umstack.config.option import OptionValue

'''
_TEXT_KINDS = (
    Kind.CHOICE,
    Kind.INTERFACE,
    Kind.IPV4_INTERFACE,
    Kind.ADDRESSES,
    Kind.MULTICAST_GROUP,
    Kind.TEXT,
)
_NAMED_BY_CONTEXT = ("link",)
"""Context options that are parameters of Context(); a type checker does not accept a name twice."""


def render_keywords() -> str:
    """Return the text of umstack/config/keywords.py."""
    context = OPTIONS[Scope.CONTEXT]
    others = [option for name, option in context.items() if name not in _NAMED_BY_CONTEXT]
    named = [context[name] for name in _NAMED_BY_CONTEXT]
    source, receiver, wildcard, queue = (
        list(OPTIONS[scope].values())
        for scope in (Scope.SOURCE, Scope.RECEIVER, Scope.WILDCARD_RECEIVER, Scope.EVENT_QUEUE)
    )
    classes = (
        _typed_dict("ContextKeywords", "TypedDict", "Context options of Context().", others),
        _typed_dict("ContextOptionKeywords", "ContextKeywords", "All context options.", named),
        _typed_dict("SourceKeywords", "TypedDict", "Source options.", source),
        _typed_dict("ReceiverKeywords", "TypedDict", "Receiver options.", receiver),
        _typed_dict("WildcardKeywords", "TypedDict", "Options of scope wildcard_receiver.", wildcard),
        _typed_dict("EventQueueKeywords", "TypedDict", "Options of scope event_queue.", queue),
        _typed_dict("QueueKeywords", "ReceiverKeywords, EventQueueKeywords", "Options of event_queue().", []),
        _typed_dict(
            "WildcardReceiverKeywords",
            "QueueKeywords, WildcardKeywords",
            "Options of wildcard_receiver().",
            [],
        ),
    )
    return _HEADER + "\n".join(classes)


def _typed_dict(name: str, bases: str, doc: str, options: list[Option]) -> str:
    fields = "".join(f"    {option.name}: {_type_of(option)}\n" for option in options)
    separator = "\n" if fields else ""
    return f'\nclass {name}({bases}, total=False):\n    """{doc}"""\n{separator}{fields}'


def _type_of(option: Option) -> str:
    return "str" if option.spec.kind in _TEXT_KINDS else "OptionValue"
