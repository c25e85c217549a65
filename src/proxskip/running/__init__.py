"""The loop around a round: exchange, ledger, measurements, stopping rules."""
