"""The hosting protocol as a model, and its checker."""
