-- Point and range reads of current values and lists. Each names its tenant inside its own
-- transaction, so that it is one round trip and safe behind a transaction-mode pooler.

-- One value.
CREATE FUNCTION laneway.get_value(
    for_tenant uuid, for_session uuid, for_namespace text, for_key text
) RETURNS TABLE (seq bigint, value text)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM set_config('laneway.tenant', for_tenant::text, true);
    RETURN QUERY
    SELECT v.seq, v.value FROM laneway.scalar_values AS v
    WHERE v.session_id = for_session AND v.namespace = for_namespace AND v.key = for_key;
END
$$;

-- The values of a namespace whose key is at least low_key and below high_key (null: no bound), by
-- code point. The caller turns a prefix into the two bounds.
CREATE FUNCTION laneway.scan_values(
    for_tenant uuid, for_session uuid, for_namespace text, low_key text, high_key text
) RETURNS TABLE (key text, seq bigint, value text)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM set_config('laneway.tenant', for_tenant::text, true);
    IF high_key IS NULL THEN
        RETURN QUERY
        SELECT v.key, v.seq, v.value FROM laneway.scalar_values AS v
        WHERE v.session_id = for_session AND v.namespace = for_namespace AND v.key >= low_key
        ORDER BY v.key;
    ELSE
        RETURN QUERY
        SELECT v.key, v.seq, v.value FROM laneway.scalar_values AS v
        WHERE v.session_id = for_session AND v.namespace = for_namespace
          AND v.key >= low_key AND v.key < high_key
        ORDER BY v.key;
    END IF;
END
$$;

-- One page of a list: elements after (or, descending, before) the cursor.
CREATE FUNCTION laneway.read_list(
    for_tenant uuid, for_session uuid, for_namespace text, for_key text,
    after_seq bigint, descending boolean, page integer
) RETURNS TABLE (seq bigint, value text)
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
        SELECT l.seq, l.value FROM laneway.list_values AS l
        WHERE l.session_id = for_session AND l.namespace = for_namespace AND l.key = for_key
          AND l.seq < coalesce(after_seq, 9223372036854775807)
        ORDER BY l.seq DESC LIMIT page;
    ELSE
        RETURN QUERY
        SELECT l.seq, l.value FROM laneway.list_values AS l
        WHERE l.session_id = for_session AND l.namespace = for_namespace AND l.key = for_key
          AND l.seq > coalesce(after_seq, -1)
        ORDER BY l.seq LIMIT page;
    END IF;
END
$$;
