"""Members of many groups, cut into passes of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ftis_node.records import TrainGroup


@dataclass(slots=True)
class Pass:
    """What goes through the model together: for each group (by its place) some of its members. `prompt_width` and
    `width` are the tokens of the longest prompt and completion, to which all others are padded."""

    parts: list[tuple[int, list[int]]] = field(default_factory=list)
    prompt_width: int = 0
    width: int = 0
    rows: int = 0

    def tokens_with(self, place: int, prompt_tokens: int, tokens: int, shared_prefix: bool) -> int:
        """Padded tokens of the pass after one more completion."""
        known = bool(self.parts) and self.parts[-1][0] == place
        prompts = len(self.parts) + (not known) if shared_prefix else self.rows + 1
        return prompts * max(self.prompt_width, prompt_tokens) + (self.rows + 1) * max(self.width, tokens)

    def add(self, place: int, member: int, prompt_tokens: int, tokens: int) -> None:
        if not self.parts or self.parts[-1][0] != place:
            self.parts.append((place, []))
        self.parts[-1][1].append(member)
        self.prompt_width, self.width = max(self.prompt_width, prompt_tokens), max(self.width, tokens)
        self.rows += 1

    def real_tokens(self, groups: Sequence[TrainGroup]) -> int:
        """Tokens of the pass without padding: prompts once each, and completions."""
        prompts = sum(len(groups[place].prompt_ids) for place, _ in self.parts)
        return prompts + sum(len(groups[p].completions[m].token_ids) for p, members in self.parts for m in members)


def passes(
    wanted: Sequence[tuple[TrainGroup, Sequence[int]]], micro_tokens: int, *, shared_prefix: bool
) -> Iterator[Pass]:
    """The members of each group in passes of at most `micro_tokens` padded tokens, but never fewer than one member a
    pass. Groups keep their order; within one, members of similar length go together."""
    current = Pass()
    for place, (group, members) in enumerate(wanted):
        prompt = len(group.prompt_ids)
        for member in sorted(members, key=lambda m: -len(group.completions[m].token_ids)):
            tokens = len(group.completions[member].token_ids)
            if current.parts and current.tokens_with(place, prompt, tokens, shared_prefix) > micro_tokens:
                yield current
                current = Pass()
            current.add(place, member, prompt, tokens)
    if current.parts:
        yield current
