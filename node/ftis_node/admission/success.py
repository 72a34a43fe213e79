"""How often a node is right by itself, task by task, and when that is so rare that others have to help.

The share of right answers is taken over blocks of own completions, every one of them and before anything is dropped, so
groups without a signal count as well. Only prompts that were drawn evenly may be fed in: a walk that prefers hard items
would make the node look worse than it is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ftis_protocol.manifest import TaskSpec

#: fewest own completions of a block
BLOCK_COMPLETIONS = 32
#: weight of the past when a block is added
DECAY = 0.8
#: the rescue rule switches on below this success, and off once it is reached
RESCUE_BELOW = 0.1
RESCUE_UNTIL = 0.15


@dataclass(frozen=True, slots=True)
class Success:
    """Own success on one task. `rate` is the running share of right completions, None before the first block; `right`
    of `count` belong to the block that is still open; `rescuing` tells whether the rescue rule is on."""

    rate: float | None = None
    right: int = 0
    count: int = 0
    rescuing: bool = False

    def with_outcomes(self, right: int, count: int) -> Success:
        """The state after one more group; it closes the block once that is large enough."""
        right, count = self.right + right, self.count + count
        if count < BLOCK_COMPLETIONS:
            return Success(self.rate, right, count, self.rescuing)
        share = right / count
        rate = share if self.rate is None else DECAY * self.rate + (1 - DECAY) * share
        return Success(rate, rescuing=rate < (RESCUE_UNTIL if self.rescuing else RESCUE_BELOW))


def skill_of(spec: TaskSpec) -> str:
    """The name under which success is remembered: the same task with other parameters is another skill."""
    parameters = json.dumps(dict(spec.parameters), sort_keys=True, separators=(",", ":"))
    return f"{spec.name}/{spec.version}/{parameters}"
