"""Types and layouts of the LBMC options of persistence; a layout starts behind next header and length."""

from __future__ import annotations

import struct
from enum import IntEnum


class OptionType(IntEnum):
    """LBMC options of persistence, by their types."""

    TOPIC_NAME = 5
    SOURCE_INDEX = 14
    REGISTRATION = 18
    REGISTRATION_RESPONSE = 19
    ACKNOWLEDGEMENT = 20
    RETRANSMISSION_REQUEST = 21
    KEEPALIVE = 22
    STORE_ID = 23
    RANGED_ACKNOWLEDGEMENT = 24
    ACKNOWLEDGEMENT_ID = 25
    CAPABILITY = 26
    PROXY_SOURCE = 27
    STORE_GROUP = 28
    STORE = 29
    LATE_JOIN_INFO = 30
    STORE_CONTEXT_INSTANCE = 60
    STORE_NAME = 61
    CONTEXT_INSTANCE = 66
    DOMAIN = 67
    CLIENT_LIFETIME = 70
    SESSION_ID = 71
    SOURCE_REGISTRATION_REQUEST = 83
    STORE_DOMAIN = 84
    SOURCE_REGISTRATION_INFORMATION = 85
    DESTINATION = 100
    STORE_EXTENDED = 105
    ELECTION_TOKEN = 106
    EXTENDED = 254


CONFIGURATION_SUBTYPE = 256
"""Subtype of the extended option that carries configuration values."""

KNOWN = frozenset(OptionType)

SOURCE_INDEX = struct.Struct("!HQ")
REGISTRATION = struct.Struct("!BBIIIIHH4s")
REGISTRATION_RESPONSE = struct.Struct("!BBIIIII")
ACKNOWLEDGEMENT = struct.Struct("!BBIIII")
RETRANSMISSION_REQUEST = struct.Struct("!HIIIIHH4s")
KEEPALIVE = struct.Struct("!BBIII")
STORE_ID = struct.Struct("!H")
RANGED_ACKNOWLEDGEMENT = struct.Struct("!HII")
ACKNOWLEDGEMENT_ID = struct.Struct("!HI")
CAPABILITY = struct.Struct("!H")
STORE_GROUP = struct.Struct("!BBHH")
STORE = struct.Struct("!BBHH4sI")
STORE_EXTENDED = struct.Struct("!BBHH4sIII")
LATE_JOIN_INFO = struct.Struct("!HIII")
CONTEXT_INSTANCE = struct.Struct("!H8s")
CLIENT_LIFETIME = struct.Struct("!HIII")
SESSION_ID = struct.Struct("!HQ")
SOURCE_REGISTRATION_REQUEST = struct.Struct("!HII")
SOURCE_REGISTRATION_INFORMATION = struct.Struct("!HIII")
EXTENDED_HEAD = struct.Struct("!BBHH")
