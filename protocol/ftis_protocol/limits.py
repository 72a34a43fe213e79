"""The numbers two nodes must agree on. Changing one is a change of the protocol.

Sizes `*_BYTES` are of the sealed envelope as it is stored; `*_DECOMPRESSED_BYTES` of the body once it is unpacked.
Ages and lifetimes are seconds. Limits a swarm may choose for itself are in its manifest, not here.
"""

from __future__ import annotations

PROTOCOL_VERSION = 1

# --- sizes of messages ---
MAX_FRAME_BYTES = 1024 * 1024
MAX_FRAME_DECOMPRESSED_BYTES = 8 * 1024 * 1024
# A frame compressed with a dictionary; a larger one travels without.
MAX_PACKED_FRAME_BYTES = 1024 * 1024
MAX_CARD_BYTES = 4 * 1024
MAX_OFFER_BYTES = 8 * 1024
MAX_MANIFEST_BYTES = 16 * 1024
MAX_DEPARTURE_BYTES = 1024
# A small message becomes Python objects of roughly twenty times its bytes; these caps keep that below 2 MiB.
MAX_CARD_DECOMPRESSED_BYTES = 16 * 1024
MAX_OFFER_DECOMPRESSED_BYTES = 64 * 1024
MAX_MANIFEST_DECOMPRESSED_BYTES = 64 * 1024
MAX_DEPARTURE_DECOMPRESSED_BYTES = 4 * 1024

# --- groups and frames ---
MIN_GROUP_SIZE = 2
MAX_GROUP_SIZE = 64
MAX_FRAME_GROUPS = 256
# Token evidence of more than this many tokens would not fit a frame's compressed size anyway.
MAX_FRAME_TOKENS = 256 * 1024
MAX_COMPLETION_CHARS = 64 * 1024
MAX_COMPLETION_TOKENS = 32 * 1024
MAX_TOKEN_ID = 2**32 - 1
# Log-probabilities are at most 0; a float32 log-softmax may overshoot by rounding.
LOGPROB_NOISE = 1e-3

# --- names, in characters ---
MAX_SWARM_NAME = 80
MAX_NODE_NAME = 64
MAX_TASK_NAME = 64
MAX_MODEL_NAME = 256
MAX_REVISION = 64
MAX_FINGERPRINT = 64
MAX_STATE = 32
MAX_SOFTWARE = 64
MAX_REASON_TEXT = 200
MAX_ADDRESS = 256
MAX_PARAMETER_NAME = 64
MAX_PARAMETER_TEXT = 256

# --- counts in small messages ---
MAX_MANIFEST_TASKS = 32
MAX_TASK_PARAMETERS = 32
MAX_CARD_PEERS = 64
MAX_CARD_ADDRESSES = 8
MAX_OFFER_FRAMES = 64
MAX_INVITE_ADDRESSES = 16
MAX_COUNT = 2**53
MAX_SHARDS = 1024
MAX_SLICE_SIZE = 2**20
MIN_SLOT_SECONDS = 1
MAX_SLOT_SECONDS = 3600

# --- ages ---
CARD_LIFETIME_SECONDS = 60
CARD_RENEW_SECONDS = 20
OFFER_LIFETIME_SECONDS = 600
BODY_LIFETIME_SECONDS = 600
MANIFEST_LIFETIME_SECONDS = 86_400
MANIFEST_RENEW_SECONDS = 3_600
MAX_CLOCK_SKEW_SECONDS = 3
