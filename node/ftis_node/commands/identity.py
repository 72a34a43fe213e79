"""`ftis-node identity show`: who this node is."""

from __future__ import annotations

from ftis_node.commands.options import ReadOptions
from ftis_node.console import Console
from ftis_node.state import StateDir
from ftis_protocol.identity import Identity


def show(options: ReadOptions, console: Console) -> None:
    """Print node id, friendly name and key path. IdentityError when the key file is missing or damaged."""
    path = StateDir.path_of(options.state_path()) / "identity.key"
    identity = Identity.load(path)
    facts = {
        "node_id": identity.node_id,
        "name": identity.friendly_name,
        "public_key": identity.public_key.hex(),
        "key_file": str(path),
    }
    if options.json:
        console.document(facts)
        return
    width = max(map(len, facts))
    console.document("\n".join(f"{key.replace('_', ' '):<{width}}  {value}" for key, value in facts.items()))
