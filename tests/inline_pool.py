"""The verifying of rewards without a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ftis_node.tasks.verify import VerifyPool
from ftis_node.tasks.worker import Outcome


class InlinePool(VerifyPool):
    """The same functions that a verifying process runs, without the process."""

    async def _outcome(self, function: Callable[..., Outcome], arguments: tuple[Any, ...]) -> Outcome:
        return function(*arguments)
