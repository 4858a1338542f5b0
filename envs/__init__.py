"""Dialogues whose intent changes, and the graders of their source tasks. No torch, no ray."""
