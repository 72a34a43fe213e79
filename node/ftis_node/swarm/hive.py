"""The one place that imports hivemind, and what has to be put right about that.

Importing it brings torch along, renames the log level WARNING, prints by itself, and makes torch share tensors through
files in this process. From here on it speaks through the node's log, about errors only.
"""

from __future__ import annotations

import logging
import warnings

with warnings.catch_warnings():
    # hivemind scripts an activation function of its mixture-of-experts part at import; nothing here uses it.
    warnings.filterwarnings("ignore", message="`torch.jit.script`", category=DeprecationWarning)
    from hivemind.dht.node import DHTNode
    from hivemind.dht.protocol import DHTProtocol
    from hivemind.dht.routing import DHTID
    from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
    from hivemind.dht.validation import DHTRecord, RecordValidatorBase
    from hivemind.p2p import P2P, P2PDaemonError, P2PHandlerError, PeerID
    from hivemind.proto.dht_pb2 import PingRequest
    from hivemind.utils.logging import use_hivemind_log_handler
    from hivemind.utils.multiaddr import Multiaddr
    from hivemind.utils.timed_storage import TimedStorage

use_hivemind_log_handler("nowhere")
logging.addLevelName(logging.WARNING, "WARNING")
logging.getLogger("hivemind").setLevel(logging.ERROR)

__all__ = [
    "DHTID",
    "P2P",
    "DHTLocalStorage",
    "DHTNode",
    "DHTProtocol",
    "DHTRecord",
    "DictionaryDHTValue",
    "Multiaddr",
    "P2PDaemonError",
    "P2PHandlerError",
    "PeerID",
    "PingRequest",
    "RecordValidatorBase",
    "TimedStorage",
]
