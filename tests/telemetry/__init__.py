"""Spans: which there are, where they hang, what they say, and what they never say."""
