"""An independent model of the decisions of bpf/lossy_port.bpf.c, to test the program against."""

from __future__ import annotations

MASK = (1 << 64) - 1
FATES = ("loss", "duplicate", "reorder")


def is_chosen(seed: int, index: int, fate: str, rate: float) -> bool:
    """Return true if datagram `index` of the series `seed` meets this fate at this rate."""
    draw = index * len(FATES) + FATES.index(fate)
    z = (seed + (draw + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    z ^= z >> 31
    return (z >> 32) < round(rate * (1 << 32))
