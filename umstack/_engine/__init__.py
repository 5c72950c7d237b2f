"""What sources, receivers, event queues and taps stand on: the core's context and the services around it.

Nothing here imports the public face. A module here knows handles of the core, options and memory; objects of the face
are known by what they let the engine do with them (close, run a callback), never by their class.
"""
