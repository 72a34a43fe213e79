"""What the swarm counted reaches the store once, over rounds and restarts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ftis_node import metrics
from ftis_node.lab.harness import Lab, LabPlan
from ftis_node.loops.ledger import SwarmLedger
from ftis_node.swarm.board import Write
from ftis_node.swarm.flow import Limit
from ftis_protocol.errors import Reason
from ftis_protocol.keys import offers_key
from ftis_protocol.manifest import SwarmManifest

Rules = Callable[..., SwarmManifest]
MakePlan = Callable[..., LabPlan]


async def test_counts_are_booked_once(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a"))
        store, swarm = node.rooms.store, node.rooms.swarm
        ledger = SwarmLedger(store)
        ledger.book(swarm)
        before = store.totals()
        swarm.refused[Reason.SIGNATURE] += 3
        swarm.limited[Limit.UPLOAD] += 2
        swarm.traffic.read["offer"] += 500
        for _ in range(3):
            ledger.book(swarm)
        swarm.limited[Limit.UPLOAD] += 1
        ledger.book(swarm)
        gained = {name: value - before.get(name, 0) for name, value in store.totals().items()}
        assert gained[metrics.series(metrics.RECORDS_REFUSED, "signature")] == 3
        assert gained[metrics.series(metrics.FLOW_LIMITED, "upload")] == 3
        assert gained[metrics.series(metrics.BYTES_IN, "offer")] == 500


async def test_garbage_and_silence_show_in_the_metrics(letters: Rules, plan: MakePlan, tmp_path: Path) -> None:
    async with Lab(tmp_path, letters()) as lab:
        node = await lab.add(plan("a"))
        slot = int(lab.clock.now() // lab.manifest.slot_seconds)
        lab.network.place(Write(offers_key(lab.manifest.swarm_id, 0, slot), b"junk", lab.clock.now() + 30, "junk"))
        await node.exchange.once()
        lab.network.cut(node.rooms.swarm.node_id)
        await node.exchange.once()
        totals = node.rooms.store.totals()
        assert totals[metrics.series(metrics.RECORDS_REFUSED, "schema")] == 1
        assert totals[metrics.SWARM_FAILURES] > 0
