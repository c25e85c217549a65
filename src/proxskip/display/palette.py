"""The colors of all figures, which people with any color vision can tell apart, with dashes and markers for each."""

# the colors of Okabe and Ito (https://jfly.uni-koeln.de/color) without yellow, which is faint on white, and a grey
CYCLE = (
    ("#D55E00", "-", "o"),
    ("#7F7F7F", "-", "s"),
    ("#000000", "-.", "^"),
    ("#E69F00", ":", "v"),
    ("#0072B2", "--", "P"),
    ("#009E73", "-.", "X"),
    ("#56B4E9", "--", "<"),
    ("#CC79A7", ":", "D"),
)
"""Color, dashes and marker by position; no two share a marker, so that lines differ in print and without color too."""
ORANGE, GREY, BLACK, AMBER, BLUE, GREEN, SKY, PINK = (color for color, _, _ in CYCLE)
