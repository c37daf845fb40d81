"""Named SQL statements; `storage_pg.queries` loads them."""
