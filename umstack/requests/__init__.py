"""Requests and responses: a message that asks for responses, and the TCP streams on which they come."""

from umstack.requests.pending_request import PendingRequest
from umstack.requests.response import Response
from umstack.requests.service import RequestService

__all__ = ["PendingRequest", "RequestService", "Response"]
