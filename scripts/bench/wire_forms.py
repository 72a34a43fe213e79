"""The same completions in every form that is compared, and what each costs in bytes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import zstandard
from genrl_wheel import Pack
from samples import RealCompletion, RealGroup

from ftis_protocol.columns import half, single
from ftis_protocol.dictionaries import TextDictionary, newest_dictionary, text_dictionary
from ftis_protocol.envelope import open_envelope, seal
from ftis_protocol.identity import Identity
from ftis_protocol.keys import body_digest
from ftis_protocol.manifest import Sampling, SwarmManifest, TaskSpec
from ftis_protocol.presence import Offer, OfferedFrame, OfferedGroup
from ftis_protocol.rollout import Completion, Evidence, Finish, Frame, Group, PolicyRef, PromptRef

PAPER_BYTES_PER_TOKEN = 8.0
CREATED_AT = 1_790_000_000
SLOT = CREATED_AT // 30
POLICY = PolicyRef(model="SmolLM2-135M-Instruct", revision="", tokenizer="9f3a1c20b7d4e856", trainable="full")
POLICY_VERSION = 120
# A key travels as a hash: hivemind files records under 20 bytes. Two keys (body, offer) and the author's id as subkey.
KEY_BYTES = 20
NODE_ID_BYTES = 26


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes of one draw of groups in one form, and the completion tokens they carry."""

    frame: int
    around: int
    tokens: int

    @property
    def per_token(self) -> float:
        return (self.frame + self.around) / self.tokens


class Publisher:
    """A node that seals frames and the offers that announce them; `dictionary` as in a manifest."""

    def __init__(self, dictionary: str = "") -> None:
        self.identity = Identity.create()
        rules = SwarmManifest(
            name="wire bench",
            tasks=(TaskSpec(name="arithmetic", version=1),),
            sampling=Sampling(max_completion_tokens=512),
            evidence=tuple(Evidence),
            creator=self.identity.public_key,
            created_at=CREATED_AT,
            dictionary=dictionary,
        )
        self.swarm_id = rules.swarm_id
        self.dictionary: TextDictionary | None = text_dictionary(rules.dictionary)

    def cost(self, frame: Frame, tokens: Sequence[int]) -> Cost:
        """The frame sealed, and its offer with both keys; `tokens` by group."""
        sealed = self._seal(frame)
        groups = tuple(
            OfferedGroup(
                task=group.prompt.task,
                version=group.prompt.version,
                right=sum(c.reward > 0 for c in group.completions),
                size=len(group.completions),
                tokens=count,
            )
            for group, count in zip(frame.groups, tokens, strict=True)
        )
        offered = OfferedFrame(
            digest=body_digest(sealed), size_bytes=len(sealed), policy_version=POLICY_VERSION, groups=groups
        )
        offer = self._seal(Offer(slot=frame.slot, frames=(offered,)))
        return Cost(len(sealed), len(offer) + 2 * KEY_BYTES + NODE_ID_BYTES, sum(tokens))

    def _seal(self, message: Frame | Offer) -> bytes:
        sequence = CREATED_AT * 1000
        data = seal(message, self.identity, self.swarm_id, sequence, CREATED_AT, self.dictionary)
        assert open_envelope(data, swarm_id=self.swarm_id, dictionary=self.dictionary).message == message
        return data


@dataclass(frozen=True, slots=True)
class Drawn:
    """Groups for one frame, with their questions and answers; rewards by a fair coin, which is the dearest case."""

    groups: tuple[RealGroup, ...]
    asked: tuple[tuple[str, str], ...]

    @property
    def tokens(self) -> list[int]:
        return [sum(member.tokens for member in group.completions) for group in self.groups]

    def frame(self, evidence: Evidence) -> Frame:
        groups = tuple(
            Group(
                prompt=PromptRef(task=group.task, version=group.version, slot=SLOT, index=index),
                policy_version=POLICY_VERSION,
                evidence=evidence,
                completions=tuple(_completion(member, evidence) for member in group.completions),
            )
            for index, group in enumerate(self.groups)
        )
        return Frame(slot=SLOT, policy=POLICY, groups=groups)


def draws(
    groups: Sequence[RealGroup], asked: Sequence[tuple[str, str]], size: int, per_frame: int, count: int
) -> list[Drawn]:
    """`count` random choices of `per_frame` groups (all of them, where there are fewer), cut to `size` completions."""
    dice = random.Random(7)
    drawn = []
    for _ in range(count):
        places = dice.sample(range(len(groups)), min(per_frame, len(groups)))
        cut = tuple(
            replace(
                groups[place],
                completions=tuple(
                    replace(member, reward=float(dice.random() < 0.5)) for member in groups[place].completions[:size]
                ),
            )
            for place in places
        )
        drawn.append(Drawn(cut, tuple(asked[place] for place in places)))
    return drawn


def _completion(real: RealCompletion, evidence: Evidence) -> Completion:
    """The completion as a node publishes it."""
    finish, reward = Finish(real.finish), real.reward
    if evidence is Evidence.SEQUENCE:
        return Completion(text=real.text, finish=finish, reward=reward, logprob_sum=single(sum(real.logprobs)))
    if evidence is Evidence.TOKEN:
        values = half([min(value, 0.0) for value in real.logprobs])
        return Completion(text=real.text, finish=finish, reward=reward, token_ids=real.token_ids, logprobs=values)
    return Completion(text=real.text, finish=finish, reward=reward)


def others(genrl: Pack) -> dict[str, Callable[[Drawn], float]]:
    """What other forms take, bytes a token. None of them is signed, announced or addressed."""
    return {
        "JSON": lambda drawn: (
            len(drawn.frame(Evidence.NONE).model_dump_json(exclude_none=True).encode()) / sum(drawn.tokens)
        ),
        "GenRL": lambda drawn: len(genrl(_items(drawn))) / sum(drawn.tokens),
        "zstd-19": lambda drawn: _group_by_group(drawn) / sum(drawn.tokens),
    }


def _items(drawn: Drawn) -> list[tuple[str, str, list[str]]]:
    return [
        (question, answer, [member.text for member in group.completions])
        for (question, answer), group in zip(drawn.asked, drawn.groups, strict=True)
    ]


def _group_by_group(drawn: Drawn) -> int:
    coder = zstandard.ZstdCompressor(level=19)
    return sum(len(coder.compress("\0".join(m.text for m in group.completions).encode())) for group in drawn.groups)


def publishers() -> tuple[Publisher, Publisher]:
    """With the newest dictionary, and without any."""
    return Publisher(newest_dictionary()), Publisher()
