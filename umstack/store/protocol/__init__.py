"""State machines of persistence without sockets and clocks: the source's side, the Store's side, the reader's side.

Each takes messages of `umstack.store.wire` and times, and queues messages to send and events. Sqns are 64 bits wide
inside and 32 bits on the wire; `extended` converts.

    source                          Store                           reader
      Registration(topic, session) ->
      <- RegistrationResponse(held)                                   consensus: the number to start at
      Registration(transport session) ->                              the Store joins the session
      <- RegistrationResponse
      data on the transport session ->  commit
      <- StabilityAck(ranges)
                                        <- Registration(topic)
                                        SourceRegistrationInformation ->
                                        <- Registration(source)
                                        RegistrationResponse(low, high) ->
                                        <- RetransmissionRequests
                                        messages, RetainedRange ->
                                        <- ConsumptionAck
"""

from umstack.store.protocol.events import (
    MessageStable,
    NotStable,
    Registered,
    RegistrationRefused,
    SourceEvent,
    StoreBack,
    StoreUnresponsive,
)
from umstack.store.protocol.messages import (
    StoredData,
    data_of,
    encode_data,
    extended,
)
from umstack.store.protocol.reader_side import ReaderSide
from umstack.store.protocol.source_side import SourceLimits, SourceSide, StabilityRule
from umstack.store.protocol.store_connections import StoreLimits
from umstack.store.protocol.store_side import StoreSide

__all__ = [
    "MessageStable",
    "NotStable",
    "ReaderSide",
    "Registered",
    "RegistrationRefused",
    "SourceEvent",
    "SourceLimits",
    "SourceSide",
    "StabilityRule",
    "StoreBack",
    "StoreLimits",
    "StoreSide",
    "StoreUnresponsive",
    "StoredData",
    "data_of",
    "encode_data",
    "extended",
]
