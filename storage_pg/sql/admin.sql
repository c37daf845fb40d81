-- Statements of the owner: partitions, roles, migration locks.

-- name: partition_lock
-- One process at a time makes partitions; freed at the end of the transaction.
SELECT pg_advisory_xact_lock(hashtextextended('laneway.partitions', 0))

-- name: partition_create
-- One dated partition; identifiers and bounds are quoted by the driver.
CREATE TABLE {partition} PARTITION OF {table} FOR VALUES FROM ({low}) TO ({high})

-- name: partition_list
-- The partitions of the named tables, with their bounds as text and the server's estimates.
SELECT parent.relname, child.relname, pg_get_expr(child.relpartbound, child.oid),
       greatest(child.reltuples, 0)::bigint, pg_total_relation_size(child.oid)
FROM pg_inherits AS i
JOIN pg_class AS parent ON parent.oid = i.inhparent
JOIN pg_class AS child ON child.oid = i.inhrelid
JOIN pg_namespace AS n ON n.oid = parent.relnamespace
WHERE n.nspname = %s AND parent.relkind = 'p' AND parent.relname = ANY (%s)
ORDER BY 1, 2

-- name: migration_lock
-- One process at a time migrates; held by the connection until it closes.
SELECT pg_advisory_lock(hashtextextended('laneway.migrate', 0))

-- name: schema_create
CREATE SCHEMA IF NOT EXISTS laneway

-- name: schema_revision_exists
SELECT to_regclass('laneway.schema_version') IS NOT NULL

-- name: schema_revision_get
-- Where Alembic notes the newest migration that was applied.
SELECT version_num FROM laneway.schema_version

-- name: schema_floor_create
-- One row: the revision that a build must know to work with this schema, written by each migration.
CREATE TABLE IF NOT EXISTS laneway.schema_floor (
    the_one boolean PRIMARY KEY DEFAULT true CHECK (the_one), revision text NOT NULL)

-- name: schema_floor_exists
SELECT to_regclass('laneway.schema_floor') IS NOT NULL

-- name: schema_floor_set
INSERT INTO laneway.schema_floor (revision) VALUES (%s)
ON CONFLICT (the_one) DO UPDATE SET revision = excluded.revision

-- name: schema_floor_get
SELECT revision FROM laneway.schema_floor

-- name: role_exists
SELECT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = %s)

-- name: role_is_safe
-- Whether a role is held to row-level security: it is no superuser, may not bypass it, and owns
-- nothing in the schema.
SELECT NOT r.rolsuper AND NOT r.rolbypassrls AND NOT EXISTS (
    SELECT 1 FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = 'laneway' AND c.relowner = r.oid
)
FROM pg_roles AS r WHERE r.rolname = %s

-- name: grant_schema
-- What the application role may do: call functions, and run the job queue, which lives in public.
GRANT USAGE ON SCHEMA laneway TO {role};
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA laneway TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role};
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role};
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO {role}

-- name: grantable_tables
-- Tables whose rows the application role reads and writes. No partitions: a partitioned table's
-- row-level security does not hold for who names a partition itself.
SELECT c.relname
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'laneway' AND c.relkind IN ('r', 'p') AND NOT c.relispartition

-- name: grant_table
GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {role}
