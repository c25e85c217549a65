"""How the control variates h are learned, on stacks with a row for each client, or on the one vector of a rank.

All of it is in place, since stacks of networks are large.
"""

from __future__ import annotations

from torch import Tensor

CONTROLS = ("step", "gradient", "dual", "momentum", "none")


def to_send(control: str, moved: Tensor, mean_gradient: Tensor | None, h: Tensor) -> list[Tensor]:
    """The vectors of a client: how far it moved and, for "gradient", its mean gradient less h (in its place)."""
    if control == "gradient":
        assert mean_gradient is not None
        return [moved, mean_gradient.sub_(h)]  # the weighted sum of h is zero, so this has the mean of the gradients
    return [moved]


def learn(
    control: str, h: Tensor, sent: list[Tensor], mean: list[Tensor], chi: float, over_steps: Tensor | float, pull: float
) -> None:
    """Change h after a round; ``sent`` is used up.

    Args:
        sent, mean: the vectors of ``to_send`` as the others read them, and their means over the clients.
        chi: damps the change; 1 is the undamped rule.
        over_steps: 1 / (K lr), for the rules that read a gradient off the distance.
        pull: the strength of the pull towards x, for "dual".
    """
    if control == "gradient":
        h.add_(sent[1].sub_(mean[1]), alpha=chi)
    elif control == "step":
        h.sub_(sent[0].sub_(mean[0]).mul_(over_steps), alpha=chi)
    elif control == "dual":
        h.sub_(sent[0], alpha=chi * pull)
    elif control == "momentum":  # h is the one vector of all clients: the last step of the server, as a gradient
        h.add_(h + mean[0] * over_steps, alpha=-chi)
