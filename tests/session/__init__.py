"""Sessions as a whole."""
