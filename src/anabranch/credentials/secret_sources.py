"""Reads a secret from its place: the text itself, a file or an environment variable.

Files and variables are read for each use, so that a secret can be rotated under a running program.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from anabranch.errors import AuthenticationError, InvalidConfigurationError


def is_place(text: str) -> bool:
    """Return whether the text names a file or a variable, and so may be shown."""
    return text.startswith(("file:", "env:"))


def secret_reader(text: str) -> Callable[[], str]:
    """Return a function that reads the secret of `file:///path`, `env:NAME`, `token:secret` or a bare secret.

    The function raises AuthenticationError when there is no secret at that place. It can be pickled.
    """
    if text.startswith("file:"):
        return partial(read_file, file_path(text))
    if text.startswith("env:"):
        return partial(_read_variable, text.removeprefix("env:"))
    secret = text.removeprefix("token:").strip()
    if not secret:
        raise InvalidConfigurationError("the token is empty")
    return partial(str, secret)


def file_path(url: str) -> Path:
    """Return the path of `file:///absolute`, `file:/absolute` or `file:relative`."""
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise InvalidConfigurationError(
            f"{url!r} names another machine; write file:///path with three slashes"
        )
    return Path(unquote(parts.path))


def read_file(path: Path) -> str:
    """Return the text of a file without white space around it.

    Raise AuthenticationError if the file cannot be read or is empty.
    """
    try:
        text = path.read_text().strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise AuthenticationError(f"cannot read credentials from {path}: {reason}") from None
    if not text:
        raise AuthenticationError(f"the file of credentials {path} is empty")
    return text


def _read_variable(name: str) -> str:
    text = os.environ.get(name, "").strip()
    if not text:
        raise AuthenticationError(f"the environment variable {name} with the credentials is not set")
    return text


def document_reader(url: str) -> Callable[[], str]:
    """Return a function that reads the text of `file://`, `data:` (also base64) or a bare path."""
    if url.startswith("data:"):
        head, comma, content = url.removeprefix("data:").partition(",")
        if not comma:
            raise InvalidConfigurationError("a data: URL has the form data:application/json;base64,content")
        try:
            raw = (
                base64.b64decode(content, validate=True)
                if head.endswith(";base64")
                else unquote_to_bytes(content)
            )
            text = raw.decode()
        except ValueError:
            raise InvalidConfigurationError("the content of the data: URL is not valid") from None
        return partial(str, text)
    return partial(read_file, file_path(url) if url.startswith("file:") else Path(url))
