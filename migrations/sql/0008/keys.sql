-- What a session's owner makes is noted under the request's idempotency key by the commit that makes it.

-- attempt counts the requests that set out to have it made. Only the newest may: an owner that meets an
-- older one, however late, makes nothing, so that what the newest was told stays true.
ALTER TABLE laneway.idempotency_keys ADD COLUMN attempt integer NOT NULL DEFAULT 0;

-- Begins an attempt and returns its number; of a key that was used for something else, or under which
-- something is noted, what is known instead. A key lives on from its newest attempt. One that is taken
-- without any attempt is left to who took it: the release before, for a minute.
CREATE FUNCTION laneway.attempt_key(
    for_tenant uuid, for_key text, wanted text, now_ms bigint, until_ms bigint
) RETURNS TABLE (attempt integer, fingerprint text, status integer, response text)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN
    PERFORM set_config('laneway.tenant', for_tenant::text, true);
    RETURN QUERY
    INSERT INTO laneway.idempotency_keys AS k
        (tenant_id, key, fingerprint, created_at, expires_at, attempt)
    VALUES (for_tenant, for_key, wanted, now_ms, until_ms, 1)
    ON CONFLICT (tenant_id, key) DO UPDATE SET
        fingerprint = excluded.fingerprint, status = NULL, response = NULL,
        created_at = excluded.created_at, expires_at = excluded.expires_at,
        attempt = k.attempt + 1
    WHERE k.expires_at <= excluded.created_at
       OR (k.status IS NULL AND k.fingerprint = excluded.fingerprint AND k.attempt > 0)
    RETURNING k.attempt, NULL::text, NULL::integer, NULL::text;
    IF NOT FOUND THEN
        RETURN QUERY
        SELECT NULL::integer, k.fingerprint, k.status, k.response
        FROM laneway.idempotency_keys AS k
        WHERE k.tenant_id = for_tenant AND k.key = for_key;
    END IF;
END
$$;

-- Which attempt under a key is the newest, and what is noted.
CREATE FUNCTION laneway.key_standing(for_tenant uuid, for_key text)
RETURNS TABLE (attempt integer, status integer, response text)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN
    PERFORM set_config('laneway.tenant', for_tenant::text, true);
    RETURN QUERY
    SELECT k.attempt, k.status, k.response FROM laneway.idempotency_keys AS k
    WHERE k.tenant_id = for_tenant AND k.key = for_key;
END
$$;
