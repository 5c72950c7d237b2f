"""Recording topics: a journal whose offsets can be read again, and Parquet files made from it."""

from umstack.recorder.errors import JournalError, JournalFull, OffsetGone, RecorderError
from umstack.recorder.journal import Journal, JournalReader

__all__ = ["Journal", "JournalError", "JournalFull", "JournalReader", "OffsetGone", "RecorderError"]
