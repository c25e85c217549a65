"""Each figure and table of the paper: what runs, and what it must show."""
