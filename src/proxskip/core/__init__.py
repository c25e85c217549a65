"""The four roles that meet in a round: Client, Exchange, Method, Engine.

A method has a server half and client halves; an engine runs the local steps.

    The *server half* (``Method.round``) says what to send and what to do with the average.
    The *client half* says which ``h`` to use and what to remember.
    Between them stands ``exchange``; inside the client half stands ``descend(x, h, gamma, K)``,
    which does  ``x <- x - gamma * (g(x) - h)``  K times.  Nothing else crosses.

What follows:

* A client half uses only ``+ - * /`` on arrays, so the same lines run on one client's ``(d,)`` vectors and on the ``(c,
  d)`` stack of a cohort.
* A client's memory is a pure function of the messages it saw. The engine that moves vectors counts them, never the
  method.
* The server draws everything shared (local steps, the cohort, an anchor's coin) from a generator keyed by (seed,
  round). ``randomness`` lists every stream.
* ``settle`` tells exactly the averaged cohort the outcome: client i updates ``h_i`` once, with the ``x+`` of the round
  that averaged it.
"""

from proxskip.support.on_demand import attach_stub

# some of these names lie in rooms that import this one
__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
