"""Starting, restarting and ending the members of a real swarm in tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from e2e.watching import Window, processes, until
from ftis_node import metrics
from ftis_node.lab.children import Child
from ftis_node.lab.local_swarm import ENVIRONMENT, LocalSwarm, NodePlan
from ftis_node.state import StateDir

TASK = "arithmetic:operations=+-,digits=1"
SETTINGS: dict[str, dict[str, object]] = {
    "model": {"generator": "transformers"},
    "train": {
        "groups_per_step": 4,
        "group_size": 8,
        "learning_rate": 1e-4,
        "checkpoint_every_steps": 5,
        "probe_every_steps": 0,
        "pace_seconds": 0.5,
    },
}


class Member:
    """One running node, and the window into its database."""

    def __init__(self, child: Child, state: Path) -> None:
        self.child = child
        self.state = state
        self.window = Window(state)

    @property
    def pid(self) -> int:
        return self.child.process.pid

    @property
    def foreign_used(self) -> int:
        return self.window.total(metrics.FOREIGN_GROUPS_USED)

    def until_step(self, step: int) -> None:
        """Wait for optimiser step `step`; a node that ends meanwhile is an error with the end of its log."""
        until(lambda: self._alive() and self.window.step >= step, f"step {step} of {self.child.name}\n{self.story()}")

    def until_foreign_used(self, more: int) -> None:
        """Wait until `more` further foreign groups have moved this node's weights."""
        goal = self.foreign_used + more
        until(lambda: self._alive() and self.foreign_used >= goal, f"{self.child.name} uses foreign groups")

    def until_fetched(self, more: int) -> None:
        """Wait until this node has fetched `more` further frames of others: what was at hand before does not count."""
        goal = self.window.total(metrics.FETCHED_FRAMES) + more
        until(
            lambda: self._alive() and self.window.total(metrics.FETCHED_FRAMES) >= goal,
            f"{self.child.name} fetches frames\n{self.story()}",
        )

    @property
    def state_now(self) -> str:
        """The state that this very process wrote; empty while its database still holds its predecessor's."""
        begun = self.window.fact("started_at")
        holder = StateDir.existing(self.state).holder() if begun else None
        fresh = holder is not None and (holder.pid, holder.started_at) == (self.pid, begun)
        return str(self.window.fact("state")) if fresh else ""

    def _alive(self) -> bool:
        assert self.child.running, f"{self.child.name} ended with {self.child.process.returncode}\n{self.story()}"
        return True

    def story(self) -> str:
        """The end of what it printed."""
        return self.child.tail()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def gone(self, seconds: float) -> int:
        """The exit code, once it has ended by itself and nothing of it is left; AssertionError after `seconds`."""
        try:
            code = self.child.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.child.name} runs on after {seconds:.0f} s\n{self.story()}") from None
        until(lambda: not processes(self.pid), f"processes left of {self.child.name}: {processes(self.pid)}", 10)
        return code

    def kill(self) -> None:
        """SIGKILL to the node's own process alone, as the kernel does when memory runs out."""
        self.signal(signal.SIGKILL)
        self.child.process.wait()


class Crowd:
    """The seed and the learners by name, started when first asked for and started again when they are gone."""

    def __init__(self, root: Path, models: dict[str, Path], settings: dict[str, dict[str, object]] = SETTINGS) -> None:
        self.swarm = LocalSwarm(root)
        self.models = models
        self.settings = settings
        self._members: dict[str, Member] = {}

    @property
    def seed(self) -> Member:
        seed = self._members.get("seed")
        if seed is None or not seed.child.running:
            self.swarm.found("sums", [TASK])
            seed = self._members["seed"] = Member(self.swarm.children[-1], self.swarm.root / "seed")
        return seed

    def learner(self, name: str) -> Member:
        """The running learner of that name; started with the same line every time."""
        assert self.seed
        member = self._members.get(name)
        if member is None or not member.child.running:
            child = self.swarm.join(NodePlan(name, self.models[name], self.settings))
            member = self._members[name] = Member(child, self.swarm.root / name)
        return member

    def pair(self) -> tuple[Member, Member]:
        """ann and bob, both at work."""
        members = self.learner("ann"), self.learner("bob")
        for member in members:
            until(
                lambda member=member: member._alive() and member.state_now == "working",
                f"{member.child.name} works with another",
            )
        return members

    def close(self) -> None:
        """End everything."""
        self.swarm.__exit__()


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one `ftis-node` command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "ftis_node", *arguments],
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=300,
    )
