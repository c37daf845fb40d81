-- The key that a request presents, before its tenant is known: the one look-up that crosses tenants.
CREATE FUNCTION laneway.find_api_key(key_id text)
RETURNS TABLE (
    id text, tenant_id uuid, name text, secret_hash bytea, scopes text[], created_at bigint,
    expires_at bigint, revoked_at bigint, tenant_name text, tenant_disabled_at bigint, limits jsonb
)
LANGUAGE sql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT k.id, k.tenant_id, k.name, k.secret_hash, k.scopes, k.created_at, k.expires_at,
           k.revoked_at, t.name, t.disabled_at, t.limits
    FROM laneway.api_keys AS k
    JOIN laneway.tenants AS t ON t.id = k.tenant_id
    WHERE k.id = key_id
$$;
