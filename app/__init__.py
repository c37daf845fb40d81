"""The HTTP service, console and command line."""
