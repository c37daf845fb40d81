"""The statements of earlier releases, one file for each, named for the newest revision of its time."""
