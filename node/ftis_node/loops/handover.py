"""The learner's weights on their way to the generator."""

from __future__ import annotations

from pathlib import Path

from ftis_node.generate.base import Generator
from ftis_node.policy.model import Policy


def hand_over(policy: Policy, generator: Generator, path: Path) -> None:
    """Make the generator sample from the policy's present weights; `path` is the file they go through, if any."""
    if generator.weights_alarm is not None:  # an engine with weights of its own
        policy.export_weights(path)
    generator.load_weights(path, policy.version)
