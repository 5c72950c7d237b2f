"""Session ids: the numbers that identify sources and receivers at Stores across restarts, and texts for them."""

from __future__ import annotations

import hashlib
import re
from random import SystemRandom

from umstack.errors import InvalidArgument

SESSION_ID_MAXIMUM = (1 << 64) - 2
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*")


def session_id_of(wanted: int | str) -> int:
    """Return the number of a session id.

    A text that is a number is read as one: decimal, hexadecimal with `0x`, octal with `0`. Any other text becomes the
    first 8 bytes of its SHA-256 hash, modulo the number of valid ids.

    Args:
        wanted: A number from 1 to 2^64 - 2, or a text.

    Returns:
        The number.

    Raises:
        InvalidArgument: The number is out of range, or the text is empty.

    Example:
        ```python
        from umstack.persistence.session_ids import session_id_of

        assert session_id_of("0x10") == session_id_of(16) == 16
        assert session_id_of("desk7") == session_id_of("desk7")
        ```
    """
    if isinstance(wanted, str):
        if not wanted:
            raise InvalidArgument("an empty session id", hint="give a number or a name")
        if not _NUMBER.fullmatch(wanted):
            digest = hashlib.sha256(wanted.encode()).digest()
            return 1 + int.from_bytes(digest[:8], "big") % SESSION_ID_MAXIMUM
        digits = wanted.lower()
        number = int(digits, 16) if digits.startswith("0x") else int(digits, 8 if digits[0] == "0" else 10)
    else:
        number = wanted
    if not 1 <= number <= SESSION_ID_MAXIMUM:
        raise InvalidArgument(
            f"session id {wanted} is not between 1 and 2^64 - 2", hint="choose another number"
        )
    return number


def temporary_session_id() -> int:
    """Return a session id that no other reader has."""
    return SystemRandom().randrange(1, SESSION_ID_MAXIMUM)


__all__ = ["SESSION_ID_MAXIMUM", "session_id_of", "temporary_session_id"]
