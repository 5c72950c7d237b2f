"""Clients of Stores without sockets and clocks: source, receiver and reader (docs/store.md).

Each takes messages of `umstack.store.wire` and times, and queues messages to send and events. Sqns are 64 bits wide
inside and 32 bits on the wire; `extended` converts.
"""
