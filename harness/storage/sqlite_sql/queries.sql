-- Statements of the SQLite backend outside the branch index.

-- name: insert_entry
INSERT INTO entries (id, parent_id, seq, type, custom_type, timestamp, payload)
VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: insert_usage
INSERT INTO usage_ledger (id, seq, entry_id, adjustment, usage, details) VALUES (?, ?, ?, ?, ?, ?);

-- name: usage_exists
-- Entry and usage ids share one namespace, so each insert looks at the other table.
SELECT 1 FROM usage_ledger WHERE id = ?;

-- name: entry_exists
SELECT 1 FROM entries WHERE id = ?;

-- name: set_value
INSERT INTO scalar_values (namespace, key, seq, value) VALUES (?, ?, ?, ?)
ON CONFLICT (namespace, key) DO UPDATE SET seq = excluded.seq, value = excluded.value;

-- name: delete_value
DELETE FROM scalar_values WHERE namespace = ? AND key = ?;

-- name: append_list
INSERT INTO list_values (namespace, key, seq, value) VALUES (?, ?, ?, ?);

-- name: delete_list
DELETE FROM list_values WHERE namespace = ? AND key = ?;

-- name: get_entry
SELECT seq, timestamp, id, parent_id, payload FROM entries WHERE id = ?;

-- name: get_value
SELECT value, seq FROM scalar_values WHERE namespace = ? AND key = ?;

-- name: scan_values
-- A prefix is a range of keys: from the prefix itself up to the first text after all its extensions.
SELECT key, value, seq FROM scalar_values
WHERE namespace = ? AND key >= ? AND key < ? ORDER BY key;

-- name: scan_values_from
-- The same for a prefix that has no such upper end, the empty one among them.
SELECT key, value, seq FROM scalar_values WHERE namespace = ? AND key >= ? ORDER BY key;

-- name: read_list_asc
SELECT seq, value FROM list_values
WHERE namespace = ? AND key = ? AND seq > ? ORDER BY seq ASC LIMIT ?;

-- name: read_list_desc
SELECT seq, value FROM list_values
WHERE namespace = ? AND key = ? AND seq < ? ORDER BY seq DESC LIMIT ?;

-- name: scan_entries_asc
-- Inventory by sequence; a limit of -1 is none.
SELECT seq, timestamp, id, parent_id, payload FROM entries
WHERE seq >= :low AND seq <= :high
  AND (:type IS NULL OR type = :type) AND (:custom_type IS NULL OR custom_type = :custom_type)
ORDER BY seq ASC LIMIT :limit;

-- name: scan_entries_desc
SELECT seq, timestamp, id, parent_id, payload FROM entries
WHERE seq >= :low AND seq <= :high
  AND (:type IS NULL OR type = :type) AND (:custom_type IS NULL OR custom_type = :custom_type)
ORDER BY seq DESC LIMIT :limit;

-- name: scan_usage_asc
SELECT id, seq, entry_id, adjustment, usage, details FROM usage_ledger
WHERE seq >= ? AND seq <= ? ORDER BY seq ASC LIMIT ?;

-- name: scan_usage_desc
SELECT id, seq, entry_id, adjustment, usage, details FROM usage_ledger
WHERE seq >= ? AND seq <= ? ORDER BY seq DESC LIMIT ?;

-- name: read_session
SELECT id, created_at, cwd, parent_session_id, legacy_parent_session_path, storage_version,
       store_generation, metadata
FROM session;

-- name: insert_session
INSERT INTO session (id, created_at, cwd, parent_session_id, legacy_parent_session_path,
                     storage_version, store_generation, metadata,
                     message_count, usage_payload, next_seq)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: read_totals
SELECT next_seq, message_count, usage_payload FROM session;

-- name: write_totals
UPDATE session SET next_seq = ?, message_count = ?, usage_payload = ?;

-- name: write_storage_version
UPDATE session SET storage_version = ?;

-- name: read_lease
SELECT owner_id, fence, expires_at_ms FROM writer_lease;

-- name: clear_lease
DELETE FROM writer_lease;

-- name: take_lease
INSERT INTO writer_lease (owner_id, fence, expires_at_ms) VALUES (?, ?, ?);

-- name: renew_lease
UPDATE writer_lease SET expires_at_ms = ? WHERE owner_id = ? AND fence = ?;

-- name: release_lease
-- Only the exact claim: an owner that was replaced must not release its successor.
DELETE FROM writer_lease WHERE owner_id = ? AND fence = ?;

-- name: all_values
-- Every value and list element below live in the order of their writes, for copies and exports.
SELECT seq, namespace, key, value FROM scalar_values ORDER BY seq;

-- name: all_elements
SELECT seq, namespace, key, value FROM list_values ORDER BY seq;

-- name: elements_page
-- Elements of all lists in the order of their writes, for migrations.
SELECT seq, namespace, key, value FROM list_values WHERE seq > ? ORDER BY seq LIMIT ?;

-- name: delete_element
-- Only a migration takes single elements out: to put them back under another address or shape.
DELETE FROM list_values WHERE namespace = ? AND key = ? AND seq = ?;
