"""What only one embedded backend promises: files, plans, leases, crashes."""
