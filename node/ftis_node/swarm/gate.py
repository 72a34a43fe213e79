"""What stands between the network and this node's part of the hash table: every question and every record of a peer
passes here, and the flow limits decide before anything is unpacked."""

from __future__ import annotations

from ftis_node.swarm.flow import Limits
from ftis_node.swarm.hive import (
    NOT_FOUND,
    DHTProtocol,
    FindRequest,
    FindResponse,
    P2PContext,
    PingRequest,
    PingResponse,
    StoreRequest,
    StoreResponse,
)


class Gate:
    """Takes the calls of peers in the protocol's stead. Installed with `install`, which lets it replace the handlers
    that hivemind registered."""

    def __init__(self, protocol: DHTProtocol, limits: Limits) -> None:
        self._protocol = protocol
        self._limits = limits

    async def install(self) -> None:
        """From now on peers reach the protocol through this gate only. The caller sets the deadline."""
        await self._protocol.remove_p2p_handlers(self._protocol.p2p)
        await self._protocol.add_p2p_handlers(self._protocol.p2p, self)

    async def rpc_ping(self, request: PingRequest, context: P2PContext) -> PingResponse:
        """A peer introduces itself."""
        if not self._limits.admits_request(str(context.remote_id)):
            return PingResponse()
        return await self._protocol.rpc_ping(request, context)

    async def rpc_store(self, request: StoreRequest, context: P2PContext) -> StoreResponse:
        """A peer wants records kept here; beyond a limit all of them are refused, and it is told."""
        peer = str(context.remote_id)
        size = sum(map(len, request.values))
        if not (self._limits.admits_request(peer) and self._limits.admits_records(peer, len(request.keys), size)):
            return StoreResponse(store_ok=[False] * len(request.keys), peer=self._protocol.node_info)
        return await self._protocol.rpc_store(request, context)

    async def rpc_find(self, request: FindRequest, context: P2PContext) -> FindResponse:
        """A peer asks for values; beyond the upload cap it learns only who else might have them."""
        if not self._limits.admits_request(str(context.remote_id)):
            return FindResponse()
        response = await self._protocol.rpc_find(request, context)
        size = sum(len(result.value) for result in response.results)
        if size and not self._limits.admits_upload(size):
            for result in response.results:
                result.type = NOT_FOUND
                result.ClearField("value")
                result.ClearField("expiration_time")
        return response
