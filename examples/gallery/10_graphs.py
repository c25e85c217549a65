"""No server: clients on a graph
=============================

Decentralized Scaffnew mixes the clients' points along the edges of a graph. How well the graph is connected, measured
by the spectral gap, decides how many rounds this takes.
"""

# %%
import matplotlib.pyplot as plt
import networkx as nx

import proxskip as ps

problem = ps.Problem(ps.random_quadratics(n=10, d=8, L=1.0, mu=0.01, seed=1))
graphs = {name: ps.graphs.graph(name, 10) for name in ("complete", "ring", "path")}

# %%
figure, axes = plt.subplots(1, 3, figsize=(7.5, 2.6), layout="constrained")
for ax, (name, g) in zip(axes, graphs.items()):
    drawn = nx.from_numpy_array(g.W > 0)
    drawn.remove_edges_from(nx.selfloop_edges(drawn))
    nx.draw_circular(
        drawn, ax=ax, node_size=60, node_color=ps.DecentralizedScaffnew.about.style.color, edge_color="0.6"
    )
    ax.set_title(f"{name}, gap {g.delta:.3f}")
plt.show()

# %%
results = {
    name: ps.run(ps.DecentralizedScaffnew.theory(problem, graph=g), problem, rounds=400) for name, g in graphs.items()
}
ps.plot(results)
plt.show()
