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
