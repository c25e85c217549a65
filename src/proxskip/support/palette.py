"""Colors that people with any color vision can tell apart: those of curves that belong to no method.

Each method has a color of its own, which stands in its description (``about.style``); no two methods share one, and no
method has one of ``CYCLE``. Any two of all these are at least 17 apart in CIELAB, and 9 for people who see two primary
colors only. Dark pages invert the lightness and keep the hue.
"""

CYCLE = (
    ("#8796FF", "-", "o"),
    ("#692D0F", "-", "s"),
    ("#78A53C", "-.", "^"),
    ("#873C87", ":", "v"),
    ("#D26969", "--", "P"),
    ("#004B3C", "-.", "X"),
    ("#C3B469", "--", "<"),
    ("#4B2D5A", ":", "D"),
)
"""Color, dashes and marker by position; no two share a marker, so that lines differ in print and without color too."""
# the colors of Okabe and Ito (https://jfly.uni-koeln.de/color) without yellow, which is faint on white, and a grey
ORANGE = "#D55E00"
GREY = "#7F7F7F"
BLACK = "#000000"
AMBER = "#E69F00"
BLUE = "#0072B2"
GREEN = "#009E73"
SKY = "#56B4E9"
PINK = "#CC79A7"
