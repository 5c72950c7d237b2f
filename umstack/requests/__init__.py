"""Requests and responses: messages that request responses, and the TCP streams that carry the responses."""

from umstack.requests.pending_request import PendingRequest
from umstack.requests.response import Response
from umstack.requests.service import RequestService

__all__ = ["PendingRequest", "RequestService", "Response"]
