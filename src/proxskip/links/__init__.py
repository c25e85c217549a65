"""Between server and clients: codecs, cohorts, graphs, networks and sums."""
