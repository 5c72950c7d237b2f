"""The wire of persistence: LBMC control messages of sources, receivers and Stores (docs/wire.md#persistence).

Every message is a dataclass with `encode`, which returns one control message; `decode` returns the dataclass of a
received one. Over TCP messages follow each other without other framing: `StoreStream` splits and tags them.

    client -> Store   Registration, ConsumptionAck, Keepalive, RetransmissionRequests, and messages of type PROACTIVE
    Store -> client   RegistrationResponse, StabilityAck, DeliveryConfirmation, Keepalive, RetainedRange, and messages
                      of type RECOVERED
    source -> all     SourceRegistrationInformation, on the data session or in answer to a SourceRegistrationRequest

A message states its purpose by one option; further options give details: session id, lifetimes, the list of Stores,
configuration. Unknown options are skipped if they allow it, and otherwise refused with MalformedMessage, which also
reports wrong lengths. Messages of type PROACTIVE and RECOVERED are the stored LBMC message with another type
(`with_type`): 12 bytes of header with topic index and sqn, options, payload.
"""

from umstack.store.wire.acknowledgement import (
    RANGES_MAXIMUM,
    ConsumptionAck,
    DeliveryConfirmation,
    SqnRange,
    StabilityAck,
)
from umstack.store.wire.chain import (
    CONTROL,
    HEADER_BYTES,
    MESSAGE,
    MESSAGE_HEADER_BYTES,
    PROACTIVE,
    RECOVERED,
    MalformedMessage,
    message_bytes,
    with_type,
)
from umstack.store.wire.decoding import ControlMessage, decode
from umstack.store.wire.exchange import (
    REQUESTS_MAXIMUM,
    Keepalive,
    KeepaliveSender,
    RetainedRange,
    RetransmissionRequest,
    RetransmissionRequests,
)
from umstack.store.wire.registration import (
    Registration,
    RegistrationError,
    RegistrationResponse,
    SourceRegistrationInformation,
    SourceRegistrationRequest,
    StoreTerms,
)
from umstack.store.wire.stores import (
    CONFIGURATION_MAXIMUM,
    STORE_NAME_MAXIMUM_BYTES,
    STORES_MAXIMUM,
    ConfigurationValue,
    StoreEntry,
    StoreGroup,
    decode_number,
)
from umstack.store.wire.stream import StoreStream, TopicKeys

__all__ = [
    "CONFIGURATION_MAXIMUM",
    "CONTROL",
    "HEADER_BYTES",
    "MESSAGE",
    "MESSAGE_HEADER_BYTES",
    "PROACTIVE",
    "RANGES_MAXIMUM",
    "RECOVERED",
    "REQUESTS_MAXIMUM",
    "STORES_MAXIMUM",
    "STORE_NAME_MAXIMUM_BYTES",
    "ConfigurationValue",
    "ConsumptionAck",
    "ControlMessage",
    "DeliveryConfirmation",
    "Keepalive",
    "KeepaliveSender",
    "MalformedMessage",
    "Registration",
    "RegistrationError",
    "RegistrationResponse",
    "RetainedRange",
    "RetransmissionRequest",
    "RetransmissionRequests",
    "SourceRegistrationInformation",
    "SourceRegistrationRequest",
    "SqnRange",
    "StabilityAck",
    "StoreEntry",
    "StoreGroup",
    "StoreStream",
    "StoreTerms",
    "TopicKeys",
    "decode",
    "decode_number",
    "message_bytes",
    "with_type",
]
