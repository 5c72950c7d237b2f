"""The repository of a Store: an append-only log of messages on one volume, and the state of its clients.

`Repository` appends, commits, reads and reclaims; `ClientState` keeps sources, receivers and acknowledgements in
SQLite. docs/store.md documents the files.
"""

from umstack.store.repository.client_state import ClientState, ReceiverState, SourceState
from umstack.store.repository.errors import (
    DiskFull,
    RepositoryDamaged,
    RepositoryEnded,
    RepositoryError,
    RepositoryInUse,
    StagingFull,
)
from umstack.store.repository.files import DiskFiles, File, Files
from umstack.store.repository.model import (
    Commit,
    CommittedRange,
    DamagedArea,
    Durability,
    Reclaimed,
    Recovery,
    RepositorySettings,
    StoredMessage,
)
from umstack.store.repository.received_rows import ReceivedRows
from umstack.store.repository.repository import Repository

__all__ = [
    "ClientState",
    "Commit",
    "CommittedRange",
    "DamagedArea",
    "DiskFiles",
    "DiskFull",
    "Durability",
    "File",
    "Files",
    "ReceivedRows",
    "ReceiverState",
    "Reclaimed",
    "Recovery",
    "Repository",
    "RepositoryDamaged",
    "RepositoryEnded",
    "RepositoryError",
    "RepositoryInUse",
    "RepositorySettings",
    "SourceState",
    "StagingFull",
    "StoredMessage",
]
