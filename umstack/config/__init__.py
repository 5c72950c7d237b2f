"""Configuration: the option table, UM-style text, and the typed options made from them."""

from umstack.config.configuration import OPTIONS, Config, Setting, find_option
from umstack.config.context_options import ContextOptions
from umstack.config.option import Kind, Option, OptionValue, Scope, StoredValue
from umstack.config.receiver_options import ReceiverOptions
from umstack.config.relations import LintWarning, lint, lint_load
from umstack.config.source_options import SourceOptions

__all__ = [
    "OPTIONS",
    "Config",
    "ContextOptions",
    "Kind",
    "LintWarning",
    "Option",
    "OptionValue",
    "ReceiverOptions",
    "Scope",
    "Setting",
    "SourceOptions",
    "StoredValue",
    "find_option",
    "lint",
    "lint_load",
]
