"""Gates that need the model: it loads, its tokenizer keeps text, the task scores its own gold answers, and the engine
samples from exactly the learner's weights."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from ftis_node.compute import ComputeThread
from ftis_node.config import NodeConfig
from ftis_node.environment import cache_dir
from ftis_node.errors import FtisError, TaskError, UsageError
from ftis_node.fitting import ANSWERS_TRIED, check_answers
from ftis_node.health import Gate, failed, passed, unknown, warned
from ftis_node.learner import Places, open_policy, start_generator
from ftis_node.loops.handover import hand_over, weights_gap
from ftis_node.policy.model import Policy
from ftis_node.records import RIGHT_REWARD
from ftis_node.tasks.base import Task
from ftis_node.tasks.registry import build
from ftis_node.tasks.verify import VerifyPool
from ftis_protocol.manifest import TaskSpec


async def learning_gates(config: NodeConfig, specs: Sequence[TaskSpec]) -> tuple[Gate, ...]:
    """Model, tokenizer, one gate for each task, and the engine with its weight sync."""
    if not config.model.model:
        return (unknown("model", "none was given", "Name one with --model."), *await task_gates(specs))
    compute = ComputeThread()
    try:
        try:
            policy = await compute.run(open_policy, config.model, config.train.seed)
        except FtisError as error:
            return (failed("model", str(error), error.hint), *await task_gates(specs))
        text = f"{policy.name}: {policy.parameter_count:,} parameters on {policy.device}"
        tasks = [build(spec) for spec in specs]
        engine = await compute.run(_engine_gate, config, policy)
        return (passed("model", text), _tokenizer_gate(policy, tasks), *await task_gates(specs), engine)
    finally:
        compute.close()


def _tokenizer_gate(policy: Policy, tasks: Sequence[Task]) -> Gate:
    tokenizer = policy.codec.tokenizer
    try:
        for task in tasks:
            check_answers(task, policy)
    except UsageError as error:
        return failed("tokenizer", str(error), error.hint)
    tried = "answers of every task survive a round trip" if tasks else "no task to try it on"
    if not getattr(tokenizer, "chat_template", None):
        why = f"{tried}; it has no chat template, so prompts are plain text"
        return warned("tokenizer", why, "Take an instruction-tuned model if answers stay poor.")
    return passed("tokenizer", f"{tried}; it has an end token and a chat template")


async def task_gates(specs: Sequence[TaskSpec]) -> tuple[Gate, ...]:
    """Every task's checker must give full marks to gold answers and none to an empty text."""
    pool, gates = VerifyPool(), []
    try:
        for spec in specs:
            name, items = f"task {spec.name}", build(spec).held_out(ANSWERS_TRIED)
            try:
                gold = await pool.score_held_out(
                    spec, ANSWERS_TRIED, tuple((at, item.answer) for at, item in enumerate(items))
                )
                empty = await pool.score_held_out(spec, ANSWERS_TRIED, tuple((at, "") for at in range(len(items))))
            except TaskError as error:
                gates.append(failed(name, str(error), error.hint))
                continue
            wrong = sum(reward < RIGHT_REWARD for reward in gold)
            if wrong or any(reward >= RIGHT_REWARD for reward in empty):
                why = f"{wrong} of {len(gold)} gold answers do not score" if wrong else "an empty answer scores"
                gates.append(failed(name, why, "The task is at fault: report it with its name and parameters."))
            else:
                gates.append(passed(name, f"{len(gold)} gold answers score, empty ones do not"))
    finally:
        pool.close()
    return tuple(gates)


def _engine_gate(config: NodeConfig, policy: Policy) -> Gate:
    """Start the engine, hand it weights, and compare its log-probs of a fixed text with the learner's."""
    with tempfile.TemporaryDirectory(prefix="ftis-doctor-") as folder:
        scratch = Path(folder)
        places = Places(scratch / "none", scratch / "weights.safetensors", scratch / "engine", cache_dir())
        try:
            generator = start_generator(config.model, policy, places, lambda _: None)
            try:
                hand_over(policy, generator, places.weights)
                gap = weights_gap(policy, generator)
            finally:
                generator.close()
        except FtisError as error:
            return failed("engine start", str(error), error.hint)
        return passed("engine start", f"{generator.name} samples the learner's weights ({gap:.2g} nats apart)")
