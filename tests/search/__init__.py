"""Search over every repository and with every index."""
