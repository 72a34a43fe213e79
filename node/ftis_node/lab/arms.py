"""The arms of the ablation: what a node believes of foreign groups, and what it does with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from ftis_node.config import Estimator, Negatives, Positives
from ftis_node.config_base import Section
from ftis_protocol.rollout import Evidence

Exchange = Literal["none", "vertical", "horizontal"]


class Arm(Section):
    """How foreign groups train in one arm.

    `exchange`: none (alone), vertical (whole groups of one author) or horizontal (groups pooled across nodes, which
    only the laboratory does). With `evidence` other than none every node trusts what the others tell of their policy.
    `filter_sum_nats` replaces the filter's mean per token by the sum over a completion; the others are the names of the
    configuration and of policy/ftis.py.
    """

    meaning: str = ""
    exchange: Exchange = "vertical"
    evidence: Evidence = Evidence.NONE
    estimator: Estimator = "ftis"
    positives: Positives = "pi"
    negatives: Negatives = "exact"
    rescue: bool = False
    weight_cap: Annotated[float, Field(gt=0)] = 2.0
    filter_mean_nats: Annotated[float, Field(gt=0)] = 0.25
    filter_sum_nats: Annotated[float, Field(gt=0)] | None = None


def _token(estimator: Estimator, meaning: str) -> Arm:
    return Arm(estimator=estimator, evidence=Evidence.TOKEN, meaning=meaning)


ARMS: Mapping[str, Arm] = {
    "alone": Arm(exchange="none", meaning="no exchange"),
    "nois": _token("nois", "foreign groups taken as own: every weight 1, no filter"),
    "vis": _token("vis", "importance weights without a cap, no filter"),
    "tis": _token("tis", "capped importance weights, no filter"),
    "f-nois": _token("f-nois", "the filter alone, every weight 1"),
    "f-vis": _token("f-vis", "importance weights without a cap, and the filter"),
    "f-tis-token": _token("ftis", "F-TIS with the log-probability of every token"),
    "f-tis-sequence": Arm(evidence=Evidence.SEQUENCE, meaning="F-TIS with one log-probability per completion"),
    "text-only": Arm(negatives="off", meaning="text and reward alone; foreign wrong answers do not train"),
    "text-only-surprise": Arm(
        negatives="surprise", meaning="text and reward alone; wrong answers no more surprising than own ones train"
    ),
    "horizontal": Arm(
        exchange="horizontal",
        evidence=Evidence.TOKEN,
        meaning="every group pooled from completions of all nodes, F-TIS with token evidence",
    ),
}
