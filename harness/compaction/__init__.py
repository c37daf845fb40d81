"""Preparing and writing the summaries that stand for old context."""
