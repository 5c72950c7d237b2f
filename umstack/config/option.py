"""Defines an option: its kind, unit, range and defaults, and how a value is read and stored.

An option is one dataclass field of ContextOptions, SourceOptions or ReceiverOptions, made by `option()`. The
field's name is the option's name plus the unit it is kept in: durations in `_ns`, sizes in `_bytes`, rates in
`_bits_per_second` or `_naks_per_second`. So the three dataclasses are both the option table and the typed result
(W10).
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from umstack.errors import OptionError

OptionValue = str | int | float | Decimal
"""A value as the user writes it, in the option's unit."""

StoredValue = str | int
"""A stored value: nanoseconds, bytes, bits per second, 0/1 as bool, or text."""


class Scope(StrEnum):
    """The object an option belongs to."""

    CONTEXT = "context"
    SOURCE = "source"
    RECEIVER = "receiver"
    WILDCARD_RECEIVER = "wildcard_receiver"
    EVENT_QUEUE = "event_queue"


class Kind(StrEnum):
    """How a value is written. The value is the unit shown in the documentation."""

    INTEGER = "number"
    SWITCH = "0/1"
    MICROSECONDS = "us"
    MILLISECONDS = "ms"
    SECONDS = "s"
    BYTES = "bytes"
    BITS_PER_SECOND = "bit/s"
    NAKS_PER_SECOND = "NAKs/s"
    CHOICE = "name"
    MULTICAST_GROUP = "group"
    INTERFACE = "interface"
    IPV4_INTERFACE = "IPv4 interface"
    ADDRESSES = "addresses"
    TEXT = "text"


UNSET_INTERFACE = "0.0.0.0"
"""The value of an option that leaves the choice of an interface open."""


_SUFFIX = {
    Kind.MICROSECONDS: "_ns",
    Kind.MILLISECONDS: "_ns",
    Kind.SECONDS: "_ns",
    Kind.BYTES: "_bytes",
    Kind.BITS_PER_SECOND: "_bits_per_second",
    Kind.NAKS_PER_SECOND: "_naks_per_second",
}
_NS_PER_UNIT = {Kind.MICROSECONDS: 1_000, Kind.MILLISECONDS: 1_000_000, Kind.SECONDS: 1_000_000_000}
_INTERFACE_NAME = re.compile(r"(?!\d+\.\d+)[^\s/:\"']{1,15}")
_INTEGER = re.compile(r"[+-]?\d{1,20}")


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """The row of the option table without the name. Bounds are in the option's own unit."""

    kind: Kind
    um: OptionValue | None
    default: OptionValue
    reason: str
    minimum: OptionValue | None
    maximum: OptionValue | None
    choices: tuple[OptionValue, ...]
    zero: str
    doc: str


@dataclass(frozen=True, slots=True)
class Option:
    """One option: a named row of the table."""

    name: str
    scope: Scope
    field: str
    spec: OptionSpec

    @property
    def is_extension(self) -> bool:
        return self.spec.um is None

    @property
    def default(self) -> StoredValue:
        return convert(self.spec, self.spec.default)

    def read(self, value: OptionValue) -> StoredValue:
        """Return the stored form of `value`; OptionError names the option and its accepted values."""
        try:
            return convert(self.spec, value)
        except ValueError as error:
            raise OptionError(
                f"{self.scope} option {self.name}: {value!r} {error}", hint=self._advice()
            ) from None

    def _advice(self) -> str:
        unit = f" {self.spec.kind}" if self.spec.kind in _SUFFIX else ""
        advice = f"give {allowed_values(self.spec)}{unit}; the default is {self.spec.default}"
        # If Ultra Messaging has values that are not supported here, the error gives the reason.
        return f"{advice}: {self.spec.reason}" if self.spec.choices and self.spec.reason else advice


def option(
    kind: Kind,
    *,
    doc: str,
    um: OptionValue | None = None,
    ours: OptionValue | None = None,
    reason: str = "",
    minimum: OptionValue | None = None,
    maximum: OptionValue | None = None,
    choices: tuple[OptionValue, ...] = (),
    zero: str = "",
) -> Any:
    """Make a dataclass field for an option.

    `um` is UM's default, None for an extension; `ours` is ours where it differs, with the `reason`. `zero`
    is the meaning of a special value 0, which is then allowed below `minimum`.
    """
    default = um if ours is None else ours
    if default is None:
        raise TypeError("an option needs a default")
    spec = OptionSpec(kind, um, default, reason, minimum, maximum, choices, zero, doc)
    return field(default=convert(spec, default), metadata={"option": spec})


def convert(spec: OptionSpec, value: OptionValue) -> StoredValue:
    """Return the stored form of `value`; the text of a ValueError ends a sentence."""
    if spec.kind is Kind.CHOICE:
        return _choice(spec, value)
    if spec.kind in (Kind.TEXT, Kind.IPV4_INTERFACE):
        _refuse_ipv6(str(value))
    if spec.kind in (Kind.TEXT, Kind.ADDRESSES):
        return _text(value)
    if spec.kind in (Kind.INTERFACE, Kind.IPV4_INTERFACE):
        return _interface(value)
    if spec.kind is Kind.MULTICAST_GROUP:
        return _multicast_group(value)
    if spec.kind is Kind.SWITCH:
        return _switch(spec, value)
    number = _decimal(value) if spec.kind in _NS_PER_UNIT else Decimal(_integer(value))
    _check_range(spec, number)
    return int(number * _NS_PER_UNIT.get(spec.kind, 1))


def shown(spec: OptionSpec, stored: StoredValue) -> str:
    """Return `stored` as text of a configuration file."""
    if spec.kind in _NS_PER_UNIT:
        return f"{(Decimal(stored) / _NS_PER_UNIT[spec.kind]).normalize():f}"
    return str(int(stored)) if spec.kind is Kind.SWITCH else str(stored)


def allowed_values(spec: OptionSpec) -> str:
    """Describe the values that an option accepts."""
    if spec.choices:
        return " | ".join(str(choice) for choice in spec.choices)
    if spec.kind is Kind.SWITCH:
        return "0 | 1"
    if spec.kind is Kind.MULTICAST_GROUP:
        return "224.0.0.0..239.255.255.255, ff00::/8, or 0.0.0.0"
    if spec.kind is Kind.INTERFACE:
        return "a name (eth1), an address or a network (10.1.0.0/16, fd00:1::/64)"
    if spec.kind is Kind.IPV4_INTERFACE:
        return "a name (eth1), an IPv4 address or a network (10.1.0.0/16)"
    if spec.kind in (Kind.TEXT, Kind.ADDRESSES):
        return "a text"
    low = "0" if spec.minimum is None else str(spec.minimum)
    bounds = f"{low} or more" if spec.maximum is None else f"{low}..{spec.maximum}"
    return f"0 ({spec.zero}) or {bounds}" if spec.zero and low != "0" else bounds


def _interface(value: OptionValue) -> str:
    """Check the form only; whether the interface exists shows when the option is used."""
    text = str(_text(value)).strip()
    with contextlib.suppress(ValueError):
        ipaddress.ip_interface(text)
        return text
    if not _INTERFACE_NAME.fullmatch(text):
        raise ValueError("identifies no interface")
    return text


def _integer(value: OptionValue) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        return int(value)
    raise ValueError("is not a whole number")


def _decimal(value: OptionValue) -> Decimal:
    if isinstance(value, bool):
        raise ValueError("is not a number")
    try:
        number = Decimal(str(value).strip())
    except InvalidOperation:
        raise ValueError("is not a number") from None
    if not number.is_finite() or abs(number) > 10**12:
        raise ValueError("is not a number of sensible size")
    return number


def _check_range(spec: OptionSpec, number: Decimal) -> None:
    if spec.choices:
        if number not in {_decimal(choice) for choice in spec.choices}:
            raise ValueError("is not one of the values allowed")
        return
    if spec.zero and number == 0:
        return
    low = Decimal(0) if spec.minimum is None else _decimal(spec.minimum)
    if number < low:
        raise ValueError("is too small")
    if spec.maximum is not None and number > _decimal(spec.maximum):
        raise ValueError("is too large")


def _switch(spec: OptionSpec, value: OptionValue) -> bool:
    number = int(value) if isinstance(value, bool) else _integer(value)
    allowed = spec.choices or (0, 1)
    if number not in allowed:
        raise ValueError("is not one of the values allowed")
    return bool(number)


def _choice(spec: OptionSpec, value: OptionValue) -> str:
    name = str(value).strip().lower()
    written = {str(choice).replace("-", ""): str(choice) for choice in spec.choices}
    if name in spec.choices:
        return name
    if name.replace("-", "") not in written:  # UM writes LBT-RM and lbtrm
        raise ValueError("is not available here")
    return written[name.replace("-", "")]


def _text(value: OptionValue) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("is not a text")
    return value.strip()


def _refuse_ipv6(text: str) -> None:
    """Refuse a text that contains an IPv6 address or network: only LBT-RM is available over IPv6."""
    for part in re.split(r"[,;\s]+|->", text):
        bracketed = re.fullmatch(r"\[(.*)\](?::\d+)?", part)
        try:
            address = ipaddress.IPv6Interface(bracketed[1] if bracketed else part)
        except ValueError:
            continue
        raise ValueError(
            f"has the IPv6 address {address.ip}, and only IPv4 is supported: give an IPv4 address"
        )


def _multicast_group(value: OptionValue) -> str:
    try:
        address = ipaddress.ip_address(str(value).strip())
    except ValueError:
        raise ValueError("is not an IP address") from None
    is_none = address == ipaddress.IPv4Address(0)
    if (not address.is_multicast and not is_none) or "%" in str(address):
        raise ValueError("is not a multicast group")
    return str(address)


def _option_name(field_name: str, kind: Kind) -> str:
    return field_name.removesuffix(_SUFFIX.get(kind, ""))


def options_of(holder: type[Any]) -> Mapping[str, Option]:
    """Return the options of one of the three dataclasses by name, in table order."""
    scope = Scope(holder.SCOPE)
    table: dict[str, Option] = {}
    for entry in fields(holder):
        spec = entry.metadata.get("option")
        if spec is None:
            continue
        name = _option_name(entry.name, spec.kind)
        table[name] = Option(name, scope, entry.name, spec)
    return MappingProxyType(table)
