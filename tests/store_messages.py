"""One or more control messages of persistence of each kind, in which every field has a value of its own."""

from __future__ import annotations

from umstack._engine.endpoint import Endpoint
from umstack.persistence.pacing import PACING_NAME
from umstack.store.wire import (
    ConfigurationValue,
    ConsumptionAck,
    ControlMessage,
    DeliveryConfirmation,
    Keepalive,
    KeepaliveSender,
    Registration,
    RegistrationError,
    RegistrationResponse,
    RetainedRange,
    RetransmissionRequest,
    RetransmissionRequests,
    SourceRegistrationInformation,
    SourceRegistrationRequest,
    SqnRange,
    StabilityAck,
    StoreEntry,
    StoreGroup,
    StoreTerms,
)

STORE_PORT = 14567
REQUEST_PORT = 14391
TRANSPORT, TOPIC = 77, 1001
SOURCE_REG, RECEIVER_REG, SESSION = 2504558780, 2504558781, 39307788
CLIENT = Endpoint("10.9.0.1", REQUEST_PORT)
INSTANCE, STORE_INSTANCE = b"CTXSRC01", b"CTXSTORE"
STORES = tuple(
    StoreEntry(index, Endpoint(f"10.9.0.{11 + index}", STORE_PORT + index), index // 2, SOURCE_REG + index)
    for index in range(3)
)
NAMED_STORES = tuple(
    StoreEntry(
        store.index, store.endpoint, store.group, store.source_reg_id, 1 + store.index,
        f"NEWYORK-{store.index}", STORE_INSTANCE,
    )
    for store in STORES
)  # fmt: skip
GROUPS = (StoreGroup(0, 2), StoreGroup(1, 1))
TERMS = StoreTerms(durability="disk", is_new=True, flight_size_bytes=16777216)

MESSAGES: dict[str, ControlMessage] = {
    "source": Registration(
        is_source=True,
        transport_index=TRANSPORT,
        topic_index=TOPIC,
        reg_id=5,
        session_id=SESSION,
        store_index=2,
        response=CLIENT,
        is_receiver_paced=True,
        activity_timeout_ms=30000,
        state_lifetime_ms=600000,
        topic="ORD",
        groups=GROUPS,
        stores=STORES,
        context_instance=INSTANCE,
        configuration=(
            ConfigurationValue("ume_flight_size_bytes", "1000000"),
            ConfigurationValue("ume_write_delay", "1000", 3),
        ),
    ),
    "receiver": Registration(
        is_source=False,
        transport_index=TRANSPORT,
        topic_index=TOPIC,
        source_reg_id=SOURCE_REG,
        session_id=(1 << 64) - 2,
        forwards_acks=False,
    ),
    "receiver-paced receiver": Registration(
        is_source=False, transport_index=1, topic_index=2, source_reg_id=SOURCE_REG, is_receiver_paced=True,
        configuration=(ConfigurationValue(PACING_NAME, "2", 2),),
    ),
    "proxy": Registration(is_source=True, transport_index=1, topic_index=2, reg_id=3, is_proxy=True),
    "deregistration": Registration(
        is_source=False, transport_index=1, topic_index=2, reg_id=RECEIVER_REG, is_deregistration=True
    ),
    "new": RegistrationResponse(
        is_source=True, reg_id=SOURCE_REG, transport_index=TRANSPORT, topic_index=TOPIC, terms=TERMS,
        is_receiver_paced=True, session_id=SESSION,
    ),
    "known": RegistrationResponse(
        is_source=False, reg_id=RECEIVER_REG, transport_index=TRANSPORT, topic_index=TOPIC, low_sqn=12,
        high_sqn=41, store_index=1, is_known=True,
    ),
    "refused": RegistrationResponse(
        is_source=True, reg_id=1000, transport_index=TRANSPORT, topic_index=TOPIC,
        error=RegistrationError.USED_BY_SOURCE,
    ),
    "refused with a reason": RegistrationResponse(
        is_source=False, reg_id=0, transport_index=1, topic_index=2, error=RegistrationError.CONFIGURATION,
        reason="set it to 1 or 2",
    ),
    "receiver-paced": RegistrationResponse(
        is_source=False, reg_id=RECEIVER_REG, transport_index=1, topic_index=2, is_receiver_paced=True,
        is_known=True, has_no_acks=True,
    ),
    "deregistered": RegistrationResponse(
        is_source=False, reg_id=RECEIVER_REG, transport_index=1, topic_index=2, is_deregistration=True
    ),
    "information": SourceRegistrationInformation(
        topic_index=TOPIC, version=2, stores=NAMED_STORES, groups=GROUPS, low_sqn=12, high_sqn=41,
        needs_confirmation=True, is_initial_sqn_known=True,
    ),
    "information request": SourceRegistrationRequest(TRANSPORT, TOPIC),
    "stable": StabilityAck(
        transport_index=TRANSPORT, topic_index=TOPIC, store_index=2, ranges=(SqnRange(42, 44),)
    ),
    "stable with a gap": StabilityAck(
        transport_index=TRANSPORT, topic_index=TOPIC, store_index=1,
        ranges=(SqnRange(0xFFFFFFFE, 0xFFFFFFFE), SqnRange(0, 4)),
    ),
    "lost": StabilityAck(
        transport_index=TRANSPORT, topic_index=TOPIC, store_index=0, ranges=(SqnRange(46, 46),), is_lost=True
    ),
    "consumed": ConsumptionAck(
        transport_index=TRANSPORT, source_reg_id=SOURCE_REG, receiver_reg_id=RECEIVER_REG, sqn=44,
        store_index=2, is_explicit=True,
    ),
    "begins": ConsumptionAck(
        transport_index=0, source_reg_id=SOURCE_REG, receiver_reg_id=RECEIVER_REG, sqn=44, store_index=0,
        is_start=True,
    ),
    "confirmed": DeliveryConfirmation(
        transport_index=TRANSPORT, topic_index=TOPIC, user_reg_id=7001, sqn=44, ack_id=9, is_explicit=True
    ),
    "forwarded": DeliveryConfirmation(
        transport_index=TRANSPORT, topic_index=TOPIC, user_reg_id=0, sqn=44, ack_id=10, session_id=SESSION
    ),
    "keepalive of a Store": Keepalive(
        sender=KeepaliveSender.STORE, transport_index=TRANSPORT, topic_index=TOPIC, reg_id=SOURCE_REG,
        store_index=1, needs_response=True, has_seen_topic=False, terms=TERMS,
    ),
    "keepalive to a blocked source": Keepalive(
        sender=KeepaliveSender.STORE, transport_index=TRANSPORT, topic_index=TOPIC, reg_id=SOURCE_REG,
        store_index=0, terms=StoreTerms(blocking_session_id=3, blocked_ms=1500),
    ),
    "keepalive of a source": Keepalive(
        sender=KeepaliveSender.SOURCE, transport_index=TRANSPORT, topic_index=TOPIC, reg_id=SOURCE_REG,
        store_index=0,
    ),
    "last keepalive of a source": Keepalive(
        sender=KeepaliveSender.SOURCE, transport_index=TRANSPORT, topic_index=TOPIC, reg_id=SOURCE_REG,
        store_index=0, oldest_sqn=46, is_last=True,
    ),
    "keepalive of a receiver": Keepalive(
        sender=KeepaliveSender.RECEIVER, transport_index=TRANSPORT, topic_index=TOPIC, reg_id=RECEIVER_REG,
        store_index=0,
    ),
    "requests": RetransmissionRequests(
        transport_index=TRANSPORT, source_reg_id=SOURCE_REG, response=CLIENT,
        requests=(RetransmissionRequest(6, 43), RetransmissionRequest(7, 44)),
    ),
    "retained": RetainedRange(12, 44, 5),
}  # fmt: skip
