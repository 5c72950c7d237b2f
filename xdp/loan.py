"""A loan: rings that the broker opened for a process, until every process has closed their sockets.

A disconnect stops reception immediately, because the program is detached. It does not close the sockets: the kernel
cannot revoke a descriptor, and its holder can still send. A loan is therefore charged to its user until the sockets are
closed. The frames are freed then, even if other processes still have them mapped.
"""

from __future__ import annotations

import contextlib
import mmap
import os

from umstack_xdp.broker_policy import Peer
from umstack_xdp.closing import Closing
from umstack_xdp.steering import Steering
from umstack_xdp.xsk import LentRings, RingSet

SLOT = 0


class Loan(Closing):
    """The rings that one process borrowed. Closing it does not affect the process's descriptors."""

    __slots__ = ("_memory", "_queues", "bytes", "is_revoked", "peer", "place", "rings", "steering")

    def __init__(self, peer: Peer, steering: Steering, ring_set: RingSet) -> None:
        """Put the sockets into the program's map; takes ownership of the steering."""
        self.peer, self.place, self.steering = peer, ring_set.place, steering
        for queue, descriptor in ring_set.sockets.items():
            steering.put_socket(SLOT, queue, descriptor)
        self._queues = tuple(ring_set.sockets)
        self.bytes = ring_set.facts.locked_bytes
        self.rings: LentRings = ring_set.lend()
        """The rings to pass to the process, before the ring set is closed here."""
        self._memory = os.dup(self.rings.memory)
        self.is_revoked = False

    def revoke(self) -> None:
        """Detach the program, so that nothing further is received; a second call does nothing."""
        self.is_revoked = True
        self.steering.detach()

    def is_over(self) -> bool:
        """Return true if every process has closed the sockets."""
        return not any(self.steering.has_socket(SLOT, queue) for queue in self._queues)

    def free_frames(self) -> None:
        """Release the frames' memory, which a process that kept its descriptor would use at the broker's expense.

        Call it only after the sockets are closed: before, the kernel would still send its frames.
        """
        with contextlib.suppress(OSError, ValueError), mmap.mmap(self._memory, 0) as frames:
            frames.madvise(mmap.MADV_REMOVE)

    def close(self) -> None:
        """Close the broker's part of the loan; a second call does nothing."""
        self.steering.close()
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1
