"""Problems: the functions to minimize, their split among clients, and their solutions."""
