"""File transfer: whole trees as records on a topic, verified by SHA-256 (docs/file-transfer.md)."""

from umstack.files.errors import RecordError, TransferError, UnsafePath
from umstack.files.manifest import Manifest, ManifestEntry
from umstack.files.scan import scan
from umstack.files.target import Target
from umstack.files.tree_receiver import Problem, TreeReceiver, TreeReport
from umstack.files.tree_sender import SendReport, TreeSender
from umstack.files.walk import Found, Skipped, walk

__all__ = [
    "Found",
    "Manifest",
    "ManifestEntry",
    "Problem",
    "RecordError",
    "SendReport",
    "Skipped",
    "Target",
    "TransferError",
    "TreeReceiver",
    "TreeReport",
    "TreeSender",
    "UnsafePath",
    "scan",
    "walk",
]
