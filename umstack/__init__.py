"""umstack: reliable multicast messaging for Linux.

with umstack.Context("eth1") as ctx:
    src = ctx.source("orders")
    src.send(b"hello", flush=True)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from umstack_xdp.lazy_names import lazily, names_of

if TYPE_CHECKING:
    from umstack._engine.source_events import Drained as Drained
    from umstack._engine.source_events import ReceiverEvent as ReceiverEvent
    from umstack.batch import Batch as Batch
    from umstack.config import Config as Config
    from umstack.context import Context as Context
    from umstack.context_warnings import FragmentationWarning as FragmentationWarning
    from umstack.context_warnings import GenericModeWarning as GenericModeWarning
    from umstack.context_warnings import OccupiedInterfaceWarning as OccupiedInterfaceWarning
    from umstack.context_warnings import ReceiveBufferWarning as ReceiveBufferWarning
    from umstack.errors import BackPressured as BackPressured
    from umstack.errors import Closed as Closed
    from umstack.errors import ConfigError as ConfigError
    from umstack.errors import DriverError as DriverError
    from umstack.errors import Forked as Forked
    from umstack.errors import InterfaceError as InterfaceError
    from umstack.errors import InvalidArgument as InvalidArgument
    from umstack.errors import LinkError as LinkError
    from umstack.errors import MessageTooLong as MessageTooLong
    from umstack.errors import NotBytes as NotBytes
    from umstack.errors import NotConnected as NotConnected
    from umstack.errors import OptionAbsent as OptionAbsent
    from umstack.errors import OptionError as OptionError
    from umstack.errors import PermissionNeeded as PermissionNeeded
    from umstack.errors import PositionExhausted as PositionExhausted
    from umstack.errors import RateLimited as RateLimited
    from umstack.errors import ResolutionError as ResolutionError
    from umstack.errors import ResourceLimit as ResourceLimit
    from umstack.errors import ResponseFailed as ResponseFailed
    from umstack.errors import ResponsesDropped as ResponsesDropped
    from umstack.errors import ResponseTimeout as ResponseTimeout
    from umstack.errors import SystemFailure as SystemFailure
    from umstack.errors import TopicNameError as TopicNameError
    from umstack.errors import UmError as UmError
    from umstack.errors import Unsupported as Unsupported
    from umstack.errors import WouldBlock as WouldBlock
    from umstack.event_queue import EventQueue as EventQueue
    from umstack.events import BeginningOfSession as BeginningOfSession
    from umstack.events import BurstLoss as BurstLoss
    from umstack.events import CutLoose as CutLoose
    from umstack.events import DriverLost as DriverLost
    from umstack.events import EndOfSession as EndOfSession
    from umstack.events import Event as Event
    from umstack.events import HotFailoverReset as HotFailoverReset
    from umstack.events import InterfaceChanged as InterfaceChanged
    from umstack.events import Message as Message
    from umstack.events import NakCutoff as NakCutoff
    from umstack.events import NoSource as NoSource
    from umstack.events import Request as Request
    from umstack.events import SourceCreated as SourceCreated
    from umstack.events import SourceDeleted as SourceDeleted
    from umstack.events import StaleTags as StaleTags
    from umstack.events import UnrecoverableLoss as UnrecoverableLoss
    from umstack.hot_failover_receiver import HotFailoverReceiver as HotFailoverReceiver
    from umstack.message_properties import Byte as Byte
    from umstack.message_properties import Float as Float
    from umstack.message_properties import Long as Long
    from umstack.message_properties import MessageProperties as MessageProperties
    from umstack.message_properties import Short as Short
    from umstack.receiver import Receiver as Receiver
    from umstack.requests import PendingRequest as PendingRequest
    from umstack.requests import Response as Response
    from umstack.source import Source as Source
    from umstack.wildcard_receiver import WildcardReceiver as WildcardReceiver

_HOME = {
    "Batch": "batch",
    "Config": "config",
    "Context": "context",
    "FragmentationWarning": "context_warnings",
    "GenericModeWarning": "context_warnings",
    "OccupiedInterfaceWarning": "context_warnings",
    "ReceiveBufferWarning": "context_warnings",
    "BackPressured": "errors",
    "Closed": "errors",
    "ConfigError": "errors",
    "DriverError": "errors",
    "Forked": "errors",
    "InterfaceError": "errors",
    "InvalidArgument": "errors",
    "LinkError": "errors",
    "MessageTooLong": "errors",
    "NotBytes": "errors",
    "NotConnected": "errors",
    "OptionAbsent": "errors",
    "OptionError": "errors",
    "PermissionNeeded": "errors",
    "PositionExhausted": "errors",
    "RateLimited": "errors",
    "ResolutionError": "errors",
    "ResourceLimit": "errors",
    "ResponseFailed": "errors",
    "ResponseTimeout": "errors",
    "ResponsesDropped": "errors",
    "SystemFailure": "errors",
    "TopicNameError": "errors",
    "UmError": "errors",
    "Unsupported": "errors",
    "WouldBlock": "errors",
    "EventQueue": "event_queue",
    "HotFailoverReceiver": "hot_failover_receiver",
    "BeginningOfSession": "events",
    "BurstLoss": "events",
    "EndOfSession": "events",
    "Event": "events",
    "HotFailoverReset": "events",
    "InterfaceChanged": "events",
    "Message": "events",
    "CutLoose": "events",
    "DriverLost": "events",
    "NakCutoff": "events",
    "NoSource": "events",
    "SourceCreated": "events",
    "SourceDeleted": "events",
    "StaleTags": "events",
    "Request": "events",
    "UnrecoverableLoss": "events",
    "Byte": "message_properties",
    "Float": "message_properties",
    "Long": "message_properties",
    "MessageProperties": "message_properties",
    "Short": "message_properties",
    "PendingRequest": "requests",
    "Response": "requests",
    "Receiver": "receiver",
    "Drained": "_engine.source_events",
    "ReceiverEvent": "_engine.source_events",
    "Source": "source",
    "WildcardReceiver": "wildcard_receiver",
}

__all__ = sorted(_HOME)
if not TYPE_CHECKING:  # a type checker would accept any name of a module that has __getattr__
    __getattr__ = lazily(__name__, _HOME)
__dir__ = names_of(__name__, _HOME)
__version__ = "0.2.0"
