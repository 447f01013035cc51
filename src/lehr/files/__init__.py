"""Atomic files and folders, strict JSON, and an append-only SQLite file."""
