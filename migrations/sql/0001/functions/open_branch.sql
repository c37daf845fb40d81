-- Opens a segment of the branch index for an entry whose parent is not the tip of one (§2.6).
--
-- The new segment gets its own rows from the newest compaction at or below the parent (exclusive)
-- up to the parent; what lies before stays where it is and becomes the base. The search follows the
-- bases: the newest compaction may lie below the parent's own segment. The base is always the
-- segment that physically holds base_seq, so every hop of a chain reaches rows. Returns the new
-- segment's id, which is the entry's sequence number. Raises LW001 when the parent does not exist.
CREATE FUNCTION laneway.open_branch(
    for_session uuid, for_tenant uuid, for_parent uuid, for_entry uuid, at_seq bigint
) RETURNS bigint
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    segment bigint;
    upper_seq bigint;
    checkpoint bigint;
    next_segment bigint;
    next_upper bigint;
BEGIN
    IF for_parent IS NOT NULL THEN
        SELECT b.branch_id, b.entry_seq INTO segment, upper_seq
        FROM laneway.branch_entries AS b
        WHERE b.session_id = for_session AND b.entry_id = for_parent
        LIMIT 1;
        IF NOT FOUND THEN
            RAISE EXCEPTION USING ERRCODE = 'LW001',
                MESSAGE = format('entry %s names the missing parent %s', for_entry, for_parent);
        END IF;
        LOOP
            SELECT max(b.entry_seq) INTO checkpoint
            FROM laneway.branch_entries AS b
            WHERE b.session_id = for_session AND b.branch_id = segment
              AND b.entry_type = 'compaction' AND b.entry_seq <= upper_seq;
            INSERT INTO laneway.branch_entries
                (session_id, branch_id, entry_id, tenant_id, entry_seq, entry_type)
            SELECT b.session_id, at_seq, b.entry_id, b.tenant_id, b.entry_seq, b.entry_type
            FROM laneway.branch_entries AS b
            WHERE b.session_id = for_session AND b.branch_id = segment
              AND b.entry_seq <= upper_seq AND b.entry_seq > coalesce(checkpoint, -1);
            EXIT WHEN checkpoint IS NOT NULL;
            SELECT m.base_branch_id, m.base_seq INTO next_segment, next_upper
            FROM laneway.branch_meta AS m
            WHERE m.session_id = for_session AND m.branch_id = segment;
            EXIT WHEN next_segment IS NULL;
            segment := next_segment;
            upper_seq := next_upper;
        END LOOP;
    END IF;
    INSERT INTO laneway.branch_meta
        (session_id, branch_id, tenant_id, tip_entry_id, tip_seq, base_branch_id, base_seq)
    VALUES (for_session, at_seq, for_tenant, for_entry, at_seq,
            CASE WHEN checkpoint IS NOT NULL THEN segment END, checkpoint);
    RETURN at_seq;
END
$$;
