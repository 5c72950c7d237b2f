"""Multicast groups that select sources, in the user's notation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address

from umstack.capture.writing.packet_filter import GROUP_HINT, AddressRange, parse_group
from umstack.errors import OptionError


@dataclass(frozen=True, slots=True)
class GroupSet:
    """Ranges of multicast groups, including both ends."""

    ranges: tuple[AddressRange, ...]

    @classmethod
    def of(cls, texts: Sequence[str]) -> GroupSet:
        """Parse groups; a text contains one or several, separated by ","."""
        return cls(tuple(_range(one.strip()) for text in texts for one in text.split(",")))

    def __contains__(self, group: str) -> bool:
        address = IPv4Address(group)
        return any(low <= address <= high for low, high in self.ranges)


def _range(text: str) -> AddressRange:
    low, high = parse_group(text)
    if not (low.is_multicast and high.is_multicast):
        raise OptionError(f"{text} is not a multicast group (224.0.0.0/4)", hint=GROUP_HINT)
    return low, high
