"""replay(): reads what Stores have of a topic, also after its sources have ended (docs/store.md#replay)."""

from umstack.persistence.store_replay import replay

__all__ = ["replay"]
