"""Persistence: the Store, which keeps what sources send until nobody needs it any more (docs/store.md)."""
