-- Reads of entries and of the ledger by id and by sequence number.

-- The entries that exist among some ids.
CREATE FUNCTION laneway.get_entries(for_tenant uuid, for_session uuid, ids uuid[])
RETURNS TABLE (
    id uuid, parent_id uuid, seq bigint, created_at bigint, type text, custom_type text, payload text
)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM set_config('laneway.tenant', for_tenant::text, true);
    RETURN QUERY
    SELECT e.id, e.parent_id, e.seq, e.created_at, e.type, e.custom_type, e.payload
    FROM unnest(ids) AS wanted (id)
    JOIN laneway.entries AS e ON e.session_id = for_session AND e.id = wanted.id;
END
$$;

-- All entries by sequence number, bounds inclusive, null for no bound, filter or limit.
CREATE FUNCTION laneway.scan_entries(
    for_tenant uuid, for_session uuid, want_type text, want_custom text,
    from_seq bigint, to_seq bigint, descending boolean, page bigint
) RETURNS TABLE (
    id uuid, parent_id uuid, seq bigint, created_at bigint, type text, custom_type text, payload text
)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM set_config('laneway.tenant', for_tenant::text, true);
    IF descending THEN
        RETURN QUERY
        SELECT e.id, e.parent_id, e.seq, e.created_at, e.type, e.custom_type, e.payload
        FROM laneway.entries AS e
        WHERE e.session_id = for_session
          AND e.seq >= coalesce(from_seq, 0) AND e.seq <= coalesce(to_seq, 9223372036854775807)
          AND (want_type IS NULL OR e.type = want_type)
          AND (want_custom IS NULL OR e.custom_type = want_custom)
        ORDER BY e.seq DESC LIMIT page;
    ELSE
        RETURN QUERY
        SELECT e.id, e.parent_id, e.seq, e.created_at, e.type, e.custom_type, e.payload
        FROM laneway.entries AS e
        WHERE e.session_id = for_session
          AND e.seq >= coalesce(from_seq, 0) AND e.seq <= coalesce(to_seq, 9223372036854775807)
          AND (want_type IS NULL OR e.type = want_type)
          AND (want_custom IS NULL OR e.custom_type = want_custom)
        ORDER BY e.seq LIMIT page;
    END IF;
END
$$;

-- Ledger rows by sequence number, bounds inclusive.
CREATE FUNCTION laneway.scan_usage(
    for_tenant uuid, for_session uuid, from_seq bigint, to_seq bigint, descending boolean, page bigint
) RETURNS TABLE (
    id uuid, seq bigint, entry_id uuid, adjustment boolean, usage text, details text
)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM set_config('laneway.tenant', for_tenant::text, true);
    IF descending THEN
        RETURN QUERY
        SELECT u.id, u.seq, u.entry_id, u.adjustment, u.usage, u.details
        FROM laneway.usage_ledger AS u
        WHERE u.session_id = for_session
          AND u.seq >= coalesce(from_seq, 0) AND u.seq <= coalesce(to_seq, 9223372036854775807)
        ORDER BY u.seq DESC LIMIT page;
    ELSE
        RETURN QUERY
        SELECT u.id, u.seq, u.entry_id, u.adjustment, u.usage, u.details
        FROM laneway.usage_ledger AS u
        WHERE u.session_id = for_session
          AND u.seq >= coalesce(from_seq, 0) AND u.seq <= coalesce(to_seq, 9223372036854775807)
        ORDER BY u.seq LIMIT page;
    END IF;
END
$$;

-- The maintained totals.
CREATE FUNCTION laneway.get_stats(for_tenant uuid, for_session uuid)
RETURNS TABLE (message_count bigint, usage text)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN
    PERFORM set_config('laneway.tenant', for_tenant::text, true);
    RETURN QUERY
    SELECT s.message_count, s.usage FROM laneway.sessions AS s WHERE s.id = for_session;
END
$$;

-- A session's next sequence number while its fence is still the caller's; no row otherwise.
CREATE FUNCTION laneway.session_position(for_tenant uuid, for_session uuid, at_fence bigint)
RETURNS TABLE (next_seq bigint)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN
    PERFORM set_config('laneway.tenant', for_tenant::text, true);
    RETURN QUERY
    SELECT s.next_seq FROM laneway.sessions AS s WHERE s.id = for_session AND s.fence = at_fence;
END
$$;
