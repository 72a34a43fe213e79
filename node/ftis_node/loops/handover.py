"""The learner's weights on their way to the generator, and the proof that they arrived.

`pack` reads the weights, so it belongs into the compute thread; `deliver` only waits for the generator, and the learner
may go on meanwhile. Each version has a file of its own: a generator that has to be started again reads it once more.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ftis_node.errors import EngineError
from ftis_node.generate.base import Generator
from ftis_node.policy.model import Policy
from ftis_node.records import LogProbs, TokenIds
from ftis_protocol.rollout import Finish

#: what both sides read to be compared; its first tokens are the prompt
CHECK_TEXT = "Seven times six is 42, and three times eight is 24."
CHECK_PROMPT_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Shipment:
    """Weights of one policy version in the file `path`, and what the learner makes of the fixed text with them."""

    path: Path
    policy_version: int
    prompt_ids: TokenIds
    completion_ids: TokenIds
    learner_logprobs: LogProbs


def hand_over(policy: Policy, generator: Generator, path: Path) -> float:
    """Make the generator sample from the policy's present weights; `path` names the file they go through, if any.
    Returns the gap that is left between the two, in nats per token.

    Raises EngineError when the generator's log-probs of a fixed text still are not the policy's after a second try.
    """
    if generator.weights_alarm is None:  # it samples from the learner's own module
        generator.load_weights(path, policy.version)
        return 0.0
    return deliver(generator, pack(policy, generator, path))


def pack(policy: Policy, generator: Generator, path: Path) -> Shipment:
    """Write the weights next to `path`, in the number type that the generator wants, and score the fixed text."""
    own_path = path.with_stem(f"{path.stem}-{policy.version}")
    policy.export_weights(own_path, generator.weights_dtype)
    prompt, completion = check_ids(policy)
    return Shipment(own_path, policy.version, prompt, completion, policy.score(prompt, completion))


def deliver(generator: Generator, shipment: Shipment) -> float:
    """Load, check, and load once more if need be; older files go. Returns the gap; raises EngineError as `hand_over`.
    A generator that failed holds back what it was asked for: nothing is sampled from weights that nobody knows."""
    assert generator.weights_alarm is not None
    for _ in range(2):
        generator.load_weights(shipment.path, shipment.policy_version)
        gap = generator.self_check(shipment.prompt_ids, shipment.completion_ids, shipment.learner_logprobs)
        if gap <= generator.weights_alarm:
            generator.release()
            _forget_others(shipment.path)
            return gap
    raise EngineError(
        f"after two hand-overs the {generator.name} generator is {gap:.3f} nats a token away from the learner "
        f"(allowed {generator.weights_alarm})",
        hint="Restart the node; if it happens again use --generator transformers and report the model's name.",
    )


def check_first_weights(policy: Policy, generator: Generator) -> None:
    """The engine read the checkpoint itself; here it shows that this is what the learner has. Raises EngineError."""
    assert generator.weights_alarm is not None
    gap = weights_gap(policy, generator)
    if not gap <= generator.weights_alarm:
        raise EngineError(
            f"the {generator.name} generator reads the same checkpoint as the learner and is {gap:.3f} nats a token "
            f"away from it (allowed {generator.weights_alarm})",
            hint="vLLM computes this model otherwise: use --generator transformers and report the model's name.",
        )


def weights_gap(policy: Policy, generator: Generator) -> float:
    """Mean absolute difference of generator and learner on a fixed text, in nats per token."""
    prompt, completion = check_ids(policy)
    return generator.self_check(prompt, completion, policy.score(prompt, completion))


def check_ids(policy: Policy) -> tuple[TokenIds, TokenIds]:
    """The fixed text as a prompt and its completion."""
    ids = policy.codec.encode_completion(CHECK_TEXT, Finish.LENGTH)
    return ids[:CHECK_PROMPT_TOKENS], ids[CHECK_PROMPT_TOKENS:]


def _forget_others(path: Path) -> None:
    stem = path.stem.rpartition("-")[0]
    for other in path.parent.glob(f"{stem}-*{path.suffix}"):
        if other != path:
            other.unlink(missing_ok=True)
