"""The CPU engine."""
