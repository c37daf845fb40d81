-- The segmented branch index: appending, following a chain of segments, scanning, repairing.

-- name: branch_of_tip
-- The branch that ends at this entry, if one does; at most one can.
SELECT branch_id FROM branch_meta WHERE tip_entry_id = ?;

-- name: append_row
INSERT INTO branch_entries (branch_id, entry_id, entry_seq, entry_type) VALUES (?, ?, ?, ?);

-- name: move_tip
UPDATE branch_meta SET tip_entry_id = ?, tip_seq = ? WHERE branch_id = ?;

-- name: insert_branch
INSERT INTO branch_meta (branch_id, tip_entry_id, tip_seq, base_branch_id, base_seq)
VALUES (?, ?, ?, ?, ?);

-- name: segment_of_entry
-- A segment that physically holds an entry, with the range of sequence numbers it contributes to the
-- path from there. Holding the row itself is what makes a segment cover the entry: below a base the
-- rows of the base branch count only up to the base.
SELECT m.branch_id, coalesce(m.base_seq, 0), holder.entry_seq, m.base_branch_id
FROM (SELECT branch_id, entry_seq FROM branch_entries WHERE entry_id = ? LIMIT 1) AS holder
CROSS JOIN branch_meta AS m ON m.branch_id = holder.branch_id;

-- name: base_segment
-- The segment in which a path goes on below another one.
SELECT branch_id, coalesce(base_seq, 0), base_branch_id FROM branch_meta WHERE branch_id = ?;

-- name: newest_of_type
SELECT entry_seq FROM branch_entries
WHERE branch_id = ? AND entry_type = ? AND entry_seq > ? AND entry_seq <= ?
ORDER BY entry_seq DESC LIMIT 1;

-- name: oldest_of_type
SELECT entry_seq FROM branch_entries
WHERE branch_id = ? AND entry_type = ? AND entry_seq > ? AND entry_seq <= ?
ORDER BY entry_seq ASC LIMIT 1;

-- name: seq_in_segment
SELECT entry_seq FROM branch_entries
WHERE branch_id = ? AND entry_id = ? AND entry_seq > ? AND entry_seq <= ?;

-- name: nth_newest
-- The row that has this many newer ones above it in the range.
SELECT entry_seq FROM branch_entries
WHERE branch_id = ? AND entry_seq > ? AND entry_seq <= ?
ORDER BY entry_seq DESC LIMIT 1 OFFSET ?;

-- name: copy_rows
INSERT INTO branch_entries (branch_id, entry_id, entry_seq, entry_type)
SELECT ?, entry_id, entry_seq, entry_type FROM branch_entries
WHERE branch_id = ? AND entry_seq > ? AND entry_seq <= ?;

-- name: scan_newest
-- One segment's part of a scan. CROSS JOIN keeps the index as the outer loop: the planner would
-- otherwise be free to walk all entries and sort.
SELECT e.seq, e.timestamp, e.id, e.parent_id, e.payload
FROM branch_entries AS b CROSS JOIN entries AS e ON e.id = b.entry_id
WHERE b.branch_id = :branch AND b.entry_seq > :low AND b.entry_seq <= :high
  AND (:custom_type IS NULL OR e.custom_type = :custom_type)
ORDER BY b.entry_seq DESC LIMIT :limit;

-- name: scan_oldest
SELECT e.seq, e.timestamp, e.id, e.parent_id, e.payload
FROM branch_entries AS b CROSS JOIN entries AS e ON e.id = b.entry_id
WHERE b.branch_id = :branch AND b.entry_seq > :low AND b.entry_seq <= :high
  AND (:custom_type IS NULL OR e.custom_type = :custom_type)
ORDER BY b.entry_seq ASC LIMIT :limit;

-- name: scan_newest_typed
SELECT e.seq, e.timestamp, e.id, e.parent_id, e.payload
FROM branch_entries AS b CROSS JOIN entries AS e ON e.id = b.entry_id
WHERE b.branch_id = :branch AND b.entry_type = :type AND b.entry_seq > :low AND b.entry_seq <= :high
  AND (:custom_type IS NULL OR e.custom_type = :custom_type)
ORDER BY b.entry_seq DESC LIMIT :limit;

-- name: scan_oldest_typed
SELECT e.seq, e.timestamp, e.id, e.parent_id, e.payload
FROM branch_entries AS b CROSS JOIN entries AS e ON e.id = b.entry_id
WHERE b.branch_id = :branch AND b.entry_type = :type AND b.entry_seq > :low AND b.entry_seq <= :high
  AND (:custom_type IS NULL OR e.custom_type = :custom_type)
ORDER BY b.entry_seq ASC LIMIT :limit;

-- name: structure_newest
-- The same four without payloads.
SELECT e.seq, e.timestamp, e.id, e.parent_id, e.type, e.custom_type
FROM branch_entries AS b CROSS JOIN entries AS e ON e.id = b.entry_id
WHERE b.branch_id = :branch AND b.entry_seq > :low AND b.entry_seq <= :high
  AND (:custom_type IS NULL OR e.custom_type = :custom_type)
ORDER BY b.entry_seq DESC LIMIT :limit;

-- name: structure_oldest
SELECT e.seq, e.timestamp, e.id, e.parent_id, e.type, e.custom_type
FROM branch_entries AS b CROSS JOIN entries AS e ON e.id = b.entry_id
WHERE b.branch_id = :branch AND b.entry_seq > :low AND b.entry_seq <= :high
  AND (:custom_type IS NULL OR e.custom_type = :custom_type)
ORDER BY b.entry_seq ASC LIMIT :limit;

-- name: structure_newest_typed
SELECT e.seq, e.timestamp, e.id, e.parent_id, e.type, e.custom_type
FROM branch_entries AS b CROSS JOIN entries AS e ON e.id = b.entry_id
WHERE b.branch_id = :branch AND b.entry_type = :type AND b.entry_seq > :low AND b.entry_seq <= :high
  AND (:custom_type IS NULL OR e.custom_type = :custom_type)
ORDER BY b.entry_seq DESC LIMIT :limit;

-- name: structure_oldest_typed
SELECT e.seq, e.timestamp, e.id, e.parent_id, e.type, e.custom_type
FROM branch_entries AS b CROSS JOIN entries AS e ON e.id = b.entry_id
WHERE b.branch_id = :branch AND b.entry_type = :type AND b.entry_seq > :low AND b.entry_seq <= :high
  AND (:custom_type IS NULL OR e.custom_type = :custom_type)
ORDER BY b.entry_seq ASC LIMIT :limit;

-- name: clear_rows
-- Repair empties the index and appends every entry again.
DELETE FROM branch_entries;

-- name: clear_branches
DELETE FROM branch_meta;

-- name: entries_in_order
SELECT id, parent_id, seq, type FROM entries ORDER BY seq;
