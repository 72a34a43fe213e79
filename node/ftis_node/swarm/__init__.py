"""The room that meets other nodes: presence, offers, frames and the swarm's manifest over a distributed hash table.

It is the only room that imports hivemind, and it knows nothing about learning. `base` holds what the rest of a node
sees, `member` the behaviour, `memory` and `dht` the two boards it runs on.
"""
