"""Observations: the packets of LBT-RM sessions seen from the session, not from the wire.

A packet says who sent it to whom; an observation says which session it belongs to, who publishes and who receives in
it, where it was captured, and gives sequence numbers that do not wrap. Every other analysis starts here.

Sequence numbers are 32 bits wide and a fast session uses them up in minutes. Each minute of a session gets a reference,
the first number seen in it, unwrapped by its signed distance from the minute before. A session message counts as the
number behind its lead: before a session that starts at 0 has sent anything its lead is 2**32 - 1. A packet's number is
unwrapped by its signed distance from the reference of its minute. This is right as long as no number is further than
2**31 from the reference, and costs one aggregation and one small join, not a sort.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from umstack.facts.kinds import DATA as DATA
from umstack.facts.kinds import EPOCH_NS as EPOCH_NS
from umstack.facts.kinds import FRAGMENT as FRAGMENT
from umstack.facts.kinds import KINDS as KINDS
from umstack.facts.kinds import MALFORMED_STATUS as MALFORMED_STATUS
from umstack.facts.kinds import NAK as NAK
from umstack.facts.kinds import NCF as NCF
from umstack.facts.kinds import NEEDED as NEEDED
from umstack.facts.kinds import NOTE as NOTE
from umstack.facts.kinds import NOTE_STATUS as NOTE_STATUS
from umstack.facts.kinds import OTHER as OTHER
from umstack.facts.kinds import RETRANSMISSION as RETRANSMISSION
from umstack.facts.kinds import ROTATION as ROTATION
from umstack.facts.kinds import SESSION as SESSION
from umstack.facts.kinds import SESSION_MESSAGE as SESSION_MESSAGE
from umstack.facts.kinds import STATUS as STATUS
from umstack.facts.kinds import TYPES as TYPES

CONTENT_KINDS = ("message", "proactive", "recovered")
"""The kinds of messages in a datagram that carry payload; the others are control."""

NS_PER_SECOND = 1_000_000_000
WINDOW = "window_ns"
"""The column of `in_windows`."""
_HALF = 2**31
ON_TOPICS = ("topic_counts", "advertisements")
"""Those that tell of topics, for who wants them as well."""


def point_of(file: Column, interface: Column) -> Column:
    """The name of the place of capture: the file's without what rotation added, and the interface's."""
    name = F.regexp_replace(F.substring_index(file, "/", -1), ROTATION, "")
    has_interface = interface.isNotNull() & (interface != "")
    return F.when(has_interface, F.concat(name, F.lit(":"), interface)).otherwise(name)


def _is_multicast(address: Column) -> Column:
    return (F.substring(address, 4, 1) == ".") & F.substring(address, 1, 3).between("224", "239")


def with_message_totals(packets: DataFrame) -> DataFrame:
    """Packets with `message_count` and `message_bytes`, made from `messages` where the reader did not."""
    if "message_count" in packets.columns:
        return packets
    content = F.filter("messages", lambda message: message["kind"].isin(*CONTENT_KINDS))
    total = F.aggregate(content, F.lit(0), lambda so_far, message: so_far + message["payload_bytes"])
    return packets.withColumns(
        {
            "message_count": F.coalesce(F.size(content), F.lit(0)),
            "message_bytes": F.coalesce(total, F.lit(0)),
        }
    )


def label(packets: DataFrame) -> DataFrame:
    """All packets by their `kind`: those of sessions, IP fragments that show no session, notes of the reader, others.

    The columns are those of observations, whose sequence numbers still wrap, and what is left of the packet.
    """
    known = with_message_totals(packets)
    to_group = _is_multicast(F.col("destination_address"))
    of_session = (
        F.col("session_id").isNotNull()
        & F.col("time_ns").isNotNull()
        & F.col("packet_type").isin(*TYPES)
        & ~F.col("status").startswith(MALFORMED_STATUS)
    )
    is_again = (F.col("packet_type") == DATA) & F.col("retransmission")
    kind = (
        F.when(of_session & is_again, RETRANSMISSION)
        .when(of_session, F.col("packet_type"))
        .when(F.col("ip_fragment"), FRAGMENT)
        .when(F.col("status").startswith(NOTE_STATUS), NOTE)
        .otherwise(OTHER)
    )
    from_receiver = F.col("packet_type").isin(NAK, STATUS)
    publisher = F.when(from_receiver, F.col("destination_address")).otherwise(F.col("source_address"))
    by_name = "point" not in packets.columns
    point = point_of(F.col("capture_file"), F.col("interface_name")) if by_name else F.col("point")
    return known.select(
        point.alias("point"),
        "time_ns",
        kind.alias("kind"),
        publisher.alias("publisher"),
        "session_id",
        F.when(from_receiver, F.col("source_address")).alias("receiver"),
        F.when(to_group, F.concat_ws(":", "destination_address", "destination_port")).alias("group"),
        F.coalesce("transport_sqn", "lead_sqn").alias("sqn"),
        "sqns",
        "ncf_reason",
        "udp_bytes",
        "frame_bytes",
        "message_count",
        "message_bytes",
        "ip_fragment",
        # What is said of a session is enough: these texts are for the packets of none.
        F.when(kind.isin(*KINDS) & (F.col("status") == "ok"), None)
        .otherwise(F.col("status"))
        .alias("status"),
        F.when(~kind.isin(*KINDS), F.col("source_address")).alias("source_address"),
        F.when(~kind.isin(*KINDS), F.col("destination_address")).alias("destination_address"),
        *(name for name in ON_TOPICS if name in known.columns),
    )


def addressed(labelled: DataFrame) -> DataFrame:
    """What `label` gave, with the addresses of those packets too of which it says the session instead."""
    from_receiver = F.col("receiver").isNotNull()
    group = F.substring_index("group", ":", 1)
    return labelled.withColumns(
        {
            "source_address": F.coalesce("source_address", "receiver", "publisher"),
            "destination_address": F.coalesce(
                "destination_address", F.when(from_receiver, F.col("publisher")).otherwise(group)
            ),
        }
    )


def classify(packets: DataFrame) -> DataFrame:
    """Packets of sessions as observations whose sequence numbers still wrap (`sqn`, `sqns`)."""
    return of_sessions(label(packets))


def of_sessions(labelled: DataFrame) -> DataFrame:
    """What belongs to sessions, of what `label` gave."""
    return labelled.where(F.col("kind").isin(*KINDS)).drop(
        "ip_fragment", "status", "source_address", "destination_address"
    )


def _distance(later: Column, earlier: Column) -> Column:
    """How far one 32-bit sequence number lies after another: serial arithmetic, from -2**31 to 2**31 - 1."""
    return (later - earlier + _HALF).bitwiseAND(F.lit(2 * _HALF - 1)) - _HALF


def references(classified: DataFrame) -> DataFrame:
    """An unwrapped sequence number (`reference`) for every session and every minute (`epoch`) of the capture."""
    numbered = classified.where(
        F.col("kind").isin(DATA, RETRANSMISSION, SESSION_MESSAGE) & F.col("sqn").isNotNull()
    )
    epoch = F.expr(f"time_ns div {EPOCH_NS}").alias("epoch")
    behind_lead = (F.col("sqn") + 1).bitwiseAND(F.lit(2 * _HALF - 1))
    number = F.when(F.col("kind") == SESSION_MESSAGE, behind_lead).otherwise(F.col("sqn"))
    # Of packets of the same time the lowest number is first, wherever they lie.
    firsts = numbered.groupBy(*SESSION, epoch).agg(
        F.min_by(number, F.struct("time_ns", number.alias("number"))).alias("first")
    )
    by_time = Window.partitionBy(*SESSION).orderBy("epoch")
    step = _distance(F.col("first"), F.lag("first").over(by_time))
    unwrapped = firsts.withColumn("step", F.coalesce(step, F.col("first"))).select(
        *SESSION,
        "epoch",
        F.sum("step")
        .over(by_time.rowsBetween(Window.unboundedPreceding, Window.currentRow))
        .alias("reference"),
        F.lead("epoch").over(by_time).alias("next"),
        (F.row_number().over(by_time) == 1).alias("is_first"),
    )
    # A quiet minute keeps the reference of the one before it; NAKs may come before the first and after the last.
    start = F.when(F.col("is_first"), F.col("epoch") - 1).otherwise(F.col("epoch"))
    end = F.when(F.col("next").isNull(), F.col("epoch") + 10).otherwise(F.col("next") - 1)
    return unwrapped.select(*SESSION, F.explode(F.sequence(start, end)).alias("epoch"), "reference")


def unwrap(classified: DataFrame, known_references: DataFrame | None = None) -> DataFrame:
    """Observations whose sequence numbers grow without end.

    The first of a session keeps its value on the wire. `known_references` are those of `references`, where they are
    used more than once and were kept.
    """
    found = references(classified) if known_references is None else known_references
    epochs = classified.withColumn("epoch", F.expr(f"time_ns div {EPOCH_NS}"))
    joined = epochs.join(F.broadcast(found), [*SESSION, "epoch"], "left")
    reference = F.coalesce("reference", F.lit(0))

    def unwrapped(number: Column) -> Column:
        return reference + _distance(number, reference)

    # A reference of zero would be a guess: a session of which only NAKs were seen keeps its numbers as they are.
    known = F.col("reference").isNotNull()
    return joined.withColumns(
        {
            "sqn": F.when(known, unwrapped(F.col("sqn"))).otherwise(F.col("sqn")),
            "sqns": F.when(known, F.transform("sqns", unwrapped)).otherwise(F.col("sqns")),
        }
    ).drop("epoch", "reference")


def in_windows(frame: DataFrame, window_ns: int, time: str = "time_ns") -> DataFrame:
    """With the beginning of the window of time that each row belongs to, by which analyses tell rows apart (`by`)."""
    return frame.withColumn(WINDOW, F.expr(f"({time} div {window_ns}) * {window_ns}"))


def observe(packets: DataFrame) -> DataFrame:
    """The observations in these packets."""
    return unwrap(classify(packets))
