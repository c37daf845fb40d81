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

-- Whole sessions going in and out, in transactions that have named their tenant.

-- name: copy_session
-- A session's own row.
SELECT created_at, cwd, parent_session_id::text, legacy_parent_session_path, storage_version,
       store_generation, metadata, next_seq, agent
FROM laneway.sessions WHERE id = %s::uuid

-- name: copy_entries
SELECT seq, created_at, id::text, parent_id::text, payload
FROM laneway.entries WHERE session_id = %s::uuid AND seq > %s ORDER BY seq

-- name: copy_path
-- From the root to an entry.
SELECT seq, created_at, id::text, parent_id::text, payload
FROM laneway.scan_branch(%s::uuid, %s::uuid, %s::uuid, NULL, NULL, NULL, NULL, false, NULL, NULL, true)

-- name: copy_values
SELECT seq, namespace, key, value
FROM laneway.scalar_values WHERE session_id = %s::uuid ORDER BY seq

-- name: copy_elements
SELECT seq, namespace, key, value
FROM laneway.list_values WHERE session_id = %s::uuid ORDER BY seq

-- name: copy_usage
SELECT id::text, seq, entry_id::text, adjustment, usage, details
FROM laneway.usage_ledger WHERE session_id = %s::uuid ORDER BY seq

-- name: copy_has_entry
SELECT EXISTS (SELECT 1 FROM laneway.entries WHERE session_id = %s::uuid AND id = %s::uuid)

-- name: restore_session
-- The row of a session that is about to be filled.
INSERT INTO laneway.sessions
    (id, tenant_id, created_at, updated_at, agent, metadata, cwd, parent_session_id,
     legacy_parent_session_path, storage_version, store_generation, next_seq, usage)
VALUES (%(id)s, %(tenant)s, %(created_at)s, %(stamp)s, %(agent)s, %(metadata)s, %(cwd)s,
        %(parent)s, %(legacy_parent)s, %(version)s, %(generation)s, 1, %(usage)s)

-- name: restore_entries
-- One array per column, one element per entry.
SELECT laneway.restore_entries(%s, %s, %s::uuid[], %s::uuid[], %s::bigint[], %s::bigint[],
                               %s::text[], %s::text[], %s::text[])

-- name: restore_usage
INSERT INTO laneway.usage_ledger
    (tenant_id, session_id, id, seq, created_at, entry_id, adjustment, usage, details)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)

-- name: restore_value
INSERT INTO laneway.scalar_values (tenant_id, session_id, seq, namespace, key, value)
VALUES (%s, %s, %s, %s, %s, %s)

-- name: restore_element
INSERT INTO laneway.list_values (tenant_id, session_id, seq, namespace, key, value)
VALUES (%s, %s, %s, %s, %s, %s)

-- name: restore_operation
-- An operation that was open goes on here: its receipt, and the row that makes somebody drive it.
WITH receipt AS (
    INSERT INTO laneway.operations (id, tenant_id, session_id, lane, kind, status, accepted_at)
    VALUES (%(id)s, %(tenant)s, %(session)s, %(lane)s, %(kind)s, 'open', %(accepted_at)s)
)
INSERT INTO laneway.open_operations
    (operation_id, tenant_id, session_id, lane, kind, accepted_at, due_at)
VALUES (%(id)s, %(tenant)s, %(session)s, %(lane)s, %(kind)s, %(accepted_at)s, %(due_at)s)

-- name: restore_totals
UPDATE laneway.sessions
SET next_seq = greatest(next_seq, %(next_seq)s), message_count = %(messages)s, usage = %(usage)s,
    name = %(name)s, updated_at = %(stamp)s
WHERE id = %(id)s

-- name: empty_session
SELECT laneway.empty_session(%s::uuid, %s::bigint)

-- name: discard_session
-- A session that nobody has ever claimed.
SELECT laneway.delete_session(%s::uuid, %s::uuid, 0)

-- The scheduler's statements. They see all tenants through functions that run as their owner.

-- name: dispatch_due
SELECT operation_id::text, tenant_id::text, session_id::text, lane, due_at
FROM laneway.dispatch_due(%s::bigint, %s::bigint, %s::integer, %s::integer)

-- name: outlook
SELECT next_due, backlog FROM laneway.outlook(%s::bigint)

-- name: begin_pass
SELECT passes, last_reason
FROM laneway.begin_pass(%s::uuid, %s::uuid, %s::uuid, %s::text)

-- name: excuse_pass
SELECT laneway.excuse_pass(%s::uuid, %s::uuid, %s::uuid)

-- name: sweep_page
SELECT operation_id, tenant_id::text, session_id::text, state_seq, state, meta, has_row, due_at
FROM laneway.sweep_page(%s::text, %s::integer)

-- name: repair_open_operation
SELECT laneway.repair_open_operation(
    %s::uuid, %s::uuid, %s::uuid, %s::bigint, %s::bigint, %s::text, %s::text, %s::bigint
)

-- name: owner_of
-- Who owns a session, for forwarding: no row when nobody does.
SELECT host_id::text, role, url FROM laneway.owner_of(%s::uuid, %s::uuid)

-- What the session host and its jobs ask; the functions are made by the migrations.

-- name: whereabouts
SELECT next_seq, agent, host_id::text, role, url FROM laneway.whereabouts(%s::uuid, %s::uuid)

-- name: find_operation
SELECT session_id::text, lane, kind, accepted_at
FROM laneway.find_operation(%s::uuid, %s::uuid)

-- name: due_of_session
SELECT operation_id::text, due_at FROM laneway.due_of_session(%s::uuid, %s::uuid)

-- name: wake_operation
SELECT laneway.wake_operation(%s::uuid, %s::uuid, %s::uuid, %s::bigint)

-- name: agent_profile
SELECT version, profile FROM laneway.agent_profile(%s::uuid, %s::text)

-- name: hint
-- Tells every listening process, in one transaction that does nothing else. Payloads are ids.
SELECT pg_notify('laneway', payload) FROM unnest(%s::text[]) AS payload

-- name: dispatch_jobs
-- Chooses what waits for a drive and queues a job for each, in one transaction. An operation whose
-- job is still queued gets no second one.
WITH chosen AS MATERIALIZED (
    SELECT * FROM laneway.dispatch_due(%(now)s, %(again_after)s, %(at_most)s, %(tenant_limit)s)
), queued AS (
    INSERT INTO public.procrastinate_jobs (queue_name, task_name, queueing_lock, args)
    SELECT %(queue)s, %(task)s, 'drive:' || c.operation_id,
           jsonb_build_object(
               'tenant_id', c.tenant_id, 'session_id', c.session_id, 'lane', c.lane,
               'operation_id', c.operation_id)
    FROM chosen AS c
    ON CONFLICT DO NOTHING
)
SELECT operation_id::text, tenant_id::text, session_id::text, lane, due_at FROM chosen

-- name: put_away_jobs
-- Jobs that a worker took and will not finish: its row is gone (pruned, or never there), has no recent
-- heartbeat, or the job began longer ago than any job takes. What they were for is in
-- open_operations or comes again by the clock, so they are removed.
DELETE FROM public.procrastinate_jobs AS j
WHERE j.status = 'doing' AND j.queue_name = %(queue)s
  AND (
      NOT EXISTS (
          SELECT 1 FROM public.procrastinate_workers AS w
          WHERE w.id = j.worker_id
            AND w.last_heartbeat > clock_timestamp() - make_interval(secs => %(silent)s))
      OR NOT EXISTS (
          SELECT 1 FROM public.procrastinate_events AS e
          WHERE e.job_id = j.id AND e.type = 'started'
            AND e.at > clock_timestamp() - make_interval(secs => %(longest)s))
  )
RETURNING j.id, j.task_name

-- name: queue_fetch_job
-- The queue's own statement, in a transaction that does not wait for the disk.
WITH relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
SELECT j.id, j.status, j.task_name, j.priority, j.lock, j.queueing_lock, j.args, j.scheduled_at,
       j.queue_name, j.attempts, j.worker_id
FROM relaxed, public.procrastinate_fetch_job_v2(%(queues)s::varchar[], %(worker_id)s) AS j

-- name: queue_finish_job
WITH relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
SELECT public.procrastinate_finish_job_v1(%(job_id)s, %(status)s, %(delete_job)s) FROM relaxed

-- Hosts and the leases they hold. claim, release and the identity lock run on the host's one lease
-- connection; the rest anywhere.

-- name: backend_pid
SELECT pg_backend_pid()

-- name: lease_settings
-- A backend whose client is gone frees its locks even while it runs a query.
SET client_connection_check_interval = '1s'

-- name: take_identity
-- The lock whose holder is this incarnation of a host.
SELECT pg_try_advisory_lock(%s::bigint)

-- name: register_host
INSERT INTO laneway.hosts (id, name, role, url, process_id, lock_key, lease_pid, capacity)
VALUES (%s::uuid, %s, %s, %s, %s, %s::bigint, pg_backend_pid(), %s)

-- name: remove_host
DELETE FROM laneway.hosts WHERE id = %s::uuid

-- name: heartbeat
UPDATE laneway.hosts SET heartbeat_at = clock_timestamp() WHERE id = %s::uuid

-- name: set_draining
UPDATE laneway.hosts SET draining = %s WHERE id = %s::uuid

-- name: claim
SELECT session_id::text, verdict, holder::text, fence, created_at, agent, name, metadata, cwd,
       parent_session_id::text, legacy_parent_session_path, storage_version, store_generation,
       next_seq, message_count, usage, namespaces, keys, seqs, contents
FROM laneway.claim_sessions(%s::uuid, %s::uuid[], %s::uuid[], %s::bigint[])

-- name: release
SELECT laneway.release_sessions(%s::uuid, %s::uuid[], %s::uuid[], %s::bigint[])

-- name: unlock
-- After a claim that failed part way: frees what it may have locked.
SELECT pg_advisory_unlock(k) FROM unnest(%s::bigint[]) AS k

-- name: bury_dead_hosts
-- Clears hosts whose identity lock is free. Never on a lease connection.
SELECT id::text, name, role, sessions FROM laneway.bury_dead_hosts()

-- name: cut_off_silent_hosts
SELECT id::text, name FROM laneway.cut_off_silent_hosts(make_interval(secs => %s))

-- name: list_hosts
SELECT id::text, name, role, url, process_id, capacity, draining,
       (extract(epoch FROM started_at) * 1000)::bigint,
       (extract(epoch FROM heartbeat_at) * 1000)::bigint
FROM laneway.hosts ORDER BY started_at, id

-- name: get_host
SELECT id::text, name, role, url, process_id, capacity, draining,
       (extract(epoch FROM started_at) * 1000)::bigint,
       (extract(epoch FROM heartbeat_at) * 1000)::bigint
FROM laneway.hosts WHERE id = %s::uuid

-- name: lock_capacity
-- How many advisory locks the server can hold in all, roughly.
SELECT current_setting('max_locks_per_transaction')::integer
       * (current_setting('max_connections')::integer
          + current_setting('max_prepared_transactions')::integer)

-- name: ping
-- Whether the database answers at all.
SELECT 1

-- The search index (see migrations/sql/0002/search.sql). All but the sweep run in a transaction that
-- has named its tenant.

-- name: search_entries
-- The best entries. Texts are fetched for the result only.
WITH best AS MATERIALIZED (
    SELECT m.session_id, m.entry_id, m.created_at, m.score
    FROM laneway.search_matches(
        %(tenant)s::uuid, %(wanted)s::tsquery, %(types)s::text[], %(labels)s::text[], %(most)s
    ) AS m
    ORDER BY m.score DESC, m.created_at DESC, m.entry_id DESC
    LIMIT %(limit)s
)
SELECT e.session_id::text, e.entry_id::text, e.type, e.created_at, b.score, e.body
FROM best AS b
JOIN laneway.search_entries AS e ON e.session_id = b.session_id AND e.entry_id = b.entry_id
ORDER BY b.score DESC, b.created_at DESC, b.entry_id DESC

-- name: search_sessions
-- The best entry of each of the best sessions, and how many match there.
WITH placed AS MATERIALIZED (
    SELECT m.session_id, m.entry_id, m.created_at, m.score,
           row_number() OVER (
               PARTITION BY m.session_id ORDER BY m.score DESC, m.created_at DESC, m.entry_id DESC
           ) AS place,
           count(*) OVER (PARTITION BY m.session_id) AS matches
    FROM laneway.search_matches(
        %(tenant)s::uuid, %(wanted)s::tsquery, %(types)s::text[], %(labels)s::text[], %(most)s
    ) AS m
), best AS MATERIALIZED (
    SELECT p.session_id, p.entry_id, p.created_at, p.score, p.matches
    FROM placed AS p WHERE p.place = 1
    ORDER BY p.score DESC, p.created_at DESC, p.entry_id DESC
    LIMIT %(limit)s
)
SELECT e.session_id::text, e.entry_id::text, e.type, e.created_at, b.score, e.body, b.matches
FROM best AS b
JOIN laneway.search_entries AS e ON e.session_id = b.session_id AND e.entry_id = b.entry_id
ORDER BY b.score DESC, b.created_at DESC, b.entry_id DESC

-- name: search_positions
SELECT session_id::text, created_at, generation, cursor, stamp, labels
FROM laneway.search_sessions WHERE session_id = ANY (%s::uuid[])

-- name: search_lock
SELECT laneway.search_lock(%s::uuid)

-- name: search_store
-- Which store a session has now. The share of its key keeps it from being deleted meanwhile and
-- hinders no commit.
SELECT created_at, store_generation FROM laneway.sessions WHERE id = %s::uuid FOR KEY SHARE

-- name: search_forget
SELECT laneway.search_forget(%s::uuid)

-- name: search_add
-- Within one store an entry never changes: what is there already stays.
INSERT INTO laneway.search_entries
    (session_id, entry_id, tenant_id, created_at, type, body, terms)
SELECT %(session)s::uuid, d.entry_id, %(tenant)s::uuid, d.created_at, d.type, d.body,
       d.terms::tsvector
FROM unnest(
    %(entries)s::uuid[], %(times)s::bigint[], %(types)s::text[], %(bodies)s::text[],
    %(terms)s::text[]
) AS d (entry_id, created_at, type, body, terms)
ON CONFLICT (session_id, entry_id) DO NOTHING

-- name: search_move
-- The cursor of one store never goes back; the caller has removed the rows of another store.
INSERT INTO laneway.search_sessions AS s
    (session_id, tenant_id, created_at, generation, cursor, stamp, labels)
VALUES (%(session)s::uuid, %(tenant)s::uuid, %(created_at)s, %(generation)s, %(cursor)s, %(stamp)s,
        %(labels)s::text[])
ON CONFLICT (session_id) DO UPDATE SET
    created_at = excluded.created_at,
    generation = excluded.generation,
    cursor = greatest(s.cursor, excluded.cursor),
    stamp = excluded.stamp,
    labels = excluded.labels

-- name: search_known
SELECT session_id::text FROM laneway.search_sessions
WHERE tenant_id = %(tenant)s::uuid
  AND (%(after)s::uuid IS NULL OR session_id > %(after)s::uuid)
ORDER BY session_id LIMIT %(limit)s

-- name: search_listing
-- One page of a tenant's sessions with their stamps, or one session.
SELECT s.id::text, s.created_at, s.cwd, s.parent_session_id::text, s.legacy_parent_session_path,
       s.storage_version, s.store_generation, s.metadata, laneway.search_stamp(s)
FROM laneway.sessions AS s
WHERE s.tenant_id = %(tenant)s::uuid
  AND (%(only)s::uuid IS NULL OR s.id = %(only)s::uuid)
  AND (%(after)s::uuid IS NULL OR (s.created_at, s.id) > (%(after_time)s, %(after)s::uuid))
ORDER BY s.created_at, s.id LIMIT %(limit)s

-- name: search_stale
SELECT tenant_id::text, session_id::text
FROM laneway.search_stale(%s::text, %s::uuid, %s::integer)

-- Sessions as a repository sees them.

-- name: create_session
SELECT laneway.create_session(
    %(tenant)s::uuid, %(id)s::uuid, %(stamp)s::bigint, %(agent)s::text, %(name)s::text,
    %(metadata)s::jsonb, %(cwd)s::text, %(parent)s::uuid, %(legacy_parent)s::text,
    %(version)s::integer, %(usage)s::text, %(namespaces)s::text[], %(keys)s::text[],
    %(contents)s::text[]
)

-- name: delete_session
SELECT laneway.delete_session(%s::uuid, %s::uuid, %s::bigint)

-- name: set_tenant
-- Names the tenant for the rest of the transaction.
SELECT set_config('laneway.tenant', %s, true)

-- name: read_snapshot
-- The transaction sees one instant and writes nothing.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY

-- name: reserve_key
-- Takes an idempotency key unless it is in use; a key past its expiry is taken over. No row: in use.
-- A second request with the same key waits here for the transaction of the first.
INSERT INTO laneway.idempotency_keys AS k
    (tenant_id, key, fingerprint, status, response, created_at, expires_at)
VALUES (%(tenant)s::uuid, %(key)s, %(fingerprint)s, NULL, NULL, %(now)s, %(expires)s)
ON CONFLICT (tenant_id, key) DO UPDATE SET
    fingerprint = excluded.fingerprint, status = NULL, response = NULL,
    created_at = excluded.created_at, expires_at = excluded.expires_at
WHERE k.expires_at <= excluded.created_at
RETURNING k.key

-- name: kept_answer
SELECT fingerprint, status, response FROM laneway.idempotency_keys
WHERE tenant_id = %s::uuid AND key = %s

-- name: keep_answer
-- A key that was taken for a short time is kept for the answer's.
UPDATE laneway.idempotency_keys
SET status = %s, response = %s, expires_at = greatest(expires_at, created_at + %s)
WHERE tenant_id = %s::uuid AND key = %s

-- name: forget_key
DELETE FROM laneway.idempotency_keys WHERE tenant_id = %s::uuid AND key = %s

-- name: expire_keys
-- Keys of the named tenant that are past their expiry.
DELETE FROM laneway.idempotency_keys WHERE expires_at <= %s

-- The commit and read paths of one session. The functions are made by the migrations.

-- name: commit_batch
-- One physical transaction for the commits of several sessions; see the function for its arguments.
SELECT laneway.commit_batch($1, $2, $3, $4)

-- name: prepare_commit
-- The same as a statement of this connection, where the connection is no pooler's.
PREPARE laneway_commit (uuid[], bigint[], smallint[], text[]) AS
SELECT laneway.commit_batch($1, $2, $3, $4)

-- name: session_position
-- Where a session stands, to find out whether a commit whose answer was lost was applied.
SELECT next_seq FROM laneway.session_position(%s::uuid, %s::uuid, %s::bigint)

-- name: get_entries
SELECT id::text, parent_id::text, seq, created_at, payload
FROM laneway.get_entries(%s::uuid, %s::uuid, %s::uuid[])

-- name: get_value
SELECT seq, value FROM laneway.get_value(%s::uuid, %s::uuid, %s::text, %s::text)

-- name: scan_values
SELECT key, seq, value FROM laneway.scan_values(%s::uuid, %s::uuid, %s::text, %s::text, %s::text)

-- name: read_list
SELECT seq, value
FROM laneway.read_list(
    %s::uuid, %s::uuid, %s::text, %s::text, %s::bigint, %s::boolean, %s::integer
)

-- name: scan_branch
SELECT id::text, parent_id::text, seq, created_at, type, custom_type, payload
FROM laneway.scan_branch(
    %s::uuid, %s::uuid, %s::uuid, %s::text, %s::uuid, %s::text, %s::text, %s::boolean, %s::bigint,
    %s::bigint, %s::boolean
)

-- name: scan_entries
SELECT id::text, parent_id::text, seq, created_at, payload
FROM laneway.scan_entries(
    %s::uuid, %s::uuid, %s::text, %s::text, %s::bigint, %s::bigint, %s::boolean, %s::bigint
)

-- name: scan_usage
SELECT id::text, seq, entry_id::text, adjustment, usage, details
FROM laneway.scan_usage(
    %s::uuid, %s::uuid, %s::bigint, %s::bigint, %s::boolean, %s::bigint
)

-- name: get_stats
SELECT message_count, usage FROM laneway.get_stats(%s::uuid, %s::uuid)

