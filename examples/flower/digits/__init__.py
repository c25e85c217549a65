"""Odd or even? Handwritten digits, sorted by label and dealt to the clients, so that no two clients are alike."""
