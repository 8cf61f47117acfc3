"""The file with the secret between brokers: made by the first start, replaced as a whole by a rotation.

The file has mode 0600 and lies in the data directory. It is never part of a backup: a restored directory gets
a secret of its own.
"""

from __future__ import annotations

import os
import secrets
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from anabranch.errors import ConflictError, InvalidConfigurationError
from anabranch.ledger.disks.os_files import sync_folder
from anabranch.security.peer_secrets import NONCE_BYTES, SECRET_BYTES, PeerSecrets

SECRET_FILE: Final = "brokers.secret"
HEAD: Final = "anabranch secret 1"
FILE_BYTES_MAX: Final = 4096

_OTHERS: Final = 0o077


class PeerSecretFile:
    """The secrets of the brokers of one data directory."""

    def __init__(self, data: Path) -> None:
        self.file = data / SECRET_FILE

    def prepare(self) -> None:
        """Make the file unless it exists, and refuse one that others could read or have put there."""
        for draft in self.file.parent.glob(f"{SECRET_FILE}.*.new"):
            # A command that was killed left this file behind.
            draft.unlink(missing_ok=True)
        if not os.path.lexists(self.file):
            with suppress(FileExistsError):
                self._create(PeerSecrets(secrets.token_bytes(SECRET_BYTES)))
        self.load()

    def nonce(self) -> bytes:
        return secrets.token_bytes(NONCE_BYTES)

    def load(self) -> PeerSecrets:
        """Return the content of the file; InvalidConfigurationError if it is missing, unsafe or damaged."""
        try:
            fd = os.open(self.file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            what = "is a link" if self.file.is_symlink() else f"cannot be read: {error.strerror}"
            raise self._refusal(what) from error
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise self._refusal("is not a regular file")
            if status.st_mode & _OTHERS:
                mode = stat.S_IMODE(status.st_mode)
                raise self._refusal(f"has mode {mode:04o}, so other users may know the secret")
            return self._parse(os.read(fd, FILE_BYTES_MAX))
        except OSError as error:
            raise self._refusal(f"cannot be read: {error.strerror}") from error
        finally:
            os.close(fd)

    def rotate(self, overlap_s: float) -> PeerSecrets:
        """Make a new secret; the present one stays valid for `overlap_s`. `finish` then ends it."""
        now = self.load()
        if now.previous and time.time() < now.previous_until_s:
            raise ConflictError(
                f"a rotation of {self.file} is under way; it ends in "
                f"{now.previous_until_s - time.time():.0f} seconds"
            )
        made = PeerSecrets(secrets.token_bytes(SECRET_BYTES), now.current, time.time() + overlap_s)
        self._replace(made)
        return made

    def finish(self, made: PeerSecrets) -> None:
        """Remove the previous secret from the file, unless another rotation began meanwhile."""
        if self.load().current == made.current:
            self._replace(PeerSecrets(made.current))

    def _create(self, made: PeerSecrets) -> None:
        """Make the file with its whole content in one step; FileExistsError if there is one."""
        draft = self._draft(made)
        try:
            os.link(draft, self.file)
            sync_folder(self.file.parent)
        finally:
            draft.unlink()

    def _replace(self, made: PeerSecrets) -> None:
        draft = self._draft(made)
        try:
            # A rotation by root leaves the file with the user of the broker.
            before = self.file.stat(follow_symlinks=False)
            if os.geteuid() == 0:
                os.chown(draft, before.st_uid, before.st_gid)
            draft.rename(self.file)
            sync_folder(self.file.parent)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    def _draft(self, made: PeerSecrets) -> Path:
        draft = self.file.with_name(f"{SECRET_FILE}.{secrets.token_hex(8)}.new")
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, _text_of(made).encode())
            os.fsync(fd)
        finally:
            os.close(fd)
        return draft

    def _parse(self, content: bytes) -> PeerSecrets:
        try:
            head, current, *rest = content.decode("ascii").splitlines()
            words = rest[0].split() if rest else ["", "0"]
            made = PeerSecrets(bytes.fromhex(current), bytes.fromhex(words[0]), float(words[1]))
        except (ValueError, IndexError):
            raise self._refusal("is damaged") from None
        if head != HEAD or len(made.current) != SECRET_BYTES or len(made.previous) not in (0, SECRET_BYTES):
            raise self._refusal("is damaged")
        return made

    def _refusal(self, what: str) -> InvalidConfigurationError:
        return InvalidConfigurationError(
            f"{self.file}, the secret between brokers, {what}; stop the broker and delete the file, and the "
            "next start makes a new one"
        )


def _text_of(made: PeerSecrets) -> str:
    lines = [HEAD, made.current.hex()]
    if made.previous:
        lines.append(f"{made.previous.hex()} {made.previous_until_s:.3f}")
    return "\n".join(lines) + "\n"
