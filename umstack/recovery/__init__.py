"""Late join and off-transport recovery: fetch retained messages from a source, and serve them, over LBMC on TCP."""

from umstack.recovery.codec import endpoint_of, endpoint_option
from umstack.recovery.service import RecoveryService

__all__ = ["RecoveryService", "endpoint_of", "endpoint_option"]
