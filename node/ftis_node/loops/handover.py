"""The learner's weights on their way to the generator, and the proof that they arrived."""

from __future__ import annotations

from pathlib import Path

from ftis_node.errors import EngineError
from ftis_node.generate.base import Generator
from ftis_node.policy.model import Policy
from ftis_protocol.rollout import Finish

#: what both sides read to be compared; its first tokens are the prompt
CHECK_TEXT = "Seven times six is 42, and three times eight is 24."
CHECK_PROMPT_TOKENS = 4


def hand_over(policy: Policy, generator: Generator, path: Path) -> None:
    """Make the generator sample from the policy's present weights; `path` is the file they go through, if any.

    Raises EngineError when the generator's log-probs of a fixed text still are not the policy's after a second try.
    """
    if generator.weights_alarm is None:  # it samples from the learner's own module
        generator.load_weights(path, policy.version)
        return
    policy.export_weights(path)
    for _ in range(2):
        generator.load_weights(path, policy.version)
        gap = weights_gap(policy, generator)
        if gap <= generator.weights_alarm:
            return
    raise EngineError(
        f"after two hand-overs the {generator.name} generator is {gap:.3f} nats a token away from the learner "
        f"(allowed {generator.weights_alarm})",
        hint="Restart the node; if it happens again use --generator transformers and report the model's name.",
    )


def weights_gap(policy: Policy, generator: Generator) -> float:
    """Mean absolute difference of generator and learner on a fixed text, in nats per token."""
    ids = policy.codec.encode_completion(CHECK_TEXT, Finish.LENGTH)
    prompt, completion = ids[:CHECK_PROMPT_TOKENS], ids[CHECK_PROMPT_TOKENS:]
    return generator.self_check(prompt, completion, policy.score(prompt, completion))
