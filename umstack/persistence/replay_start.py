"""ReplayStart: the first message that a reader wants from a Store, by number or by time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from umstack.errors import InvalidArgument
from umstack.store.wire import ConfigurationValue, decode_number

_SQN_NAME, _TIME_NAME = "umstack_start_sqn", "umstack_start_time_ns"
_SPACE = 1 << 32


@dataclass(frozen=True, slots=True)
class ReplayStart:
    """The first message of a replay, in each source of the topic."""

    sqn: int | None = None
    """Its number; None: by time."""
    time_ns: int = 0
    """The first message that the Store received at or after this time, in nanoseconds since 1970."""

    def values(self) -> tuple[ConfigurationValue, ...]:
        """Return the start as values of a registration, which other implementations ignore."""
        if self.sqn is not None:
            return (ConfigurationValue(_SQN_NAME, str(self.sqn)),)
        return (ConfigurationValue(_TIME_NAME, str(self.time_ns)),)


def start_of(values: Iterable[ConfigurationValue]) -> ReplayStart | None:
    """Return the start in the values of a registration, or None. Raises MalformedMessage."""
    by_name = {value.name: value.value for value in values}
    if _SQN_NAME in by_name:
        return ReplayStart(sqn=decode_number(_SQN_NAME, by_name[_SQN_NAME]))
    if _TIME_NAME in by_name:
        return ReplayStart(time_ns=decode_number(_TIME_NAME, by_name[_TIME_NAME]))
    return None


def replay_start(wanted: int | datetime | str) -> ReplayStart:
    """Return the start that an application or a command names.

    Args:
        wanted: A sequence number, or a time; as text: digits, or a time as in ISO 8601, such as 2026-11-26T09:30. A
            time without a zone is local time.

    Raises:
        InvalidArgument: The number is out of range, or the text is neither.

    Example:
        ```python
        from umstack.persistence.replay_start import replay_start

        assert replay_start("1000") == replay_start(1000)
        assert replay_start("2026-11-26T09:30:00+00:00").time_ns == 1795685400 * 10**9
        ```
    """
    if isinstance(wanted, str) and not (wanted.isascii() and wanted.isdigit()):
        try:
            wanted = datetime.fromisoformat(wanted)
        except ValueError:
            raise InvalidArgument(
                f"{wanted!r} is neither a sequence number nor a time",
                hint="write digits, or a time such as 2026-11-26T09:30",
            ) from None
    if isinstance(wanted, datetime):
        return ReplayStart(time_ns=max(0, int(wanted.timestamp() * 1_000_000) * 1000))
    number = int(wanted)
    if not 0 <= number < _SPACE:
        raise InvalidArgument(
            f"start {number} is not a sequence number", hint="sequence numbers have 32 bits"
        )
    return ReplayStart(sqn=number)


__all__ = ["ReplayStart", "replay_start", "start_of"]
