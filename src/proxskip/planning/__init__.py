"""Which method, which p: pilots and forecasts."""
