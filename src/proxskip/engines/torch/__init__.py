"""The torch engine: the local steps of all clients at once, on any device that PyTorch has."""
