"""Every metric of a node, once: name, unit, kind and meaning; the store, the console and docs/metrics.md read it here.

Names follow Prometheus: prefix `ftis_`, base units, `_total` for counters. Use the constants, never the strings. A
labelled metric makes one series for each label value, `series(BYTES_IN, "frame")` being
`ftis_bytes_in_total{kind="frame"}`. Node ids are never labels: their number has no bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """GAUGE: a value at a step. COUNTER: what is reported is what came on top; the store keeps the sum."""

    GAUGE = "gauge"
    COUNTER = "counter"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table. `label` names the label whose values split the metric, or is None."""

    name: str
    unit: str
    kind: Kind
    meaning: str
    label: str | None = None


TABLE: dict[str, Metric] = {}


def _gauge(name: str, unit: str, meaning: str, label: str | None = None) -> str:
    TABLE[name] = Metric(name, unit, Kind.GAUGE, meaning, label)
    return name


def _counter(name: str, unit: str, meaning: str, label: str | None = None) -> str:
    TABLE[name] = Metric(name, unit, Kind.COUNTER, meaning, label)
    return name


def series(name: str, value: str | None = None) -> str:
    """The series of metric `name`; a labelled metric needs the label's value (letters, digits and `_` only)."""
    label = TABLE[name].label
    assert (label is None) == (value is None), f"{name}: label {label!r} and value {value!r} do not go together"
    if value is None:
        return name
    assert value.replace("_", "").isalnum(), f"{name}: label value {value!r} would need quoting"
    return f'{name}{{{label}="{value}"}}'


def metric_of(series_name: str) -> Metric:
    """The table row that a series belongs to; a series outside the table is a mistake of ours (KeyError)."""
    return TABLE[series_name.partition("{")[0]]


# Learning
OWN_REWARD = _gauge("ftis_own_reward_mean", "reward", "Mean reward of the own completions in the step.")
OWN_REWARD_LOW = _gauge("ftis_own_reward_p10", "reward", "Tenth percentile of the mean rewards of own groups.")
OWN_REWARD_HIGH = _gauge("ftis_own_reward_p90", "reward", "Ninetieth percentile of the mean rewards of own groups.")
FOREIGN_REWARD = _gauge("ftis_foreign_reward_mean", "reward", "Mean reward of the foreign completions in the step.")
PASS_AT_1 = _gauge("ftis_pass_at_1_ratio", "ratio", "Held-out items answered right by one greedy completion.")
LOSS = _gauge("ftis_loss", "1", "Loss of the step; its size says little, its being finite a lot.")
GRADIENT_NORM = _gauge("ftis_gradient_norm", "1", "Global norm of the gradient before clipping.")
OWN_SURPRISE = _gauge(
    "ftis_own_surprise_nats",
    "nats",
    "Mean negative log-probability per token of own completions as they were sampled: the estimate of the policy's "
    "entropy that costs nothing.",
)
COMPLETION_TOKENS = _gauge("ftis_completion_tokens_mean", "tokens", "Mean length of own completions.")
TRUNCATED = _gauge("ftis_truncated_ratio", "ratio", "Own completions cut at the token limit.")
ZERO_SPREAD = _gauge("ftis_zero_spread_ratio", "ratio", "Own groups all right or all wrong: no signal.")
SKIPPED_STEPS = _counter(
    "ftis_skipped_steps_total", "steps", "Steps not taken: empty, fully filtered, or not finite.", "cause"
)

# What trained
OWN_GROUPS_DRAWN = _counter("ftis_own_groups_drawn_total", "groups", "Own groups drawn for a step.")
FOREIGN_GROUPS_DRAWN = _counter("ftis_foreign_groups_drawn_total", "groups", "Foreign groups drawn for a step.")
OWN_GROUPS_USED = _counter("ftis_own_groups_used_total", "groups", "Own groups with a non-zero weight in a step.")
FOREIGN_GROUPS_USED = _counter(
    "ftis_foreign_groups_used_total", "groups", "Foreign groups with a non-zero weight in a step."
)
FOREIGN_GROUPS_UNUSED = _counter(
    "ftis_foreign_groups_unused_total", "groups", "Foreign groups admitted that did not train, by reason.", "reason"
)
RESCUE_TEXTS = _counter("ftis_rescue_texts_total", "completions", "Foreign completions trained by the rescue rule.")
RESCUE_ACTIVE = _gauge("ftis_rescue_active_tasks", "tasks", "Tasks on which the rescue rule is switched on.")

# Stability
CLIPPED = _gauge(
    "ftis_clipped_weight_ratio", "ratio", "Tokens whose importance weight was cut at its cap, by origin.", "origin"
)
CLIP_HELD = _gauge(
    "ftis_clip_held_ratio",
    "ratio",
    "Tokens without gradient because the policy left the clip range; 0 with one step a batch, by origin.",
    "origin",
)
FILTERED = _gauge(
    "ftis_filtered_ratio", "ratio", "Completions that filter or rescue gate left without gradient, by origin.", "origin"
)
NEGATIVES_OFF = _gauge(
    "ftis_negatives_off_ratio", "ratio", "Foreign completions left out because nothing could judge a wrong answer."
)
EFFECTIVE_SAMPLE = _gauge(
    "ftis_effective_sample_ratio",
    "ratio",
    "Effective sample size of the importance weights over the token count, by origin.",
    "origin",
)
MISMATCH_KL_OWN = _gauge(
    "ftis_own_mismatch_kl_nats", "nats", "Mean per token of log(behaviour / policy) on own completions."
)
MISMATCH_KL_FOREIGN = _gauge(
    "ftis_foreign_mismatch_kl_nats", "nats", "Mean per token of log(behaviour / policy) where the sender gave evidence."
)
OWN_WEIGHT = _gauge("ftis_own_weight_mean", "ratio", "Mean importance weight of own tokens; 1 when nothing is stale.")
FOREIGN_WEIGHT = _gauge("ftis_foreign_weight_mean", "ratio", "Mean importance weight of foreign tokens.")
FOREIGN_SURPRISE = _gauge(
    "ftis_foreign_surprise_nats", "nats", "Mean negative log-probability per token of foreign completions."
)
POLICY_VERSION = _gauge("ftis_policy_version", "steps", "Optimiser steps taken since the first start.")
POLICY_LAG = _gauge("ftis_policy_lag_steps", "steps", "Mean policy versions between sampling and training, own groups.")

# Throughput
STEP_SECONDS = _gauge("ftis_step_seconds", "seconds", "Wall time of the step, waiting included.")
GENERATE_SECONDS = _gauge("ftis_generate_seconds", "seconds", "Wall time of sampling since the last step.")
WAIT_GROUPS_SECONDS = _gauge("ftis_wait_groups_seconds", "seconds", "The learner's wait for groups before the step.")
LOAD_WEIGHTS_SECONDS = _gauge("ftis_load_weights_seconds", "seconds", "Time to hand new weights to the generator.")
WEIGHTS_GAP = _gauge(
    "ftis_weights_gap_nats", "nats", "Generator and learner on a fixed text after a hand-over, mean per token."
)
GROUPS_GIVEN_UP = _counter("ftis_groups_given_up_total", "groups", "Own groups that took longer than their time limit.")
TOKENS_PER_SECOND = _gauge("ftis_generated_tokens_per_second", "tokens per second", "Sampling speed.")
GENERATED_TOKENS = _counter("ftis_generated_tokens_total", "tokens", "Completion tokens sampled by this node.")
TRAINED_TOKENS = _counter("ftis_trained_tokens_total", "tokens", "Completion tokens in the groups of optimiser steps.")

# Exchange
PUBLISHED_GROUPS = _counter("ftis_published_groups_total", "groups", "Own groups stored for others.")
PUBLISHED_TOKENS = _counter(
    "ftis_published_tokens_total", "tokens", "Completion tokens in the groups stored for others."
)
KEPT_BACK = _counter(
    "ftis_groups_kept_back_total", "groups", "Own groups worth sending that were not sent, by reason.", "reason"
)
FETCHED_FRAMES = _counter("ftis_fetched_frames_total", "frames", "Frames of peers fetched.")
MISSING_FRAMES = _counter(
    "ftis_missing_frames_total", "frames", "Attempts to fetch a frame that a peer offers and nobody in reach had."
)
LOST_FRAMES = _counter("ftis_lost_frames_total", "frames", "Frames given up after the last of several attempts.")
RENEWED = _counter("ftis_renewed_records_total", "records", "Own frames and offers stored again when others lost them.")
RECORDS_REFUSED = _counter(
    "ftis_records_refused_total",
    "records",
    "Records of the hash table refused, as a storing node or as a reader, by reason.",
    "reason",
)
FLOW_LIMITED = _counter(
    "ftis_flow_limited_total", "records", "What a limit on bytes or records held back, by limit.", "limit"
)
SWARM_FAILURES = _counter("ftis_swarm_failures_total", "calls", "Questions that the network did not answer in time.")
FOREIGN_ADMITTED = _counter("ftis_foreign_groups_admitted_total", "groups", "Foreign groups taken into the buffer.")
FOREIGN_REFUSED = _counter(
    "ftis_foreign_groups_refused_total", "groups", "Foreign groups or frames refused, by reason.", "reason"
)
FOREIGN_TOKENS = _counter(
    "ftis_foreign_tokens_admitted_total", "tokens", "Completion tokens of the foreign groups taken into the buffer."
)
BYTES_IN = _counter("ftis_bytes_in_total", "bytes", "Message bytes received, by kind of message.", "kind")
BYTES_OUT = _counter("ftis_bytes_out_total", "bytes", "Message bytes sent, by kind of message.", "kind")
WIRE_BYTES_PER_TOKEN = _gauge(
    "ftis_wire_bytes_per_token", "bytes per token", "Size of published frames over the completion tokens in them."
)
BUFFER_GROUPS = _gauge("ftis_buffer_groups", "groups", "Groups waiting to be drawn, by origin.", "origin")
BUFFER_BYTES = _gauge("ftis_buffer_bytes", "bytes", "Memory of the groups waiting to be drawn.")
PEERS = _gauge("ftis_peers", "nodes", "Other nodes whose card is valid now.")

# The node itself
NODE_STATE = _gauge("ftis_node_state", "1", "1 for the state the node is in, 0 for those it has left.", "state")
PART_RESTARTS = _counter(
    "ftis_part_restarts_total", "restarts", "Parts started again after a failure, by part.", "part"
)
MEMORY_FREE = _gauge("ftis_memory_free_bytes", "bytes", "Memory that is still free, a container's limit counted.")
MEMORY_USED = _gauge("ftis_memory_used_bytes", "bytes", "Resident memory of the node and its child processes.")
BATCH_SHRUNK = _counter("ftis_batch_shrunk_total", "times", "Times that passes were made smaller to save memory.")

# The swarm as its cards tell it: claims of the nodes, added up by whoever looks
SWARM_NODES = _gauge("ftis_swarm_nodes", "nodes", "Nodes with a model that show a valid card, by state.", "state")
SWARM_SPEED = _gauge("ftis_swarm_tokens_per_second", "tokens per second", "Sampling speed of all nodes together.")
SWARM_STEPS = _gauge("ftis_swarm_policy_steps", "steps", "Optimiser steps of all present nodes together.")
SWARM_PUBLISHED = _gauge("ftis_swarm_published_groups", "groups", "Groups published by all present nodes together.")
SWARM_USED = _gauge("ftis_swarm_used_groups", "groups", "Foreign groups that moved weights of the present nodes.")
SWARM_PASS_AT_1 = _gauge("ftis_swarm_pass_at_1_ratio", "ratio", "Mean held-out score of the nodes that have one.")
OFFERED_GROUPS = _gauge("ftis_offered_groups", "groups", "Groups on offer in the sampled slots, seen by an observer.")
OFFERED_TOKENS = _gauge("ftis_offered_tokens", "tokens", "Completion tokens of the groups on offer.")
