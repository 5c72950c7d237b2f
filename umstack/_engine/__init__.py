"""The layer below sources, receivers, event queues and taps: the core's context and the services around it.

Nothing here imports the public API. A module here uses handles of the core, options and memory; it uses public objects
only through the operations they offer the engine (close, run a callback), never by their class.
"""
