"""The learner: model, log-probs, the F-TIS loss, the optimiser step, checkpoints. Only this room trains with torch."""
