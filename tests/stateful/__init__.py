"""Random public calls with random deaths, on two backends side by side (§9.1, design §14)."""
