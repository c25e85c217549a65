"""Who is averaged with whom: sums in client order, graphs, cohorts, codecs."""
