"""The room that examines a machine before a node runs on it: gates with a verdict, the reason and the remedy."""
