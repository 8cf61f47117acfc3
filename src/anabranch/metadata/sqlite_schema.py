"""The tables of the SQLite metadata file."""

from __future__ import annotations

import sqlite3

SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE node (path TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, session INTEGER)
    WITHOUT ROWID;
CREATE INDEX node_by_session ON node (session) WHERE session IS NOT NULL;
CREATE TABLE sequence (path TEXT PRIMARY KEY, next INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE session (id INTEGER PRIMARY KEY AUTOINCREMENT, boot TEXT NOT NULL, heard_s REAL NOT NULL);
CREATE TABLE change (id INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT NOT NULL);
"""


def delete_sessions(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM node WHERE session IS NOT NULL")
    connection.execute("DELETE FROM session")
