"""The Stores that keep what `umstack send` publishes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from umstack._engine.endpoint import Endpoint
from umstack.cli.recv_stored import converted
from umstack.context import Context
from umstack.persistence.advertised import store_endpoint
from umstack.persistence.session_ids import session_id_of
from umstack.persistent_source import PersistentSource
from umstack.source import Source

Command = TypeVar("Command", bound=Callable[..., Any])


def storing_options(command: Command) -> Command:
    """Add --store and --session-id."""
    stores = click.option(
        "--store", multiple=True, metavar="ADDRESS:PORT", callback=converted(store_endpoint),
        help="Let this Store keep the messages; repeat it for more Stores. End once a majority has all of them.",
    )  # fmt: skip
    session = click.option(
        "--session-id", metavar="ID", callback=converted(session_id_of),
        help="With --store: number or name of this publisher. A later run with the same one continues its numbering.",
    )  # fmt: skip
    return stores(session(command))


@dataclass(frozen=True, slots=True)
class Storing:
    """The Stores of the source, and how it is known there."""

    stores: tuple[Endpoint, ...]
    session_id: int | None

    def check(self, *, is_hot_failover: bool) -> None:
        """Raise click.UsageError for options that exclude each other."""
        if bool(self.stores) != (self.session_id is not None):
            raise click.UsageError("--store needs a --session-id, and --session-id needs a --store")
        if self.stores and is_hot_failover:
            raise click.UsageError("--store cannot be used with --hot-failover")

    def open(self, context: Context, topic: str) -> Source | PersistentSource:
        """Make the source. Raises NotConnected if too few Stores accept it."""
        if self.session_id is None:
            return context.source(topic)
        return context.source(topic, store=self.stores, session_id=self.session_id)


__all__ = ["Storing", "storing_options"]
