"""Configuration: the option table, UM-style text, and the typed options made from them."""

from umstack.config.configuration import Config, read_text
from umstack.config.context_options import RESOLVER_DAEMON_PORT, ContextOptions
from umstack.config.event_queue_options import EventQueueOptions
from umstack.config.examination import (
    Finding,
    FindingKind,
    InForce,
    differences,
    examine,
    examine_sizes,
    in_force,
)
from umstack.config.option import UNSET_INTERFACE, Kind, Option, OptionValue, Scope, StoredValue
from umstack.config.receiver_options import ReceiverOptions
from umstack.config.relations import LintWarning, lint, lint_datagram_size, lint_load
from umstack.config.setting import OPTIONS, Setting, find_option
from umstack.config.source_options import SourceOptions
from umstack.config.wildcard_receiver_options import WildcardReceiverOptions

__all__ = [
    "OPTIONS",
    "RESOLVER_DAEMON_PORT",
    "UNSET_INTERFACE",
    "Config",
    "ContextOptions",
    "EventQueueOptions",
    "Finding",
    "FindingKind",
    "InForce",
    "Kind",
    "LintWarning",
    "Option",
    "OptionValue",
    "ReceiverOptions",
    "Scope",
    "Setting",
    "SourceOptions",
    "StoredValue",
    "WildcardReceiverOptions",
    "differences",
    "examine",
    "examine_sizes",
    "find_option",
    "in_force",
    "lint",
    "lint_datagram_size",
    "lint_load",
    "read_text",
]
