"""Finding the rules of a swarm on a board."""

from __future__ import annotations

from ftis_node.errors import SwarmUnreachable, UsageError
from ftis_node.swarm.board import Board, BoardSilent
from ftis_node.swarm.reading import read_manifest
from ftis_protocol.errors import ProtocolError
from ftis_protocol.keys import discovery_key, manifest_key
from ftis_protocol.manifest import SwarmManifest

_LISTED = 8


async def find_manifest(board: Board, swarm_id: str | None) -> SwarmManifest:
    """The manifest of `swarm_id`, or of the only swarm on the board when it is None."""
    try:
        if swarm_id is None:
            return _only_one(await _announced(board))
        data = await board.value(manifest_key(swarm_id))
    except BoardSilent as error:
        raise SwarmUnreachable(
            f"the swarm's nodes stopped answering: {error}", hint="Try again in a moment."
        ) from error
    if data is None:
        raise SwarmUnreachable(
            f"the nodes there do not know a swarm {swarm_id}",
            hint="Check the invite; if it is right, all members of that swarm may have left.",
        )
    return read_manifest(data, swarm_id)


async def _announced(board: Board) -> list[SwarmManifest]:
    key = discovery_key()
    found = (await board.dictionaries([key])).get(key, {})
    manifests = []
    for swarm_id, data in sorted(found.items()):
        try:
            manifests.append(read_manifest(data, swarm_id))
        except ProtocolError:
            continue  # a lie about a swarm is no swarm
    return manifests


def _only_one(manifests: list[SwarmManifest]) -> SwarmManifest:
    if not manifests:
        raise SwarmUnreachable(
            "no swarm is announced at that address", hint="Ask for the whole invite: ftis:SWARMID@ADDRESS."
        )
    if len(manifests) > 1:
        listed = "".join(f"\n  {manifest.swarm_id}  {manifest.name}" for manifest in manifests[:_LISTED])
        more = f"\n  and {len(manifests) - _LISTED} more" if len(manifests) > _LISTED else ""
        raise UsageError(
            f"{len(manifests)} swarms are announced at that address:{listed}{more}",
            hint="Choose one: put ftis: and its id, then @, in front of the address.",
        )
    return manifests[0]
