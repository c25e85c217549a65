"""The four roles that meet in a round: Client, Exchange, Method, Engine.

A method has a server half and client halves; an engine runs the local steps.

    The *server half* (``Method.round``) says what to send and what to do with the average.
    The *client half* says which ``h`` to use and what to remember.
    Between them stands ``exchange``; inside the client half stands ``descend(x, h, gamma, K)``,
    which does  ``x <- x - gamma * (g(x) - h)``  K times.  Nothing else crosses.

What follows from it:

* A client half uses only ``+ - * /`` on arrays, so the same lines run on one client's ``(d,)`` vectors
  and on a whole cohort's ``(c, d)`` stack.
* What a client remembers is a pure function of the messages it saw. Communication is counted by the
  engine that moves it, never claimed by the method.
* The server draws everything that is shared (the number of local steps, the cohort, an anchor's coin) from a
  generator keyed by (seed, round). Everything else is keyed too; ``randomness`` lists every stream.
* ``settle`` tells exactly the cohort that was averaged what came of it: the update of ``h_i`` belongs to the
  round that averaged client i, with that round's ``x+``, once.
"""

from proxskip.interfaces.engine import BrokenOff, Engine, Mixed, Request, Size, Work, look
from proxskip.interfaces.exchange import Anchor, Client, ClientHalf, Exchange, Pull, Sent, SettleHalf, as_sent
from proxskip.interfaces.method import About, Claims, Lyapunov, Method, Style, from_solution

__all__ = [
    "About", "Anchor", "BrokenOff", "Claims", "Client", "ClientHalf", "Engine", "Exchange", "Lyapunov", "Method",
    "Mixed", "Pull", "Request", "Sent", "SettleHalf", "Size", "Style", "Work", "as_sent",
    "from_solution", "look",
]  # fmt: skip
