"""The tool protocol and the built-in tools."""
