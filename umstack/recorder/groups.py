"""Multicast groups that select sources, in the user's notation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address

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
        address = ip_address(group)
        return any(
            low.version == address.version and int(low) <= int(address) <= int(high)
            for low, high in self.ranges
        )


def _range(text: str) -> AddressRange:
    ends = parse_group(text)
    if not all(one.is_multicast for one in ends):
        raise OptionError(f"{text} is not a multicast group (224.0.0.0/4, ff00::/8)", hint=GROUP_HINT)
    return ends
