"""What nodes of a swarm say to each other: messages, their bytes, signatures and limits. See docs/protocol.md."""
