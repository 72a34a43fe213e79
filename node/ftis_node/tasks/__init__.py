"""Where prompts come from and how answers are checked. Nothing here imports torch."""
