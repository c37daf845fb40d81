"""The model protocol and its adapters."""
