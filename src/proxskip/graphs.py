"""Networks without a server: a graph by name, from a mixing matrix, or from networkx."""

from proxskip.links.graphs import Graph, as_graph, from_matrix, graph, mixing_matrix

__all__ = ["Graph", "as_graph", "from_matrix", "graph", "mixing_matrix"]
