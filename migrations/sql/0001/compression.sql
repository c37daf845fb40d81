-- How large text rests, by what this server has. With lz4 it is cheap enough for everything.
-- Without it, pglz costs milliseconds for 50 KB: worth it for entries, which stay, and not for
-- values and list elements, which are soon replaced or deleted.
DO $$
DECLARE
    has_lz4 boolean := EXISTS (
        SELECT 1 FROM pg_settings
        WHERE name = 'default_toast_compression' AND 'lz4' = ANY (enumvals)
    );
BEGIN
    IF has_lz4 THEN
        ALTER TABLE laneway.entries ALTER COLUMN payload SET COMPRESSION lz4;
        ALTER TABLE laneway.entries_default ALTER COLUMN payload SET COMPRESSION lz4;
        ALTER TABLE laneway.scalar_values ALTER COLUMN value SET COMPRESSION lz4;
        ALTER TABLE laneway.list_values ALTER COLUMN value SET COMPRESSION lz4;
    ELSE
        ALTER TABLE laneway.scalar_values ALTER COLUMN value SET STORAGE EXTERNAL;
        ALTER TABLE laneway.list_values ALTER COLUMN value SET STORAGE EXTERNAL;
    END IF;
END
$$;
