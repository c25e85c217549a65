"""What a run leaves behind: trace, result, run folder, checkpoint."""
