"""Engines: where the client halves run. They know nothing of methods, and methods nothing of them."""
