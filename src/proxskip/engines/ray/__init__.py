"""The Ray engine: clients in actors on a cluster, rebuilt exactly when one is lost."""
