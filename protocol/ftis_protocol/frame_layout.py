"""The compact form of a frame: one flat list of integers, texts and byte strings.

What all groups share is there once; what differs lies in columns, so that equal things are neighbours and compress
well. The list never nests, which lets a reader forbid nested values outright and so bounds what hostile bytes can
make it allocate.

    per frame        slot, model, revision, tokenizer, trainable, names of the tasks, number of groups
    per task         version
    per group        task (index into the names), slot, index, policy version, evidence, size
    per completion   finish, reward, length of the text in UTF-8 bytes, then all texts in one run
    SEQUENCE         log-prob sum of each completion in such groups
    TOKEN            number of tokens of each completion in such groups, token ids, log-probs
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from ftis_protocol import limits
from ftis_protocol.columns import pack_floats, pack_ints, unpack_floats, unpack_ints
from ftis_protocol.errors import Reason, WireError
from ftis_protocol.rollout import Completion, Evidence, Finish, Frame

FIELD_TYPES: tuple[type, ...] = (int, str, str, str, str, str, int, *[bytes] * 15)
FIRST_COLUMN, LENGTHS, TEXTS = 7, 16, 17  # places in the list
_FINISHES = (Finish.STOP, Finish.LENGTH, Finish.RULE)
_TIERS = (Evidence.NONE, Evidence.SEQUENCE, Evidence.TOKEN)
_TASK_SEPARATOR = "\n"  # names hold no line breaks


def flatten(frame: Frame) -> list[Any]:
    """Frame -> its flat list, of the types FIELD_TYPES."""
    groups = frame.groups
    tasks = sorted({(group.prompt.task, group.prompt.version) for group in groups})
    completions = [completion for group in groups for completion in group.completions]
    texts = [completion.text.encode() for completion in completions]
    policy = frame.policy
    return [
        frame.slot,
        policy.model,
        policy.revision,
        policy.tokenizer,
        policy.trainable,
        _TASK_SEPARATOR.join(name for name, _ in tasks),
        len(groups),
        pack_ints([version for _, version in tasks]),
        pack_ints([tasks.index((group.prompt.task, group.prompt.version)) for group in groups]),
        pack_ints([group.prompt.slot for group in groups]),
        pack_ints([group.prompt.index for group in groups]),
        pack_ints([group.policy_version for group in groups]),
        pack_ints([_TIERS.index(group.evidence) for group in groups]),
        pack_ints([len(group.completions) for group in groups]),
        pack_ints([_FINISHES.index(completion.finish) for completion in completions]),
        pack_floats([completion.reward for completion in completions]),
        pack_ints([len(text) for text in texts]),
        b"".join(texts),
        *_evidence_columns(completions),
    ]


def restore(fields: Sequence[Any]) -> dict[str, Any]:
    """A flat list of the types FIELD_TYPES -> the plain form of a frame, still to be validated. Raises WireError."""
    slot, model, revision, tokenizer, trainable, names, count, versions, *columns = fields
    if not 1 <= count <= limits.MAX_FRAME_GROUPS:
        raise WireError(Reason.SIZE, f"a frame has 1 to {limits.MAX_FRAME_GROUPS} groups, this one {count}")
    task_names = names.split(_TASK_SEPARATOR)
    tasks = list(zip(task_names, unpack_ints(versions, len(task_names)), strict=True))
    task_of, slots, indices, policy_versions, tiers, sizes = (unpack_ints(column, count) for column in columns[:6])
    if max(sizes) > limits.MAX_GROUP_SIZE:
        raise WireError(Reason.GROUP_SIZE, f"a group has at most {limits.MAX_GROUP_SIZE} completions")
    evidence = [_pick(_TIERS, tier) for tier in tiers]
    members = _completions(columns[6:], [tier for tier, size in zip(evidence, sizes, strict=True) for _ in range(size)])
    groups = []
    for position in range(count):
        task, version = _pick(tasks, task_of[position])
        prompt = {"task": task, "version": version, "slot": slots[position], "index": indices[position]}
        group = {
            "prompt": prompt,
            "policy_version": policy_versions[position],
            "evidence": evidence[position],
            "completions": tuple(islice(members, sizes[position])),
        }
        groups.append(group)
    policy = {"model": model, "revision": revision, "tokenizer": tokenizer, "trainable": trainable}
    return {"slot": slot, "policy": policy, "groups": tuple(groups)}


def _evidence_columns(completions: Sequence[Completion]) -> list[bytes]:
    sums = [completion.logprob_sum for completion in completions if completion.logprob_sum is not None]
    tokens = [completion.token_ids for completion in completions if completion.token_ids is not None]
    logprobs = [completion.logprobs for completion in completions if completion.logprobs is not None]
    return [
        pack_floats(sums),
        pack_ints([len(ids) for ids in tokens]),
        pack_ints([token for ids in tokens for token in ids]),
        pack_floats([value for values in logprobs for value in values]),
    ]


def _completions(columns: Sequence[bytes], tiers: Sequence[Evidence]) -> Iterator[dict[str, Any]]:
    """The completions of the whole frame in order; `tiers` has the evidence tier of each."""
    finishes, rewards, lengths, run, sums, counts, ids, logprobs = columns
    size = len(tiers)
    texts = _slices(run, unpack_ints(lengths, size))
    token_counts = unpack_ints(counts, tiers.count(Evidence.TOKEN))
    total = sum(token_counts)
    if total > limits.MAX_FRAME_TOKENS:
        raise WireError(Reason.SIZE, f"a frame describes at most {limits.MAX_FRAME_TOKENS} tokens, this one {total}")
    told_sums = iter(unpack_floats(sums, tiers.count(Evidence.SEQUENCE)))
    told_ids = iter(runs(unpack_ints(ids, total), token_counts))
    told_logprobs = iter(runs(unpack_floats(logprobs, total), token_counts))
    plain = zip(texts, unpack_ints(finishes, size), unpack_floats(rewards, size), tiers, strict=True)
    for text, finish, reward, tier in plain:
        completion: dict[str, Any] = {"text": text, "finish": _pick(_FINISHES, finish), "reward": reward}
        if tier is Evidence.SEQUENCE:
            completion["logprob_sum"] = next(told_sums)
        elif tier is Evidence.TOKEN:
            completion |= {"token_ids": next(told_ids), "logprobs": next(told_logprobs)}
        yield completion


def _slices(run: bytes, lengths: Sequence[int]) -> list[str]:
    if sum(lengths) != len(run):
        raise WireError(Reason.SCHEMA, "the lengths of the texts do not add up")
    try:
        return [piece.decode() for piece in runs(run, lengths)]
    except UnicodeDecodeError as error:
        raise WireError(Reason.SCHEMA, "a text is not UTF-8") from error


def runs(values: Any, lengths: Sequence[int]) -> Iterator[Any]:
    """Pieces of those lengths, one behind the other."""
    start = 0
    for length in lengths:
        yield values[start : start + length]
        start += length


def _pick(choices: Sequence[Any], index: int) -> Any:
    if index >= len(choices):
        raise WireError(Reason.SCHEMA, "a code that stands for nothing")
    return choices[index]
