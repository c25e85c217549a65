"""Data sets: files, checksums, downloads."""
