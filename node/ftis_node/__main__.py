"""`python -m ftis_node` is `ftis-node`."""

from __future__ import annotations

import sys

from ftis_node.cli import main

if __name__ == "__main__":
    sys.exit(main())
