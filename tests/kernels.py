"""Tests of what only newer kernels have: skipped, with the reason, under the older ones that are supported."""

from __future__ import annotations

import pytest

from umstack_xdp.probe import running_kernel


def _since(version: tuple[int, int], what: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        running_kernel() < version, reason=f"{what} takes Linux {version[0]}.{version[1]}"
    )


needs_program_fragments = _since((5, 18), "a program for packets of several buffers")
needs_packet_comparisons = _since((6, 1), "a verifier that lets CAP_BPF alone compare packet bounds")
needs_tai_clock = _since((6, 1), "the TAI clock in a program")
needs_device_bound_programs = _since((6, 3), "a program that asks the driver of its device")
needs_passed_rings = _since((6, 4), "mapping the rings of another process's socket")
needs_frames_in_chains = _since((6, 6), "AF_XDP with datagrams of several frames")
needs_tcx = _since((6, 6), "attaching to tc egress by link (tcx)")
needs_epoll_busy_poll = _since((6, 9), "preferred busy polling of epoll")
needs_irq_suspension = _since((6, 13), "IRQ suspension")
needs_virtio_zero_copy = _since((6, 13), "zero-copy in virtio_net")
