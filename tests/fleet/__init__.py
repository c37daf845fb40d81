"""Tests of a fleet of real processes on a real database, killed, stopped and continued."""
