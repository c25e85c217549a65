"""How clients are averaged: sums in client order, communication graphs, cohorts."""
