"""Registrations: what clients send to a Store, its response, and the information that a source sends to receivers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from umstack._engine.endpoint import Endpoint
from umstack.store.wire import option_types as layout
from umstack.store.wire.chain import (
    MalformedMessage,
    Option,
    ReceivedOptions,
    decode_text,
    encode_chain,
    encode_text,
    pack_endpoint,
    unpack_endpoint,
)
from umstack.store.wire.option_types import OptionType
from umstack.store.wire.stores import (
    ConfigurationValue,
    StoreEntry,
    StoreGroup,
    configuration_options,
    decode_configuration,
    decode_groups,
    decode_number,
    decode_stores,
    group_options,
    instance_option,
    store_options,
)

TOPIC_NAME_MAXIMUM_BYTES = 246
STORE_INDEX_MAXIMUM = 0x7FFF

_IS_SOURCE = 0x80
_NOT_FORWARDED, _PROXY, _RECEIVER_PACED, _DEREGISTRATION = 0x40, 0x20, 0x10, 0x08
_CAPABILITIES = 0x4000 | 0x2000
"""Quorum and consensus; client lifetimes."""

_KNOWN_CLIENT, _ERROR = 0x40, 0x20
_NO_ACKS, _RESPONSE_RECEIVER_PACED, _RESPONSE_DEREGISTRATION = 0x10, 0x02, 0x01
_ERROR_CODE = 0x0F

_ACKS_TO_SOURCE, _INITIAL_SQN_KNOWN = 0x0001, 0x0002

_NAME_DURABILITY, _NAME_NEW, _NAME_FLIGHT, _NAME_SOURCE = (
    "repository_durability",
    "store_is_new",
    "store_flight_size_bytes",
    "umstack_source_session",
)
_NAME_BLOCKING, _NAME_BLOCKED_MS, _NAME_REASON = (
    "umstack_blocking_receiver",
    "umstack_blocked_ms",
    "umstack_reason",
)


class RegistrationError(IntEnum):
    """Why a Store refuses a registration."""

    UNKNOWN = 0
    """A reason that this version does not know."""
    NO_PATTERN = 1
    """No topic pattern of the Store matches the topic."""
    SOURCE_NOT_FOUND = 2
    USED_BY_RECEIVER = 3
    TOPIC_DIFFERS = 4
    USED_BY_SOURCE = 5
    CONFIGURATION = 6
    LIMIT = 15
    """The Store accepts no more clients, or its disk is nearly full. Not a code of Ultra Messaging."""

    @classmethod
    def _missing_(cls, value: object) -> RegistrationError:
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A source or receiver registers with a Store, or deregisters."""

    is_source: bool
    transport_index: int
    topic_index: int
    reg_id: int = 0
    """The wanted registration id; 0: by session id, or assigned by the Store."""
    source_reg_id: int = 0
    """Of a receiver: the source's registration id at this Store."""
    session_id: int = 0
    """0: none."""
    store_index: int = 0
    """Position of the addressed Store in the source's list."""
    response: Endpoint | None = None
    """The client's request port. Responses go over the connection of the registration."""
    is_deregistration: bool = False
    is_receiver_paced: bool = False
    forwards_acks: bool = True
    """Of a source: it wants the Store to forward the acknowledgements of receivers. Of a receiver: it allows that."""
    is_proxy: bool = False
    """A Store registers in place of an absent source. Decoded to be refused."""
    activity_timeout_ms: int = 0
    """Idle time until the registration id is free; 0: the Store's."""
    state_lifetime_ms: int = 0
    """Idle time until the state is deleted; 0: the Store's."""
    topic: str = ""
    groups: tuple[StoreGroup, ...] = ()
    stores: tuple[StoreEntry, ...] = ()
    """All Stores of the source, so that a Store can get missing messages from its peers."""
    context_instance: bytes = b""
    configuration: tuple[ConfigurationValue, ...] = ()

    def encode(self) -> bytes:
        """Return the control message. Raises ValueError if a text is too long, struct.error for other values."""
        return encode_chain(list(self._options()))

    def _options(self) -> Iterator[Option]:
        flags = (
            (not self.forwards_acks) * _NOT_FORWARDED
            | self.is_proxy * _PROXY
            | self.is_receiver_paced * _RECEIVER_PACED
            | self.is_deregistration * _DEREGISTRATION
        )
        ip, port = pack_endpoint(self.response)
        body = layout.REGISTRATION.pack(
            flags, self.is_source * _IS_SOURCE, self.reg_id, self.transport_index, self.topic_index,
            self.source_reg_id, port, 0, ip,
        )  # fmt: skip
        yield Option(OptionType.REGISTRATION, body)
        yield Option(OptionType.STORE_ID, layout.STORE_ID.pack(self.store_index))
        yield Option(OptionType.CAPABILITY, layout.CAPABILITY.pack(_CAPABILITIES))
        lifetime = layout.CLIENT_LIFETIME.pack(0, self.activity_timeout_ms, self.state_lifetime_ms, 0)
        yield Option(OptionType.CLIENT_LIFETIME, lifetime)
        if self.session_id:
            yield Option(OptionType.SESSION_ID, layout.SESSION_ID.pack(0, self.session_id))
        yield from group_options(self.groups)
        yield from store_options(self.stores, is_extended=False)
        if self.context_instance:
            yield instance_option(OptionType.CONTEXT_INSTANCE, self.context_instance)
        if self.topic:
            name = encode_text(self.topic, TOPIC_NAME_MAXIMUM_BYTES)
            yield Option(OptionType.TOPIC_NAME, b"\0\0" + name)
        yield from configuration_options(self.configuration)

    @classmethod
    def decode(cls, received: ReceivedOptions) -> Registration:
        """Return the registration in these options. Raises MalformedMessage."""
        fields = received.one(OptionType.REGISTRATION, layout.REGISTRATION)
        assert fields is not None
        flags, kind, reg_id, transport_index, topic_index, source_reg_id, port, _, ip = fields
        lifetime = received.one(OptionType.CLIENT_LIFETIME, layout.CLIENT_LIFETIME) or (0, 0, 0, 0)
        instance = received.one(OptionType.CONTEXT_INSTANCE, layout.CONTEXT_INSTANCE) or (0, b"")
        topics = received.bodies(OptionType.TOPIC_NAME)
        if len(topics) > 1:
            raise MalformedMessage("a registration with two topic names")
        return cls(
            is_source=bool(kind & _IS_SOURCE),
            transport_index=transport_index,
            topic_index=topic_index,
            reg_id=reg_id,
            source_reg_id=source_reg_id,
            session_id=decode_session_id(received),
            store_index=decode_store_index(received),
            response=unpack_endpoint(ip, port),
            is_deregistration=bool(flags & _DEREGISTRATION),
            is_receiver_paced=bool(flags & _RECEIVER_PACED),
            forwards_acks=not flags & _NOT_FORWARDED,
            is_proxy=bool(flags & _PROXY),
            activity_timeout_ms=lifetime[1],
            state_lifetime_ms=lifetime[2],
            topic=decode_text(OptionType.TOPIC_NAME, topics[0][2:], TOPIC_NAME_MAXIMUM_BYTES)
            if topics
            else "",
            groups=decode_groups(received),
            stores=decode_stores(received),
            context_instance=instance[1],
            configuration=decode_configuration(received),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTerms:
    """Promises of a Store, carried as configuration values, which other implementations ignore."""

    durability: str = ""
    """`disk`, `written` or `memory`; empty: not stated."""
    is_new: bool = False
    """The Store has no record of the source although it is not the source's first registration: it has no vote."""
    flight_size_bytes: int | None = None
    """How many bytes the source may have in flight to this Store; None: not limited by the Store."""
    source_session_id: int = 0
    """To a receiver: the session id of its source, which is the same at all Stores; 0: not stated."""
    blocking_session_id: int = 0
    """To a receiver-paced source: the session id of the receiver for which it must stop sending; 0: none."""
    blocked_ms: int = 0
    """How long that receiver has blocked the source."""

    def values(self, scope: int) -> Iterator[ConfigurationValue]:
        """Yield the terms as configuration values."""
        if self.durability:
            yield ConfigurationValue(_NAME_DURABILITY, self.durability, scope)
        if self.is_new:
            yield ConfigurationValue(_NAME_NEW, "1", scope)
        if self.flight_size_bytes is not None:
            yield ConfigurationValue(_NAME_FLIGHT, str(self.flight_size_bytes), scope)
        if self.source_session_id:
            yield ConfigurationValue(_NAME_SOURCE, str(self.source_session_id), scope)
        if self.blocking_session_id:
            yield ConfigurationValue(_NAME_BLOCKING, str(self.blocking_session_id), scope)
        if self.blocked_ms:
            yield ConfigurationValue(_NAME_BLOCKED_MS, str(self.blocked_ms), scope)

    @classmethod
    def of(cls, received: ReceivedOptions) -> StoreTerms:
        """Return the terms in the options of a message. Raises MalformedMessage."""
        values = {value.name: value.value for value in decode_configuration(received)}
        flight = values.get(_NAME_FLIGHT)
        return cls(
            durability=values.get(_NAME_DURABILITY, ""),
            is_new=values.get(_NAME_NEW) == "1",
            flight_size_bytes=None if flight is None else decode_number(_NAME_FLIGHT, flight),
            source_session_id=decode_number(_NAME_SOURCE, values.get(_NAME_SOURCE, "0")),
            blocking_session_id=decode_number(_NAME_BLOCKING, values.get(_NAME_BLOCKING, "0")),
            blocked_ms=decode_number(_NAME_BLOCKED_MS, values.get(_NAME_BLOCKED_MS, "0")),
        )


NO_TERMS = StoreTerms()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationResponse:
    """A Store's answer to a registration or deregistration."""

    is_source: bool
    reg_id: int
    transport_index: int
    topic_index: int
    low_sqn: int = 0
    """Of a receiver: the first message after its last acknowledgement. Of a source: the oldest message kept."""
    high_sqn: int = 0
    """The newest message that the Store has. Without `is_known` and with both 0, it has none."""
    store_index: int = 0
    session_id: int = 0
    is_known: bool = False
    """The Store has state of this client from an earlier registration."""
    has_no_acks: bool = False
    """To a receiver that is known: it has acknowledged nothing, and `low_sqn` is where it began."""
    is_receiver_paced: bool = False
    is_deregistration: bool = False
    error: RegistrationError | None = None
    """Why the registration was refused; None: accepted."""
    reason: str = ""
    """With an error: how to avoid it. A configuration value, which other implementations ignore."""
    terms: StoreTerms = NO_TERMS

    def encode(self) -> bytes:
        """Return the control message. Raises struct.error if a value is out of range."""
        return encode_chain(list(self._options()))

    def _options(self) -> Iterator[Option]:
        code = self.is_known * _KNOWN_CLIENT
        if self.error is None:
            code |= self.has_no_acks * _NO_ACKS
            code |= self.is_receiver_paced * _RESPONSE_RECEIVER_PACED
            code |= self.is_deregistration * _RESPONSE_DEREGISTRATION
        else:
            code |= _ERROR | self.error
        body = layout.REGISTRATION_RESPONSE.pack(
            code, self.is_source * _IS_SOURCE, self.reg_id, self.transport_index, self.topic_index,
            self.low_sqn, self.high_sqn,
        )  # fmt: skip
        yield Option(OptionType.REGISTRATION_RESPONSE, body)
        yield Option(OptionType.STORE_ID, layout.STORE_ID.pack(self.store_index))
        yield Option(OptionType.CAPABILITY, layout.CAPABILITY.pack(_CAPABILITIES))
        if self.session_id:
            yield Option(OptionType.SESSION_ID, layout.SESSION_ID.pack(0, self.session_id))
        scope = 1 if self.is_source else 2
        reason = (ConfigurationValue(_NAME_REASON, self.reason, scope),) if self.reason else ()
        yield from configuration_options([*self.terms.values(scope), *reason])

    @property
    def refusal(self) -> str:
        """The error in words, with its reason; empty if the registration was accepted."""
        if self.error is None:
            return ""
        return f"{self.error.name.lower()}: {self.reason}" if self.reason else self.error.name.lower()

    @classmethod
    def decode(cls, received: ReceivedOptions) -> RegistrationResponse:
        """Return the response in these options. Raises MalformedMessage."""
        fields = received.one(OptionType.REGISTRATION_RESPONSE, layout.REGISTRATION_RESPONSE)
        assert fields is not None
        code, kind, reg_id, transport_index, topic_index, low_sqn, high_sqn = fields
        is_error = bool(code & _ERROR)
        return cls(
            is_source=bool(kind & _IS_SOURCE),
            reg_id=reg_id,
            transport_index=transport_index,
            topic_index=topic_index,
            low_sqn=low_sqn,
            high_sqn=high_sqn,
            store_index=decode_store_index(received),
            session_id=decode_session_id(received),
            is_known=bool(code & _KNOWN_CLIENT),
            has_no_acks=not is_error and bool(code & _NO_ACKS),
            is_receiver_paced=not is_error and bool(code & _RESPONSE_RECEIVER_PACED),
            is_deregistration=not is_error and bool(code & _RESPONSE_DEREGISTRATION),
            error=RegistrationError(code & _ERROR_CODE) if is_error else None,
            reason=next(
                (each.value for each in decode_configuration(received) if each.name == _NAME_REASON), ""
            ),
            terms=StoreTerms.of(received),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRegistrationInformation:
    """SRI: the Stores at which a source is registered, for the receivers and Stores of its data session."""

    topic_index: int
    version: int
    """Rises with every change of a registration."""
    stores: tuple[StoreEntry, ...]
    groups: tuple[StoreGroup, ...] = ()
    low_sqn: int = 0
    high_sqn: int = 0
    needs_confirmation: bool = False
    """The source wants confirmations of delivery."""
    is_initial_sqn_known: bool = False

    def encode(self) -> bytes:
        """Return the control message. Raises ValueError if a text is too long, struct.error for other values."""
        return encode_chain(list(self._options()))

    def _options(self) -> Iterator[Option]:
        flags = self.needs_confirmation * _ACKS_TO_SOURCE | self.is_initial_sqn_known * _INITIAL_SQN_KNOWN
        body = layout.SOURCE_REGISTRATION_INFORMATION.pack(flags, self.version, self.low_sqn, self.high_sqn)
        yield Option(OptionType.SOURCE_REGISTRATION_INFORMATION, body)
        yield Option(OptionType.SOURCE_INDEX, layout.SOURCE_INDEX.pack(0, self.topic_index))
        yield from group_options(self.groups)
        yield from store_options(self.stores, is_extended=True)

    @classmethod
    def decode(cls, received: ReceivedOptions) -> SourceRegistrationInformation:
        """Return the information in these options. Raises MalformedMessage."""
        fields = received.one(
            OptionType.SOURCE_REGISTRATION_INFORMATION, layout.SOURCE_REGISTRATION_INFORMATION
        )
        assert fields is not None
        flags, version, low_sqn, high_sqn = fields
        index = received.one(OptionType.SOURCE_INDEX, layout.SOURCE_INDEX)
        if index is None or index[1] > 0xFFFFFFFF:
            raise MalformedMessage("registration information without the topic's index")
        return cls(
            topic_index=index[1],
            version=version,
            stores=decode_stores(received),
            groups=decode_groups(received),
            low_sqn=low_sqn,
            high_sqn=high_sqn,
            needs_confirmation=bool(flags & _ACKS_TO_SOURCE),
            is_initial_sqn_known=bool(flags & _INITIAL_SQN_KNOWN),
        )


@dataclass(frozen=True, slots=True)
class SourceRegistrationRequest:
    """A receiver that has no SRI of a persistent source requests it over TCP."""

    transport_index: int
    topic_index: int

    def encode(self) -> bytes:
        """Return the control message. Raises struct.error if a value is out of range."""
        body = layout.SOURCE_REGISTRATION_REQUEST.pack(0, self.transport_index, self.topic_index)
        return encode_chain([Option(OptionType.SOURCE_REGISTRATION_REQUEST, body)])

    @classmethod
    def decode(cls, received: ReceivedOptions) -> SourceRegistrationRequest:
        """Return the request in these options. Raises MalformedMessage."""
        fields = received.one(OptionType.SOURCE_REGISTRATION_REQUEST, layout.SOURCE_REGISTRATION_REQUEST)
        assert fields is not None
        return cls(*fields[1:])


def decode_store_index(received: ReceivedOptions) -> int:
    """Return the index in the store id option; 0 if there is none. Raises MalformedMessage."""
    fields = received.one(OptionType.STORE_ID, layout.STORE_ID)
    return 0 if fields is None else int(fields[0]) & STORE_INDEX_MAXIMUM


def decode_session_id(received: ReceivedOptions) -> int:
    """Return the session id; 0 if there is none. Raises MalformedMessage."""
    fields = received.one(OptionType.SESSION_ID, layout.SESSION_ID)
    return 0 if fields is None else int(fields[1])


__all__ = [
    "NO_TERMS",
    "STORE_INDEX_MAXIMUM",
    "TOPIC_NAME_MAXIMUM_BYTES",
    "Registration",
    "RegistrationError",
    "RegistrationResponse",
    "SourceRegistrationInformation",
    "SourceRegistrationRequest",
    "StoreTerms",
    "decode_store_index",
]
