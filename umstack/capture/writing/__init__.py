"""Writing captures: a tap on a context, and the capture of a network interface. Reading them: umstack.capture."""
