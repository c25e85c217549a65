"""How the control variates h are learned, on stacks with a row for each client, or on the one vector of a rank.

All of it is in place, since stacks of networks are large.
"""

from __future__ import annotations

from torch import Tensor

CONTROLS = ("step", "gradient", "dual", "momentum", "none")
DAMPED = 0.1
"""chi with minibatches: h repeats their noise in every step, and larger updates of it diverge."""


def to_send(
    control: str, moved: Tensor, mean_gradient: Tensor | None, h: Tensor, own_steps: Tensor | float | None = None
) -> list[Tensor]:
    """The vectors of a client: how far it moved and, where needed, its mean gradient less h (in place of the former).

    Args:
        own_steps: 1 / (K lr) where the clients' K differ: "step" then needs what each gradient was, too.
    """
    if control == "step" and own_steps is not None:
        return [moved, -moved * own_steps]
    if control == "gradient":
        assert mean_gradient is not None
        return [moved, mean_gradient.sub_(h)]  # the weighted sum of h is zero, so this has the mean of the gradients
    return [moved]


def news(
    control: str, h: Tensor, sent: list[Tensor], mean: list[Tensor], over_steps: Tensor | float, pull: float
) -> Tensor:
    """What the undamped rule would add to h after a round, in place of ``sent``.

    Args:
        sent, mean: the vectors of ``to_send`` as the others read them, and their means over the clients.
        over_steps: 1 / (K lr), for the rules that read a gradient off the distance.
        pull: the strength of the pull towards x, for "dual".
    """
    if control == "gradient" or (control == "step" and len(sent) > 1):
        return sent[1].sub_(mean[1])
    if control == "step":
        return sent[0].sub_(mean[0]).mul_(-over_steps)
    if control == "dual":
        return sent[0].mul_(-pull)
    # with "momentum" h is the one vector of all clients: the last step of the server, as a gradient
    return -(h + mean[0] * over_steps)
