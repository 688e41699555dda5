"""Virtual environments of the peers, created on request from lock files.

Each peer needs its own, because their dependencies conflict with each other and with Skylane's.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bench.peers.clients import PeerError

_LOCKS = Path(__file__).resolve().parents[1] / "requirements"
_COMPLETE = "complete"  # File in the environment with a copy of its lock.
_SYSTEM = Path("/usr/bin/python3.11")


@dataclass(frozen=True, slots=True)
class Environment:
    """The virtual environment of a peer."""

    folder: Path
    lock: Path
    maker: Path  # The Python that creates it.

    @property
    def programs(self) -> Path:
        """The folder of its commands."""
        return self.folder.absolute() / "bin"

    @property
    def python(self) -> Path:
        """The interpreter."""
        return self.programs / "python"

    @property
    def log(self) -> Path:
        """The log of the last installation."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def server_log(self) -> Path:
        """The log of the server."""
        return self.folder.with_name(f"{self.folder.name}-server.log")

    @property
    def is_complete(self) -> bool:
        """Whether it was completely installed from the current lock."""
        stamp = self.folder / _COMPLETE
        return stamp.is_file() and stamp.read_bytes() == self.lock.read_bytes()

    def check(self) -> None:
        """Checks that it can be used.

        Raises:
            PeerError: it is missing, or was created from another lock.
        """
        if not self.folder.is_dir():
            raise PeerError(f"no environment in {self.folder}: skylane bench peers --prepare")
        if not self.is_complete:
            raise PeerError(f"{self.folder} is half made, or of another lock: skylane bench peers --prepare")

    def make(self, on_step: Callable[[str], None]) -> None:
        """Creates it again; pip's output goes to `log`.

        Raises:
            PeerError: a library cannot be installed; the message has the last line of the log.
        """
        (self.folder / _COMPLETE).unlink(missing_ok=True)
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        install: list[str | Path] = [self.python, "-m", "pip", "install", "--disable-pip-version-check", "--no-deps"]
        with self.log.open("wb") as log:
            on_step("a virtual environment")
            self._run([self.maker, "-m", "venv", "--clear", self.folder], log)
            on_step(f"installing {self.lock.name}")
            self._run([*install, "--require-hashes", "--requirement", self.lock], log)
        (self.folder / _COMPLETE).write_bytes(self.lock.read_bytes())

    def version(self, library: str) -> str:
        """Returns the version of a library in the lock.

        Raises:
            PeerError: the lock does not contain the library.
        """
        for line in self.lock.read_text(encoding="utf-8").splitlines():
            name, _, version = line.partition("==")
            if name == library and version:
                return version.split()[0]
        raise PeerError(f"{self.lock} names no {library}")

    def _run(self, command: Sequence[str | Path], log: IO[bytes]) -> None:
        done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False)
        if done.returncode:
            log.flush()
            last = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            raise PeerError(f"{self.folder.name}: {''.join(last) or 'pip failed'} (all of it in {self.log})")


def environment(peer: str, root: Path | None = None) -> Environment:
    """Returns the environment of a peer, whether it exists or not, in `root` (None: `build/peers`)."""
    return Environment((root or Path("build") / "peers") / peer, _LOCKS / f"{peer}.lock", _maker())


def _maker() -> Path:
    """Triton needs a Python whose shared library is in a system folder, such as the distribution's Python."""
    return _SYSTEM if _SYSTEM.exists() else Path(sys.executable)
