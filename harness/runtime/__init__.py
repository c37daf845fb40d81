"""The harness: lanes, drives, procedures, events, hooks, snapshots."""
