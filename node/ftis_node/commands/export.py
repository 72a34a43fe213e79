"""`ftis-node export`: the newest checkpoint as a model that everybody can load, with a card that says what it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ftis_node import __version__, metrics
from ftis_node.commands.options import ExportOptions
from ftis_node.commands.running import check_model, remembered_manifest
from ftis_node.config import ModelSection
from ftis_node.console import Console
from ftis_node.errors import UsageError
from ftis_node.learner import open_policy
from ftis_node.policy.adapter_export import export_adapter
from ftis_node.policy.checkpoint import CheckpointStore, StoredCheckpoint
from ftis_node.policy.export import export_type
from ftis_node.policy.update import Updater
from ftis_node.state import StateDir, SwarmDir
from ftis_node.store import Store
from ftis_protocol.manifest import SwarmManifest


def run(options: ExportOptions, console: Console) -> None:
    """Write the model and its card. UsageError where there is no checkpoint, or the directory holds something."""
    state = StateDir.existing(options.state_path())
    found = state.current_swarm()
    stored = CheckpointStore(found[1].checkpoints).latest() if found else None
    if found is None or stored is None:
        raise UsageError("this node has no checkpoint yet", hint="Let it train a while, then export again.")
    model = ModelSection.model_validate(stored.extra["model"])
    check_model(model.model, console)
    with console.step(f"loading {model.model} and checkpoint {stored.path.name}"):
        policy = open_policy(model, 0)
        restored = CheckpointStore(found[1].checkpoints).restore(Updater(policy))
    assert restored is not None
    with console.step(f"writing {options.out}"):
        if options.adapter:
            export_adapter(policy, options.out, str(model.model))
        else:
            policy.export_hf(options.out, export_type(options.dtype))
        facts = _facts(found[1], remembered_manifest(found[1]), restored, model)
        (options.out / "README.md").write_text(card(facts, adapter=options.adapter), encoding="utf-8")
    document = {"directory": str(options.out), "adapter": options.adapter, **facts}
    console.document(document if options.json else f"{options.out}: step {facts['step']} of {facts['base_model']}")


def _facts(
    folder: SwarmDir, manifest: SwarmManifest | None, stored: StoredCheckpoint, model: ModelSection
) -> dict[str, Any]:
    """What the card states; every number is read from this node's own records."""
    store = Store.view(folder.database)
    try:
        totals, probes = store.totals(), store.points(metrics.PASS_AT_1)
        node = store.fact("name")
    finally:
        store.close()
    return {
        "base_model": str(model.model),
        "trainable": model.trainable,
        "swarm": manifest.name if manifest else None,
        "swarm_id": manifest.swarm_id if manifest else None,
        "tasks": [spec.model_dump(mode="json") for spec in manifest.tasks] if manifest else [],
        "node": node,
        "step": stored.extra.get("step", 0),
        "policy_version": stored.policy_version,
        "own_groups_used": int(totals.get(metrics.OWN_GROUPS_USED, 0)),
        "foreign_groups_used": int(totals.get(metrics.FOREIGN_GROUPS_USED, 0)),
        "pass_at_1_first": probes[0].value if probes else None,
        "pass_at_1_last": probes[-1].value if probes else None,
        "pass_at_1_last_step": probes[-1].step if probes else None,
    }


def card(facts: dict[str, Any], *, adapter: bool) -> str:
    """The model card: what it was, who taught it, on what, and how it scored by its own node's probes."""
    front = {
        "base_model": facts["base_model"],
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["ftis-node", "reinforcement-learning"],
    }
    kind = "a LoRA adapter" if facts["trainable"] == "lora" and adapter else "the whole model, adapter merged"
    kind = kind if facts["trainable"] == "lora" else "the whole model"
    tasks = ", ".join(f"`{task['name']}` {json.dumps(task['parameters'])}" for task in facts["tasks"]) or "unknown"
    scores = "not measured"
    if facts["pass_at_1_last"] is not None:
        scores = (
            f"{facts['pass_at_1_first']:.3f} at the first probe, {facts['pass_at_1_last']:.3f} at step "
            f"{facts['pass_at_1_last_step']}"
        )
    rows = [
        ("Base model", f"`{facts['base_model']}`"),
        ("What this is", kind),
        ("Swarm", f"{facts['swarm'] or 'unknown'} (`{facts['swarm_id']}`)"),
        ("Tasks", tasks),
        ("Node", str(facts["node"] or "unnamed")),
        ("Steps", f"{facts['step']} batches, policy version {facts['policy_version']}"),
        (
            "Groups that moved weights",
            f"{facts['own_groups_used']} own, {facts['foreign_groups_used']} of other nodes",
        ),
        ("Held-out pass@1 (greedy)", scores),
        ("Software", f"ftis-node {__version__}"),
    ]
    yaml = "\n".join(f"{key}: {json.dumps(value)}" for key, value in front.items())
    table = "\n".join(f"| {title} | {value} |" for title, value in rows)
    return (
        f"---\n{yaml}\n---\n\n# {Path(facts['base_model']).name}, trained in a swarm\n\n"
        "Trained with F-TIS on text of its own and of other nodes of a peer-to-peer swarm. Scores are this node's own "
        "probes on held-out items of the swarm's tasks; `ftis-node eval` measures them again.\n\n"
        f"| | |\n|---|---|\n{table}\n"
    )
