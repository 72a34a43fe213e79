"""Which board a test runs on: files named test_dht_* get real daemons, the others make their own arena."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from swarm.dht_arena import DhtArena


@pytest.fixture
async def arena() -> AsyncIterator[DhtArena]:
    from swarm.dht_arena import DhtArena, daemons  # takes seconds to import: not for the fast tier

    arena = DhtArena()
    yield arena
    await arena.close()
    assert daemons() == set()
