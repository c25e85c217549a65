"""No server: clients on a graph.

Decentralized Scaffnew mixes the clients' points along the edges of a graph. How well the graph is connected, measured
by the spectral gap, decides how many rounds this takes.
"""

# %%
import matplotlib.pyplot as plt
import networkx as nx

import proxskip as ps
from drawing import CYCLE, axes, line

problem = ps.Problem(ps.random_quadratics(n=10, d=8, L=1.0, mu=0.01, seed=1))
graphs = {name: ps.graphs.graph(name, 10) for name in ("complete", "ring", "path")}

# %%
fig, found = plt.subplots(1, 3, figsize=(7.5, 2.6), layout="constrained")
for k, (ax, (name, g)) in enumerate(zip(found, graphs.items())):
    drawn = nx.from_numpy_array(g.W > 0)
    drawn.remove_edges_from(nx.selfloop_edges(drawn))
    nx.draw_circular(drawn, ax=ax, node_size=60, node_color=CYCLE[k][0], edge_color="0.6")
    ax.set_title(f"{name}, gap {g.delta:.3f}")

# %%
ax = axes("gossip rounds", "f(x) − f*")
for k, (name, g) in enumerate(graphs.items()):
    result = ps.run(ps.DecentralizedScaffnew.theory(problem, graph=g), problem, rounds=400)
    line(ax, result.trace["round"], result.trace["gap"], name, k)
ax.legend(frameon=False)
