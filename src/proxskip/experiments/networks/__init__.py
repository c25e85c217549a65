"""Control variates for networks: splits of digits and a small language model, trained with and without them."""
