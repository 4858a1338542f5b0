"""Losses, batches, student, teachers, checkpoints and the on-policy distillation loop."""
