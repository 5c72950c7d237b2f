"""The Store's side of persistence without sockets and clocks; `umstack.persistence` has the sides of its clients.

It takes messages of `umstack.store.wire` and times, and queues messages to send. Sqns are 64 bits wide inside and
32 bits on the wire.

    source                          Store                           receiver
      Registration(topic, session) ->
      <- RegistrationResponse(held)                                   consensus: the number to start at
      Registration(transport session) ->                              the Store joins the session
      <- RegistrationResponse
      data on the transport session ->  commit
      <- StabilityAck(ranges)
                                        <- Registration(topic, transport session)
                                        RegistrationResponse(low, high) ->
                                        <- RetransmissionRequests
                                        messages, RetainedRange ->
                                        <- ConsumptionAck

A reader registers without a transport session first and gets the list of sources:

                                        <- Registration(topic)
                                        SourceRegistrationInformation ->
                                        <- Registration(source)
"""

from umstack.store.protocol.store_connections import MissingMessages, StoreLimits
from umstack.store.protocol.store_side import StoreSide

__all__ = ["MissingMessages", "StoreLimits", "StoreSide"]
