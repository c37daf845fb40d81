"""The conformance suite over every backend of this project."""
