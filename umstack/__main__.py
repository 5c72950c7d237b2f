"""`python -m umstack` is the `umstack` command."""

from __future__ import annotations

from umstack.cli import main

if __name__ == "__main__":
    main()
