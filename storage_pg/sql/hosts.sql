-- Hosts and the leases they hold. claim, release and the identity lock run on the host's one lease
-- connection; the rest anywhere.

-- name: backend_pid
SELECT pg_backend_pid()

-- name: lease_settings
-- A backend whose client is gone frees its locks: even while it runs a query, and also when the
-- client went without a word, as our side of the connection does.
SELECT set_config('client_connection_check_interval', '1s', false),
       set_config('tcp_keepalives_idle', '5', false),
       set_config('tcp_keepalives_interval', '2', false),
       set_config('tcp_keepalives_count', '3', false),
       set_config('tcp_user_timeout', '10000', false)

-- name: take_identity
-- The lock whose holder is this incarnation of a host.
SELECT pg_try_advisory_lock(%s::bigint)

-- name: register_host
INSERT INTO laneway.hosts (id, name, role, url, process_id, lock_key, lease_pid, capacity)
VALUES (%s::uuid, %s, %s, %s, %s, %s::bigint, pg_backend_pid(), %s)

-- name: remove_host
DELETE FROM laneway.hosts WHERE id = %s::uuid

-- name: heartbeat
-- Says that a host lives, and tells it whether somebody ordered it to leave.
UPDATE laneway.hosts SET heartbeat_at = clock_timestamp() WHERE id = %s::uuid
RETURNING told_to_leave

-- name: tell_to_leave
UPDATE laneway.hosts SET told_to_leave = true WHERE id = %s::uuid RETURNING id::text

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

-- name: ready_workers
-- Who may be offered a new operation.
SELECT id::text, role, url FROM laneway.hosts
WHERE role = 'worker' AND url IS NOT NULL AND NOT draining AND NOT told_to_leave
  AND heartbeat_at > clock_timestamp() - make_interval(secs => %s)

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
