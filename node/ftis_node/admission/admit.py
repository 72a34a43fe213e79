"""The first judgement on foreign text: before the buffer, without a model.

    sealed bytes -> open (size, schema, version, swarm, signature) -> per group: age, quota, prompt reference, text,
    duplicate, reward recomputed -> TrainGroup or a Verdict with its reason

Nothing that a peer sends can raise out of `admit`; one bad group never spoils the others of its frame. The signature is
checked before any counter of its sender moves, so nobody uses up another's quota. A checker that fails here is our own
fault: that group is put aside as `verifier_failed`, which is neither a zero nor a mark against the peer.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ftis_node.admission.evidence import learnable
from ftis_node.admission.verdict import RefusedGroup, Verdict
from ftis_node.clock import Clock
from ftis_node.errors import TaskError
from ftis_node.records import Origin, Prompt, TrainGroup
from ftis_node.tasks.base import Task
from ftis_node.tasks.registry import prompt_of
from ftis_node.tasks.verify import VerifyPool
from ftis_node.tokens import TextCodec
from ftis_protocol import limits
from ftis_protocol.dictionaries import text_dictionary
from ftis_protocol.envelope import Kind, Opened, open_envelope
from ftis_protocol.errors import ProtocolError, Reason
from ftis_protocol.keys import body_digest
from ftis_protocol.manifest import SwarmManifest
from ftis_protocol.rollout import Completion, Evidence, Finish, Frame, Group, PolicyRef, group_digest, item_seed

log = logging.getLogger(__name__)

#: texts longer than this (bytes) are compared one by one across authors; short honest answers collide all the time
NEAR_DUPLICATE_BYTES = 64
#: characters that the sampler's last token may carry past the point where the stop rule matched
STOP_RULE_SLACK_CHARS = 32
REWARD_TOLERANCE = 1e-6


class Seen(Protocol):
    """Memory of what was already taken, kept over restarts."""

    def seen(self, digest: bytes) -> bool: ...

    def remember(self, digest: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class Admitted:
    """The outcome for one frame."""

    groups: tuple[TrainGroup, ...]
    refused: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """The receiver's own limits: tokens of one completion in ITS tokenizer, groups taken of one peer in one slot, and
    the peers whose claims about their behaviour policy are believed."""

    max_completion_tokens: int
    max_groups_per_peer_and_slot: int
    trusted_peers: frozenset[str] = frozenset()


class Admission:
    """Turns fetched bytes into groups that may wait in the buffer."""

    def __init__(
        self,
        manifest: SwarmManifest,
        tasks: Mapping[tuple[str, int], Task],
        codec: TextCodec,
        verify: VerifyPool,
        seen: Seen,
        clock: Clock,
        bounds: AdmissionLimits,
    ) -> None:
        self._manifest = manifest
        self._tasks = tasks
        self._codec = codec
        self._verify = verify
        self._seen = seen
        self._clock = clock
        self._bounds = bounds
        self._taken: OrderedDict[int, Counter[str]] = OrderedDict()
        self._trusted = bounds.trusted_peers
        self.blocked: frozenset[str] = frozenset()

    def take_opinions(self, opinions: Mapping[str, str]) -> None:
        """The operator's "trust" or "block" by node id, on top of the configured trust."""
        self._trusted = self._bounds.trusted_peers | {peer for peer, said in opinions.items() if said == "trust"}
        self.blocked = frozenset(peer for peer, said in opinions.items() if said == "block")

    async def admit(self, sealed: bytes, author: str) -> Admitted:
        """Open one frame that `author` offered and judge each of its groups."""
        try:
            frame, issued_at = self._open(sealed, author)
        except ProtocolError as refusal:
            verdict = Verdict(author, "", body_digest(sealed), refusal.reason, str(refusal))
            return Admitted((), (verdict,))
        groups: list[TrainGroup] = []
        refused: list[Verdict] = []
        for group in frame.groups:
            digest = group_digest(group, author)
            try:
                groups.append(await self._admit_group(group, frame.policy, author, issued_at, digest))
            except RefusedGroup as refusal:
                refused.append(Verdict(author, group.prompt.task, digest, refusal.reason, refusal.detail))
        return Admitted(tuple(groups), tuple(refused))

    def _open(self, sealed: bytes, author: str) -> tuple[Frame, float]:
        opened: Opened = open_envelope(
            sealed,
            swarm_id=self._manifest.swarm_id,
            kinds=frozenset({Kind.FRAME}),
            dictionary=text_dictionary(self._manifest.dictionary),
        )
        if opened.sender != author:
            raise ProtocolError(Reason.SIGNATURE, "the frame is signed by another node than the one that offered it")
        age = self._clock.now() - opened.issued_at
        if age < -limits.MAX_CLOCK_SKEW_SECONDS:
            raise ProtocolError(Reason.FUTURE, f"issued {-age:.0f} s ahead of this machine's clock")
        if age > limits.BODY_LIFETIME_SECONDS:
            raise ProtocolError(Reason.EXPIRED, f"issued {age:.0f} s ago")
        assert isinstance(opened.message, Frame)
        return opened.message, opened.issued_at

    async def _admit_group(
        self, group: Group, policy: PolicyRef, author: str, issued_at: float, digest: bytes
    ) -> TrainGroup:
        prompt = self._prompt(group, author)
        self._check_quota(author)
        self._check_texts(group, prompt)
        fresh = self._check_duplicates(group, author, digest)
        await self._check_rewards(group, author)
        usable = self._usable(group.evidence, policy, author)
        limit = self._bounds.max_completion_tokens
        admitted = TrainGroup(
            origin=Origin.FOREIGN,
            author=author,
            prompt=prompt,
            prompt_ids=self._codec.render(prompt),
            completions=tuple(learnable(c, usable, self._codec, limit) for c in group.completions),
            evidence=usable,
            policy_version=group.policy_version,
            created_at=issued_at,
            digest=digest,
        )
        _check_outcome(admitted)
        for key in fresh:
            self._seen.remember(key)
        return admitted

    def _usable(self, claimed: Evidence, policy: PolicyRef, author: str) -> Evidence:
        """What of the sender's claims may be used: nothing of strangers, sums where the token ids are another's."""
        if author not in self._trusted or claimed not in self._manifest.evidence:
            return Evidence.NONE
        if claimed is Evidence.TOKEN and policy.tokenizer != self._codec.fingerprint:
            return Evidence.SEQUENCE
        return claimed

    def _prompt(self, group: Group, author: str) -> Prompt:
        """The prompt that the reference names, rebuilt here: nobody picks the items he answers."""
        ref = group.prompt
        task = self._tasks.get((ref.task, ref.version))
        if task is None:
            raise RefusedGroup(Reason.UNKNOWN_TASK, f"{ref.task} v{ref.version}")
        slot_now = int(self._clock.now() // self._manifest.slot_seconds)
        oldest = slot_now - limits.BODY_LIFETIME_SECONDS // self._manifest.slot_seconds - 1
        if not oldest <= ref.slot <= slot_now + 1:
            raise RefusedGroup(Reason.SLOT, f"slot {ref.slot}, now {slot_now}")
        if not 0 <= ref.index < self._manifest.slice_size:
            raise RefusedGroup(Reason.INDEX, f"index {ref.index} of a slice of {self._manifest.slice_size}")
        size = len(group.completions)
        if not self._manifest.group_size_min <= size <= self._manifest.group_size_max:
            raise RefusedGroup(Reason.GROUP_SIZE, f"{size} completions")
        seed = item_seed(self._manifest.swarm_id, author, ref.slot, ref.task, ref.version)
        return prompt_of(task, task.item(seed, ref.index), ref, author)

    def _check_quota(self, author: str) -> None:
        slot = int(self._clock.now() // self._manifest.slot_seconds)
        counts = self._taken.setdefault(slot, Counter())
        while len(self._taken) > 2:
            self._taken.popitem(last=False)
        if counts[author] >= self._bounds.max_groups_per_peer_and_slot:
            raise RefusedGroup(Reason.QUOTA, f"{counts[author]} groups in this slot")
        counts[author] += 1

    def _check_texts(self, group: Group, prompt: Prompt) -> None:
        for completion in group.completions:
            if not completion.text and completion.finish is not Finish.STOP:
                raise RefusedGroup(Reason.EMPTY, "a completion of no tokens")
            _check_finish(completion, prompt)
            if completion.text and not self._codec.round_trips(completion.text):
                raise RefusedGroup(Reason.ROUND_TRIP, "this node's tokenizer cannot reproduce the text")
            tokens = len(self._codec.encode_completion(completion.text, completion.finish))
            if tokens > self._bounds.max_completion_tokens:
                raise RefusedGroup(Reason.TOO_LONG, f"{tokens} tokens here")

    def _check_duplicates(self, group: Group, author: str, digest: bytes) -> list[bytes]:
        """Keys to remember once the group is in. The later copy is the duplicate, never the first author's text."""
        ref = group.prompt
        reference = f"{author}/{ref.task}/{ref.version}/{ref.slot}/{ref.index}".encode()
        keys = [digest, _key(reference)]
        if any(self._seen.seen(key) for key in keys):
            raise RefusedGroup(Reason.DUPLICATE, "this prompt reference was answered before")
        copies = 0
        for completion in group.completions:
            text = completion.text.encode()
            if len(text) > NEAR_DUPLICATE_BYTES:
                by_anyone, by_author = _key(text), _key(text + author.encode())
                copies += self._seen.seen(by_anyone) and not self._seen.seen(by_author)
                keys += [by_anyone, by_author]
        if copies * 2 > len(group.completions):
            raise RefusedGroup(Reason.DUPLICATE, f"{copies} texts came from another node first")
        return keys

    async def _check_rewards(self, group: Group, author: str) -> None:
        ref = group.prompt
        spec = self._manifest.task(ref.task, ref.version)
        assert spec is not None
        seed = item_seed(self._manifest.swarm_id, author, ref.slot, ref.task, ref.version)
        try:
            rewards = await self._verify.score(spec, seed, ref.index, [c.text for c in group.completions])
        except TaskError as failure:
            log.warning("could not verify a group of %s: %s", author, failure)
            raise RefusedGroup(Reason.VERIFIER_FAILED, str(failure)) from failure
        for completion, reward in zip(group.completions, rewards, strict=True):
            if abs(completion.reward - reward) > REWARD_TOLERANCE:
                raise RefusedGroup(Reason.REWARD_MISMATCH, f"claimed {completion.reward:g}, is {reward:g}")


def _key(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _check_finish(completion: Completion, prompt: Prompt) -> None:
    """The claimed end must be the one that the task's stop rule gives: nothing may follow a finished answer."""
    match = re.match(prompt.stop_pattern, completion.text) if prompt.stop_pattern else None
    if (completion.finish is Finish.RULE) != (match is not None):
        raise RefusedGroup(Reason.FINISH, f"claims {completion.finish.value}, the stop rule says otherwise")
    if match and len(completion.text) - match.end() > STOP_RULE_SLACK_CHARS:
        raise RefusedGroup(Reason.FINISH, "text goes on after the stop rule")


def _check_outcome(group: TrainGroup) -> None:
    """Refuse a group that is all wrong: nobody learns from that, whatever a graded reward says. All-right ones stay,
    for the case that this node fails the task."""
    if group.right == 0:
        raise RefusedGroup(Reason.ZERO_SPREAD, "no completion is right")
