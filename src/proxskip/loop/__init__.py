"""The loop around a round: exchange, ledger, measurements, verdicts, stop rules."""
