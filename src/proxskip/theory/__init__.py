"""Theorems as functions: step sizes, probabilities, rates, complexities, Lyapunov functions."""

from proxskip.theory.follow_ups import *  # noqa: F403
from proxskip.theory.local_solver import *  # noqa: F403
from proxskip.theory.numbers import *  # noqa: F403
from proxskip.theory.theorems import *  # noqa: F403
