"""Engines that generate and score, the fleet that hosts them, trackers and the collector."""
