"""Late join and off-transport recovery: fetching from a source what it retains, and serving that, over LBMC on TCP."""

from umstack.recovery.codec import endpoint_of, endpoint_option
from umstack.recovery.service import RecoveryService

__all__ = ["RecoveryService", "endpoint_of", "endpoint_option"]
