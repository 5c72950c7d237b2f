"""The options of a wildcard receiver, beside the receiver options that its receivers have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from umstack.config.option import Kind, Scope, option


@dataclass(frozen=True, slots=True)
class WildcardReceiverOptions:
    """Options of scope `wildcard_receiver`, as Config.wildcard_receiver_options() makes them."""

    SCOPE: ClassVar[Scope] = Scope.WILDCARD_RECEIVER

    resolver_query_minimum_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=50,
        minimum=1,
        maximum=3_600_000,
        zero="no wildcard queries",
        doc="First interval of wildcard queries; it doubles.",
    )
    resolver_query_maximum_interval_ns: int = option(
        Kind.MILLISECONDS, um=1000, minimum=1, maximum=3_600_000, doc="Longest interval of wildcard queries."
    )
    resolver_query_minimum_duration_ns: int = option(
        Kind.SECONDS, um=60, maximum=10_000_000, zero="forever", doc="How long to send wildcard queries."
    )
    resolver_no_source_linger_timeout_ns: int = option(
        Kind.MILLISECONDS,
        um=1000,
        maximum=86_400_000,
        doc="A topic whose last source has ended is still received for this long, in case a source returns.",
    )
    resolution_no_source_notification_threshold: int = option(
        Kind.INTEGER,
        um=10,
        maximum=2**31 - 1,
        zero="off",
        doc="A NoSource event after this many wildcard queries without a matching topic, and again after each "
        "further multiple.",
    )
    wildcard_maximum_topics: int = option(
        Kind.INTEGER,
        ours=16384,
        minimum=1,
        maximum=10_000_000,
        doc="Maximum number of topics that a wildcard receiver receives at once.",
    )
