"""One function without clients: the exchange and the descent of ``minimize``."""
