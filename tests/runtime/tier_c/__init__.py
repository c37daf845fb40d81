"""Tier C: every race of §9.2 in both orders, by parked commits and held effects."""
