"""Sessions kept in Postgres: storage, leases, repository and retention."""
