"""Problems: the functions to minimise, their split among clients, and their solutions."""
