"""Which clients take part in a round: ``run(..., cohort=...)`` takes a number, or one of these."""

from proxskip.links.cohorts import Bernoulli, Given, Uniform

__all__ = ["Bernoulli", "Given", "Uniform"]
