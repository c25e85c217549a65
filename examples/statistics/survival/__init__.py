"""Time until an arrest, at five sites that share no rows."""
