"""Decodes a control message of persistence by the option that states its purpose."""

from __future__ import annotations

from collections.abc import Callable

from umstack.store.wire import option_types as layout
from umstack.store.wire.acknowledgement import (
    ConsumptionAck,
    DeliveryConfirmation,
    StabilityAck,
    decode_acknowledgement,
    decode_one_range,
)
from umstack.store.wire.chain import MalformedMessage, ReceivedOptions, decode_chain
from umstack.store.wire.exchange import Keepalive, RetainedRange, RetransmissionRequests
from umstack.store.wire.option_types import OptionType
from umstack.store.wire.registration import (
    Registration,
    RegistrationResponse,
    SourceRegistrationInformation,
    SourceRegistrationRequest,
)

ControlMessage = (
    Registration
    | RegistrationResponse
    | SourceRegistrationInformation
    | SourceRegistrationRequest
    | StabilityAck
    | ConsumptionAck
    | DeliveryConfirmation
    | Keepalive
    | RetransmissionRequests
    | RetainedRange
)

_DECODERS: dict[int, Callable[[ReceivedOptions], ControlMessage]] = {
    OptionType.REGISTRATION: Registration.decode,
    OptionType.REGISTRATION_RESPONSE: RegistrationResponse.decode,
    OptionType.ACKNOWLEDGEMENT: decode_acknowledgement,
    OptionType.KEEPALIVE: Keepalive.decode,
    OptionType.RETRANSMISSION_REQUEST: RetransmissionRequests.decode,
    OptionType.LATE_JOIN_INFO: RetainedRange.decode,
    OptionType.SOURCE_REGISTRATION_REQUEST: SourceRegistrationRequest.decode,
    OptionType.SOURCE_REGISTRATION_INFORMATION: SourceRegistrationInformation.decode,
}


def decode(message: bytes | memoryview) -> ControlMessage | None:
    """Return the content of a complete control message; None if it is not one of persistence.

    Raises MalformedMessage.
    """
    usual = decode_one_range(message)
    if usual is not None:
        return usual
    requests = RetransmissionRequests.decode_alike(message)
    if requests is not None:
        return requests
    options = decode_chain(message)
    purposes = {option.type for option in options if option.type in _DECODERS}
    if not purposes:
        return None
    if len(purposes) > 1:
        raise MalformedMessage(f"one control message with options {sorted(purposes)}")
    return _DECODERS[purposes.pop()](ReceivedOptions(options, layout.KNOWN))


__all__ = ["ControlMessage", "decode"]
