"""Reads and writes files at any URL that Spark can open, through Hadoop's file systems.

This needs a classic session, because Spark Connect has no access to the JVM.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

from anabranch.errors import ConflictError, InvalidConfigurationError
from anabranch.spark.pipelines.failures import PipelineError


class FileInfo(NamedTuple):
    """A file, with its path relative to the directory that was listed."""

    path: str
    size_bytes: int
    modified_at_ms: int


class Files:
    """Small operations on the files under one directory; paths are relative to it."""

    def __init__(self, spark: Any, root: str) -> None:
        # PySpark offers no public way to the JVM of a session. Asking by name also tells a session of Spark
        # Connect, which has neither attribute.
        self._jvm: Any = getattr(spark, "_jvm", None)
        session: Any = getattr(spark, "_jsparkSession", None)
        if self._jvm is None or session is None:
            raise InvalidConfigurationError("pipelines with files need a classic Spark session, not Connect")
        self._conf = session.sessionState().newHadoopConf()
        path = self._jvm.org.apache.hadoop.fs.Path(root)
        self._system = path.getFileSystem(self._conf)
        self.root = str(path.makeQualified(self._system.getUri(), self._system.getWorkingDirectory()))

    def url(self, path: str = "") -> str:
        """Return the complete URL of a file, for Spark's readers and writers."""
        return f"{self.root}/{path}" if path else self.root

    def exists(self, path: str = "") -> bool:
        return bool(self._system.exists(self._path(path)))

    def is_directory(self, path: str = "") -> bool:
        found = self._path(path)
        return bool(self._system.exists(found)) and bool(self._system.getFileStatus(found).isDirectory())

    def read_text(self, path: str) -> str:
        stream = self._system.open(self._path(path))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def read_json(self, path: str) -> Any:
        return json.loads(self.read_text(path))

    def create_json(self, path: str, value: object) -> None:
        """Write a new file atomically; raises ConflictError if it exists. A reader never sees a part of it.

        Of several callers, exactly one succeeds if the file system is local or has an atomic rename as HDFS
        does. Object stores do not.
        """
        jvm, target = self._jvm, self._path(path)
        if self._system.exists(target):
            raise ConflictError(f"{self.url(path)} already exists")
        directory, _, name = path.rpartition("/")
        unfinished = self._path(f"{directory}/.{name}.{uuid.uuid4().hex}.tmp".lstrip("/"))
        stream = self._system.create(unfinished, False)
        try:
            stream.write(bytearray(json.dumps(value, sort_keys=True).encode()))
        finally:
            stream.close()
        if self._linked(unfinished, target):
            return
        context = jvm.org.apache.hadoop.fs.FileContext.getFileContext(unfinished.toUri(), self._conf)
        rename = jvm.java.lang.Class.forName("org.apache.hadoop.fs.Options$Rename")
        options = jvm.java.lang.reflect.Array.newInstance(rename, 0)
        try:
            context.rename(unfinished, target, options)
        except Exception as error:
            self._system.delete(unfinished, False)
            if "FileAlreadyExists" not in str(error):
                raise
            raise ConflictError(f"{self.url(path)} already exists; another run wrote it") from None

    def _linked(self, unfinished: Any, target: Any) -> bool:
        """Give a finished local file its name; return False if it is not local. Raises ConflictError.

        Hadoop's rename of local files is not atomic: it checks whether the target exists, and then replaces
        it.
        """
        if str(self._system.getUri().getScheme()) != "file":
            return False
        try:
            os.link(str(unfinished.toUri().getPath()), str(target.toUri().getPath()))
        except FileExistsError:
            raise ConflictError(f"{target} already exists; another run wrote it") from None
        finally:
            self._system.delete(unfinished, False)
        return True

    def move(self, source: str, target: str) -> None:
        """Rename a file; the target's directory is made first."""
        self._system.mkdirs(self._path(target.rpartition("/")[0]))
        if not self._system.rename(self._path(source), self._path(target)):
            raise PipelineError(f"cannot rename {self.url(source)} to {self.url(target)}")

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with everything in it; it is not an error if it does not exist."""
        self._system.delete(self._path(path), True)

    def names(self, directory: str) -> list[str]:
        """Return the sorted names in a directory; empty if it does not exist."""
        if not self.exists(directory):
            return []
        return sorted(str(one.getPath().getName()) for one in self._system.listStatus(self._path(directory)))

    def files_below(self, directory: str) -> Iterator[FileInfo]:
        """Yield the files in a directory and its subdirectories, without hidden ones."""
        base = str(self._path(directory).toUri().getPath()).rstrip("/") + "/"
        found = self._system.listFiles(self._path(directory), True)
        while found.hasNext():
            one = found.next()
            path = str(one.getPath().toUri().getPath()).removeprefix(base)
            if not any(part.startswith(("_", ".")) for part in path.split("/")):
                yield FileInfo(path, int(one.getLen()), int(one.getModificationTime()))

    def look_up(self, url: str) -> FileInfo:
        """Return the file at an encoded URL of this file system, with its complete path."""
        path = self._jvm.org.apache.hadoop.fs.Path(self._jvm.java.net.URI(url))
        status = self._system.getFileStatus(path)
        return FileInfo(str(path.toString()), int(status.getLen()), int(status.getModificationTime()))

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.url(path))
