-- What operators and metrics ask about the fleet as a whole. Counts over all tenants come from
-- functions that run as their owner; none of them shows content.

-- name: fleet_work
SELECT tenant_class, state, number, oldest_due FROM laneway.fleet_work(%s::bigint)

-- name: count_hosts
SELECT role, draining, count(*) FROM laneway.hosts GROUP BY 1, 2

-- name: purge_receipts
SELECT laneway.purge_receipts(%s::bigint, %s::integer)

-- name: purge_keys
SELECT laneway.purge_keys(%s::bigint, %s::integer)

-- name: operator_operation
SELECT operation_id::text, tenant_id::text, tenant, session_id::text, lane, kind, state, accepted_at,
       due_at, dispatched_at, passes, last_reason, host_id::text, host, outcome, error, finished_at
FROM laneway.operator_operation(%s::uuid, %s::bigint)

-- name: operator_operations
SELECT operation_id::text, tenant_id::text, tenant, session_id::text, lane, kind, state, accepted_at,
       due_at, dispatched_at, passes, last_reason, host_id::text, host, NULL, NULL, NULL
FROM laneway.operator_operations(%s::uuid, %s::text, %s::bigint, %s::integer, %s::bigint)

-- name: undispatch
-- An operation whose job may be lost is dispatched again at once.
SELECT laneway.undispatch(%s::uuid, %s::uuid)

-- name: observed_hosts
-- Hosts with what they own, and whether their lease connection still stands (holds the identity lock).
SELECT h.id::text, h.name, h.role, h.url, h.process_id, h.capacity, h.draining, h.told_to_leave,
       (extract(epoch FROM h.started_at) * 1000)::bigint,
       extract(epoch FROM clock_timestamp() - h.heartbeat_at)::float8,
       EXISTS (
           SELECT 1 FROM pg_locks AS l
           WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
             AND l.database = (SELECT d.oid FROM pg_database AS d
                               WHERE d.datname = current_database())
             AND ((l.classid::bigint << 32) | l.objid::bigint) = h.lock_key),
       laneway.sessions_of_host(h.id)
FROM laneway.hosts AS h ORDER BY h.started_at, h.id

-- name: server_facts
-- What the doctor compares: the server's version and limits, its clock, who we are to it, and which
-- server and database it is.
SELECT current_setting('server_version_num')::integer,
       current_setting('max_connections')::integer,
       current_setting('superuser_reserved_connections')::integer,
       current_setting('max_locks_per_transaction')::integer
       * (current_setting('max_connections')::integer
          + current_setting('max_prepared_transactions')::integer),
       (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
       current_user::text, current_database()::text,
       current_database()::text || ' since ' || pg_postmaster_start_time()::text

-- name: queue_functions
-- The functions and types that the queue brought with it.
SELECT p.proname::text FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
WHERE n.nspname = 'public' AND p.proname LIKE 'procrastinate\_%%'
UNION ALL
SELECT t.typname::text FROM pg_type AS t JOIN pg_namespace AS n ON n.oid = t.typnamespace
WHERE n.nspname = 'public' AND t.typname LIKE 'procrastinate\_%%'

-- name: queue_backlog
-- Jobs that wait, and jobs that are over and should have been removed.
SELECT count(*) FILTER (WHERE j.status = 'todo'),
       count(*) FILTER (WHERE j.status NOT IN ('todo', 'doing'))
FROM public.procrastinate_jobs AS j WHERE j.queue_name = %s
