-- The path from an entry to the root, by the branch index (§2.5, §2.6).
--
-- First the chain of segments is followed from the one that holds from_entry: each covers the path
-- from its upper end down to its own oldest row, and its base goes on at base_seq. Newest first,
-- following ends in the segment that holds the stop (the newest entry of stop_type or with id
-- stop_id); oldest first, the whole chain is needed, and the stop is the oldest such entry. Sequence
-- numbers rise along a path, so order, stop and cursor are all ranges of sequence numbers.
-- Raises LW002 when from_entry does not exist. Payloads are null unless asked for.
CREATE FUNCTION laneway.scan_branch(
    for_tenant uuid, for_session uuid, from_entry uuid, stop_type text, stop_id uuid,
    want_type text, want_custom text, newest_first boolean, after_seq bigint, page bigint,
    with_payload boolean
) RETURNS TABLE (
    id uuid, parent_id uuid, seq bigint, created_at bigint, type text, custom_type text, payload text
)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    segments bigint[] := '{}';
    uppers bigint[] := '{}';
    segment bigint;
    upper_seq bigint;
    stop_seq bigint;
    found_seq bigint;
    low bigint := -1;
    high bigint := 9223372036854775807;
BEGIN
    PERFORM set_config('laneway.tenant', for_tenant::text, true);
    SELECT b.branch_id, b.entry_seq INTO segment, upper_seq
    FROM laneway.branch_entries AS b
    WHERE b.session_id = for_session AND b.entry_id = from_entry
    LIMIT 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'LW002',
            MESSAGE = format('no entry %s to scan from', from_entry);
    END IF;
    WHILE segment IS NOT NULL LOOP
        segments := segments || segment;
        uppers := uppers || upper_seq;
        IF stop_type IS NOT NULL THEN
            IF newest_first THEN
                IF stop_type = 'compaction' THEN
                    SELECT max(b.entry_seq) INTO found_seq FROM laneway.branch_entries AS b
                    WHERE b.session_id = for_session AND b.branch_id = segment
                      AND b.entry_type = 'compaction' AND b.entry_seq <= upper_seq;
                ELSE
                    SELECT max(b.entry_seq) INTO found_seq FROM laneway.branch_entries AS b
                    WHERE b.session_id = for_session AND b.branch_id = segment
                      AND b.entry_type = stop_type AND b.entry_seq <= upper_seq;
                END IF;
                stop_seq := greatest(stop_seq, found_seq);
            ELSE
                SELECT min(b.entry_seq) INTO found_seq FROM laneway.branch_entries AS b
                WHERE b.session_id = for_session AND b.branch_id = segment
                  AND b.entry_type = stop_type AND b.entry_seq <= upper_seq;
                stop_seq := least(stop_seq, found_seq);
            END IF;
        END IF;
        IF stop_id IS NOT NULL THEN
            SELECT b.entry_seq INTO found_seq FROM laneway.branch_entries AS b
            WHERE b.session_id = for_session AND b.branch_id = segment AND b.entry_id = stop_id
              AND b.entry_seq <= upper_seq;
            stop_seq := CASE WHEN newest_first THEN greatest(stop_seq, found_seq)
                             ELSE least(stop_seq, found_seq) END;
        END IF;
        EXIT WHEN newest_first AND stop_seq IS NOT NULL;
        SELECT m.base_branch_id, m.base_seq INTO segment, upper_seq
        FROM laneway.branch_meta AS m
        WHERE m.session_id = for_session AND m.branch_id = segment;
    END LOOP;

    IF newest_first THEN
        low := coalesce(stop_seq, low);
        high := coalesce(after_seq - 1, high);
        RETURN QUERY
        WITH picked AS MATERIALIZED (
            SELECT b.entry_id
            FROM unnest(segments, uppers) AS s (branch_id, upper_seq)
            CROSS JOIN LATERAL (
                SELECT i.entry_id, i.entry_seq FROM laneway.branch_entries AS i
                WHERE i.session_id = for_session AND i.branch_id = s.branch_id
                  AND i.entry_seq >= low AND i.entry_seq <= least(s.upper_seq, high)
                  AND (want_type IS NULL OR i.entry_type = want_type)
            ) AS b
            ORDER BY b.entry_seq DESC
            LIMIT CASE WHEN want_custom IS NULL THEN page END
        )
        SELECT e.id, e.parent_id, e.seq, e.created_at, e.type, e.custom_type,
               CASE WHEN with_payload THEN e.payload END
        FROM picked AS p
        JOIN laneway.entries AS e ON e.session_id = for_session AND e.id = p.entry_id
        WHERE want_custom IS NULL OR e.custom_type = want_custom
        ORDER BY e.seq DESC LIMIT page;
    ELSE
        low := coalesce(after_seq + 1, low);
        high := coalesce(stop_seq, high);
        RETURN QUERY
        WITH picked AS MATERIALIZED (
            SELECT b.entry_id
            FROM unnest(segments, uppers) AS s (branch_id, upper_seq)
            CROSS JOIN LATERAL (
                SELECT i.entry_id, i.entry_seq FROM laneway.branch_entries AS i
                WHERE i.session_id = for_session AND i.branch_id = s.branch_id
                  AND i.entry_seq >= low AND i.entry_seq <= least(s.upper_seq, high)
                  AND (want_type IS NULL OR i.entry_type = want_type)
            ) AS b
            ORDER BY b.entry_seq
            LIMIT CASE WHEN want_custom IS NULL THEN page END
        )
        SELECT e.id, e.parent_id, e.seq, e.created_at, e.type, e.custom_type,
               CASE WHEN with_payload THEN e.payload END
        FROM picked AS p
        JOIN laneway.entries AS e ON e.session_id = for_session AND e.id = p.entry_id
        WHERE want_custom IS NULL OR e.custom_type = want_custom
        ORDER BY e.seq LIMIT page;
    END IF;
END
$$;
