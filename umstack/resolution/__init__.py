"""Topic resolution: finds the sessions that carry a topic, by LBMR over multicast UDP."""

from umstack.resolution.agent import ResolutionAgent, ResolutionInterface, resolver_datagram_size
from umstack.resolution.codec import LbtrmAddress, LbtruAddress, TcpAddress
from umstack.resolution.counters import ResolutionCounters
from umstack.resolution.machine import ResolutionEvent, ResolutionMachine, SourceFound, SourceGone
from umstack.resolution.pattern import TopicPattern
from umstack.resolution.service import DonatedResolver, Resolver
from umstack.resolution.thread import ResolverThread
from umstack.resolution.topic_name import TOPIC_NAME_MAXIMUM_BYTES, encode_topic_name

__all__ = [
    "TOPIC_NAME_MAXIMUM_BYTES",
    "DonatedResolver",
    "LbtrmAddress",
    "LbtruAddress",
    "ResolutionAgent",
    "ResolutionCounters",
    "ResolutionEvent",
    "ResolutionInterface",
    "ResolutionMachine",
    "Resolver",
    "ResolverThread",
    "SourceFound",
    "SourceGone",
    "TcpAddress",
    "TopicPattern",
    "encode_topic_name",
    "resolver_datagram_size",
]
